"""Runs that plan first: what is asked, what runs at once, what is mended, what is never run twice."""

import json
from typing import Any

import anyio
import pytest

from agentdiff.agent import Agent, Journal, RunState, UsageLimits, tool
from agentdiff.agent.auto import looks_like_several
from agentdiff.agent.plan import Plan, PlanStep
from agentdiff.errors import LimitExceeded, PlanFailed, PlanInvalid, RunPaused, Unavailable
from agentdiff.messages import ToolSpec
from tests.agent.doubles import Double, ends, says

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool
async def search_hotels(city: str) -> list[str]:
    """Search hotels."""
    ran.append(f"search {city}")
    return [f"{city} Inn", f"{city} Palace"]


@tool
async def book_hotel(name: str, nights: int = 1) -> str:
    """Book a hotel."""
    ran.append(f"book {name}")
    if name.startswith("Full"):
        raise ValueError("no room")
    return f"booked {name} for {nights}"


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    ran.append("pay")
    return f"paid {amount}"


TOOLS = [search_hotels, book_hotel, pay]


def plan(*steps: tuple[str, str, dict[str, Any]]) -> Any:
    """A reply that is a plan."""
    listed = [{"id": id, "tool": tool, "arguments": args} for id, tool, args in steps]
    return says(json.dumps({"steps": listed}))


FIRST = ("s1", "search_hotels", {"city": "Oslo"})
SECOND = ("s2", "book_hotel", {"name": "$s1[0]", "nights": 2})


async def test_a_plan_is_made_run_and_answered_from() -> None:
    backend = Double(plan(FIRST, SECOND), says("Booked."))
    result = await Agent(backend, tools=TOOLS, instructions="Be brief.").run("Go", mode="plan")
    assert result.output == "Booked."
    assert [r.kind for r in backend.requests] == ["plan", "answer"]
    asked, answered = backend.requests
    assert asked.schema is not None
    assert asked.messages[0].content.startswith("Be brief.")
    assert "book_hotel" in asked.messages[0].content
    assert backend.told() == ['["Oslo Inn","Oslo Palace"]', "booked Oslo Inn for 2"]
    assert answered.messages[0].content == "Be brief."
    assert [call.arguments for call in answered.messages[2].tool_calls] == [
        {"city": "Oslo"},
        {"name": "Oslo Inn", "nights": 2},
    ]
    assert [(s.kind, [c.tool for c in s.calls]) for s in result.steps] == [
        ("plan", ["search_hotels", "book_hotel"]),
        ("answer", []),
    ]
    assert result.plan is not None
    assert [step.id for step in result.plan.steps] == ["s1", "s2"]
    (how,) = result.plan_runs
    assert how.critical_path_ms <= how.sum_ms


async def test_steps_that_need_nothing_of_each_other_run_at_once() -> None:
    meeting = [anyio.Event(), anyio.Event()]

    @tool
    async def meet(n: int) -> int:
        meeting[n].set()
        await meeting[1 - n].wait()
        return n

    backend = Double(plan(("s1", "meet", {"n": 0}), ("s2", "meet", {"n": 1})), says("Met."))
    with anyio.fail_after(10):
        await Agent(backend, tools=[meet]).run("Go", mode="plan")
    assert backend.told() == ["0", "1"]


async def test_a_plan_that_cannot_run_is_shown_every_fault_once() -> None:
    wrong = plan(("s1", "fly", {}), ("s2", "book_hotel", {"name": "$s9"}))
    backend = Double(wrong, plan(FIRST), says("Found."))
    result = await Agent(backend, tools=TOOLS).run("Go", mode="plan")
    assert result.output == "Found."
    shown = backend.requests[1].messages[-1].content
    assert "no tool `fly`" in shown
    assert "no step `s9`" in shown
    with pytest.raises(PlanInvalid, match="no tool `fly`"):
        await Agent(Double(wrong, wrong), tools=TOOLS).run("Go", mode="plan")
    assert ran == ["search Oslo"]


async def test_what_failed_is_planned_anew_and_what_is_done_stays_done() -> None:
    backend = Double(
        plan(
            FIRST,
            ("s2", "book_hotel", {"name": "Full House"}),
            ("s3", "book_hotel", {"name": "$s2"}),
        ),
        plan(("s2", "book_hotel", {"name": "$s1[1]"})),
        says("Booked."),
    )
    result = await Agent(backend, tools=TOOLS).run("Go", mode="plan")
    assert sorted(ran) == ["book Full House", "book Oslo Palace", "search Oslo"]
    assert backend.told() == [
        '["Oslo Inn","Oslo Palace"]',
        "error: ValueError: no room",
        "error: not run: `s2` has no result",
        "booked Oslo Palace for 1",
    ]
    assert [s.kind for s in result.steps] == ["plan", "plan", "answer"]
    assert len(result.plan_runs) == 2
    ids = [call.id for m in result.messages for call in m.tool_calls]
    assert len(set(ids)) == len(ids)


