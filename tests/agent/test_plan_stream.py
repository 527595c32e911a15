"""Plans that begin while they are still being written."""

import json
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.agent import Agent, Journal, tool
from agentdiff.agent.events import StepRecord
from agentdiff.agent.plan import PlanStep
from agentdiff.agent.plan_stream import PlanStream
from agentdiff.errors import PlanFailed, PlanInvalid, Unavailable
from agentdiff.generation import Commit, Event, Finish
from tests.agent.doubles import Double, ends, says, spent

FIRST = {"id": "s1", "tool": "double", "arguments": {"n": 1}}
SECOND = {"id": "s2", "tool": "double", "arguments": {"n": "$s1"}}
THIRD = {"id": "s3", "tool": "double", "arguments": {"n": 5}}
WRONG = {"id": "s2", "tool": "fly", "arguments": {}}


@tool
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


def text_of(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": list(steps)})


def pieces(*texts: str) -> list[Event]:
    return [*map(Commit, texts), Finish(reason="stop", usage=spent(), model="double-1")]


class Waiting(Double):
    """Writes the rest of its first reply when an event has come."""

    def __init__(self, event: anyio.Event, *replies: Any) -> None:
        super().__init__(*replies)
        self._event = event

    async def _events(self, number: int):
        async with aclosing(super()._events(number)) as events:
            async for event in events:
                if number == 0 and isinstance(event, Finish):
                    await self._event.wait()
                yield event


def watched() -> tuple[list[int], anyio.Event, Any]:
    """What was called, an event that the first call sets, and the tool."""
    called: list[int] = []
    begun = anyio.Event()

    @tool(name="double")
    async def noted(n: int) -> int:
        """Double a number."""
        called.append(n)
        begun.set()
        return 2 * n

    return called, begun, noted


async def test_a_step_runs_while_the_plan_is_still_written() -> None:
    called, begun, noted = watched()
    whole = text_of(FIRST, SECOND)
    cut = whole.index("}") + 2
    backend = Waiting(begun, pieces(whole[:cut], whole[cut:]), says("Done."))
    with anyio.fail_after(10):
        result = await Agent(backend, tools=[noted]).run("Go", mode="plan")
    assert (result.output, called) == ("Done.", [1, 2])
    assert backend.told() == ["2", "4"]
    assert result.plan is not None
    assert [step.id for step in result.plan.steps] == ["s1", "s2"]
    assert [(step.kind, len(step.calls)) for step in result.steps] == [("plan", 2), ("answer", 0)]


async def test_what_began_before_an_invalid_step_is_kept_and_never_runs_again() -> None:
    called, begun, noted = watched()
    backend = Waiting(
        begun, pieces(text_of(FIRST, WRONG, THIRD)), pieces(text_of(SECOND)), says("Done.")
    )
    result = await Agent(backend, tools=[noted]).run("Go", mode="plan")
    assert (result.output, called) == ("Done.", [1, 2])  # the third stood behind the wrong one
    shown = backend.requests[1].messages[-1].content
    assert "no tool `fly`" in shown
    assert "`s1` have run" in shown
    assert backend.told() == ["2", "4"]


async def test_an_invalid_plan_ends_the_run_when_it_may_not_be_mended() -> None:
    called, _, noted = watched()
    agent = Agent(Double(pieces(text_of(FIRST, WRONG))), tools=[noted], max_output_repairs=0)
    with pytest.raises(PlanInvalid, match="no tool `fly`") as caught:
        await agent.run("Go", mode="plan")
    assert called == [1]
    (step,) = caught.value.steps
    assert isinstance(step, StepRecord)
    assert [call.result for call in step.calls] == [2]


async def test_a_plan_that_is_cut_keeps_what_began_when_it_is_made_again() -> None:
    called, _, noted = watched()
    half = text_of(FIRST)[:-1]
    again = pieces(text_of(FIRST, SECOND))
    result = await Agent(Double(ends("length", half), again, says("Done.")), tools=[noted]).run(
        "Go", mode="plan"
    )
    assert (result.output, called) == ("Done.", [1, 2])


async def test_a_step_that_is_written_otherwise_the_second_time_stays_as_it_began() -> None:
    called, _, noted = watched()
    other = FIRST | {"arguments": {"n": 7}}
    backend = Double(
        ends("length", text_of(FIRST)[:-1]),
        pieces(text_of(other)),
        pieces(text_of(SECOND)),
        says("Done."),
    )
    result = await Agent(backend, tools=[noted]).run("Go", mode="plan")
    assert (result.output, called) == ("Done.", [1, 2])
    assert "`s1`: it has begun as a call of `double`" in backend.requests[2].messages[-1].content


async def test_a_plan_cut_for_good_after_its_first_steps_is_planned_on() -> None:
    called, _, noted = watched()
    half = ends("length", text_of(FIRST)[:-1])
    backend = Double(half, pieces(text_of(SECOND)), says("Done."))
    result = await Agent(backend, tools=[noted], cut_retries=0).run("Go", mode="plan")
    assert (result.output, called) == ("Done.", [1, 2])


async def test_a_backend_that_fails_in_the_plan_ends_the_run_with_its_own_error() -> None:
    class Failing(Double):
        async def _events(self, number: int):
            yield Commit(text_of(FIRST)[:-1])
            raise Unavailable("gone")

    with pytest.raises(Unavailable, match="gone"):
        await Agent(Failing(), tools=[double]).run("Go", mode="plan")


async def test_a_step_that_must_not_fail_stops_the_writing_too() -> None:
    @tool
    async def fail() -> None:
        raise ValueError("no")

    never = anyio.Event()
    step = {"id": "s1", "tool": "fail", "on_error": "fail"}
    backend = Waiting(never, pieces(text_of(step)))
    with anyio.fail_after(10), pytest.raises(PlanFailed, match="no"):
        await Agent(backend, tools=[fail]).run("Go", mode="plan")
    assert backend.open == 0


async def test_with_a_journal_nothing_begins_before_the_plan_is_written_down(tmp_path) -> None:
    called, _, noted = watched()
    journal = Journal(tmp_path / "runs.sqlite")

    class Dying(Double):
        async def _events(self, number: int):
            yield Commit(text_of(FIRST, SECOND))
            raise Unavailable("gone")

    with pytest.raises(Unavailable):
        await Agent(Dying(), tools=[noted]).run("Go", mode="plan", journal=journal.run("r"))
    assert called == []
    journal.close()


@given(st.data())
def test_a_plan_in_any_pieces_gives_each_step_once_and_in_order(data) -> None:
    whole = text_of(FIRST, SECOND, THIRD)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=12)))
    stream = PlanStream({"double": double}, known={})
    given_ids: list[str] = []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        ready = [step.id for step in stream.read(whole[begin:end])]
        given_ids += ready
        assert all(whole[:end].count("}") >= 2 * (at + 1) for at in range(len(given_ids)))
    assert given_ids == ["s1", "s2", "s3"]


def test_a_step_waits_in_the_text_for_the_one_it_refers_to() -> None:
    stream = PlanStream({"double": double}, known={})
    early = text_of(SECOND, FIRST)
    cut = early.index("}") + 2
    assert list(stream.read(early[:cut])) == []
    assert [step.id for step in stream.read(early[cut:])] == ["s1", "s2"]


@pytest.mark.parametrize("text", ["", "Here is a plan: ", '{"steps": [{"id": 3}]}', text_of(WRONG)])
def test_what_is_no_plan_gives_no_step(text) -> None:
    stream = PlanStream({"double": double}, known={})
    assert list(stream.read(text)) == []
    assert stream.taken == ()


def test_a_known_id_is_not_taken_again() -> None:
    stream = PlanStream({"double": double}, known={"s1": "double"})
    assert list(stream.read(text_of(FIRST))) == []
    again = PlanStream({"double": double}, known={"s1": "double"})
    assert list(again.read(text_of(SECOND))) == [PlanStep.model_validate(SECOND)]