async def test_steps_that_keep_failing_end_the_run_with_what_is_done() -> None:
    full = ("s2", "book_hotel", {"name": "Full House"})
    backend = Double(plan(FIRST, full), plan(full), plan(full))
    with pytest.raises(PlanFailed, match="no room") as caught:
        await Agent(backend, tools=TOOLS).run("Go", mode="plan")
    assert caught.value.results == {"s1": ["Oslo Inn", "Oslo Palace"]}
    assert len(caught.value.steps) == 3


async def test_a_user_may_write_the_plan() -> None:
    given = Plan(
        steps=(
            PlanStep(id="look", tool="search_hotels", arguments={"city": "Rome"}),
            PlanStep(id="book", tool="book_hotel", arguments={"name": "$look[0]"}, on_error="skip"),
        )
    )
    backend = Double(says("Booked."))
    result = await Agent(backend, tools=TOOLS).run("Go", plan=given)
    assert backend.told()[1] == "booked Rome Inn for 1"
    assert result.plan == given
    with pytest.raises(PlanInvalid, match="no tool `fly`"):
        await Agent(Double(), tools=TOOLS).run(
            "Go", plan=Plan(steps=(PlanStep(id="a", tool="fly"),))
        )


async def test_a_plan_may_be_looked_at_before_it_runs() -> None:
    agent = Agent(Double(plan(FIRST, SECOND), says("Booked.")), tools=TOOLS)
    made = await agent.plan("Go")
    assert ran == []
    assert "s1 --> s2" in made.mermaid()
    assert (await agent.run("Go", plan=made)).output == "Booked."


@pytest.mark.parametrize(
    ("prompt", "kinds"),
    [
        ("Search for a hotel in Oslo and pay 5 for it", ["plan", "answer"]),
        ("Pay 5", ["route"]),
        ("What is it like in Oslo?", ["route"]),
    ],
)
async def test_auto_plans_only_where_two_tools_look_needed(prompt, kinds) -> None:
    replies = [plan(FIRST), says("Done.")] if "plan" in kinds else [says("Done.")]
    backend = Double(*replies)
    await Agent(backend, tools=TOOLS).run(prompt, mode="auto")
    assert [r.kind for r in backend.requests] == kinds


@pytest.mark.parametrize(
    ("prompt", "names", "several"),
    [
        (
            "What is the weather in Oslo, and what is on there?",
            ["getWeather", "listOnEvents"],
            False,
        ),
        ("What is the weather, and what events are there?", ["getWeather", "listEvents"], True),
        ("The area of a circle of 3 cm", ["circle_area", "triangle_area"], False),
        ("The areas of a circle and a triangle", ["circle_area", "triangle_area"], True),
        ("Convert 5 miles", ["convert_length"], False),
    ],
)
def test_a_tool_looks_needed_by_words_that_no_other_tool_has(prompt, names, several) -> None:
    assert looks_like_several(prompt, [ToolSpec(name=name) for name in names]) is several


async def test_a_plan_with_a_call_that_waits_pauses_and_goes_on() -> None:
    backend = Double(plan(FIRST, ("s2", "pay", {"amount": 5})))
    with pytest.raises(RunPaused) as caught:
        await Agent(backend, tools=TOOLS).run("Go", mode="plan")
    assert ran == ["search Oslo"]
    state = RunState.from_json(caught.value.state.to_json())
    after = Double(says("Paid."))
    result = await Agent(after, tools=TOOLS).resume(state, approvals={"s2": True})
    assert (result.output, ran) == ("Paid.", ["search Oslo", "pay"])
    assert after.told()[1] == "paid 5"


async def test_a_planned_run_that_broke_off_goes_on_from_its_journal(tmp_path) -> None:
    journal = Journal(tmp_path / "runs.sqlite")
    first = Double(plan(FIRST, SECOND), Unavailable("gone"))
    with pytest.raises(Unavailable):
        await Agent(first, tools=TOOLS).run("Go", mode="plan", journal=journal.run("r"))
    result = await Agent(Double(says("Booked.")), tools=TOOLS).run(
        "Go", mode="plan", journal=journal.run("r")
    )
    assert (result.output, len(ran)) == ("Booked.", 2)
    journal.close()


async def test_limits_hold_in_plans_too() -> None:
    backend = Double(plan(FIRST, ("s2", "search_hotels", {"city": "Rome"})))
    with pytest.raises(LimitExceeded, match="limit of 1 tool calls"):
        await Agent(backend, tools=TOOLS, limits=UsageLimits(tool_calls=1)).run("Go", mode="plan")


async def test_a_plan_that_is_cut_is_made_again_with_more_room() -> None:
    backend = Double(ends("length", '{"steps": ['), plan(FIRST), says("Found."))
    assert (await Agent(backend, tools=TOOLS).run("Go", mode="plan")).output == "Found."


async def test_a_typed_output_is_asked_for_after_the_plan() -> None:
    backend = Double(plan(FIRST), says("2"))
    result = await Agent(backend, tools=TOOLS, output_type=int).run("Go", mode="plan")
    assert result.output == 2
    assert backend.requests[1].schema == {"type": "integer"}


async def test_without_tools_there_is_nothing_to_plan() -> None:
    with pytest.raises(PlanInvalid, match="has no tools"):
        await Agent(Double()).run("Go", mode="plan")
