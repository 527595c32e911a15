"""The loop, reply by reply: what is asked, what is run, what is told, how it ends."""

import gc
import json
from dataclasses import dataclass

import anyio
import pytest
from pydantic import BaseModel

from agentdiff.agent import Agent, RunResult, StepRecord, UsageLimits, tool
from agentdiff.agent.limits import Spending
from agentdiff.agent.run import Run
from agentdiff.errors import (
    AgentDiffError,
    BackendError,
    BudgetExceeded,
    BudgetTooSmall,
    ConfigurationError,
    LimitExceeded,
    OutOfScope,
    OutputInvalid,
    ProtocolError,
    RateLimited,
    TimedOut,
    ToolFailed,
)
from agentdiff.generation import Budget, Capabilities, Commit, Finish, Sampling, Stats
from agentdiff.length import LengthPredictor
from agentdiff.messages import Message, Usage, assistant, system, user
from tests.agent.doubles import Double, calls, ends, says, spent


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def note(text: str) -> str:
    """Keep a text."""
    return f"noted: {text}"


@tool
def broken(why: str) -> None:
    """Fail."""
    raise ValueError(why)


@tool
def unwilling() -> None:
    """Fail on purpose."""
    raise ToolFailed("not today; try tomorrow")


class City(BaseModel):
    name: str
    people: int


HELSINKI = '{"name":"Helsinki","people":684000}'


# -- the way through ----


async def test_without_tools_the_first_reply_is_the_answer() -> None:
    backend = Double(says("Hello."))
    result = await Agent(backend, instructions="Be kind.").run("Hi")
    assert result.output == "Hello."
    assert result.messages == (system("Be kind."), user("Hi"), assistant("Hello."))
    assert result.new_messages == result.messages[1:]
    assert [(s.number, s.kind, s.text) for s in result.steps] == [(1, "answer", "Hello.")]
    assert result.usage == Usage(input_tokens=10, output_tokens=5, requests=1)
    assert result.model == "double-1"
    assert backend.requests[0].kind == "answer"


async def test_tools_are_called_and_their_results_lead_to_the_answer() -> None:
    backend = Double(
        calls(("add", {"a": 1, "b": 2})), calls(("note", {"text": "3"})), says("3, and noted.")
    )
    result = await Agent(backend, tools=[add, note]).run("Add 1 and 2, keep it.")
    assert result.output == "3, and noted."
    assert [(s.kind, [(c.tool, c.result) for c in s.calls]) for s in result.steps] == [
        ("route", [("add", 3)]),
        ("route", [("note", "noted: 3")]),
        ("answer", []),
    ]
    assert backend.told() == ["3", "noted: 3"]
    assert [r.kind for r in backend.requests] == ["route"] * 3
    assert [spec.name for spec in backend.requests[0].tools] == ["add", "note"]
    assert result.usage.requests == 3


async def test_plain_functions_are_tools_too() -> None:
    def double(x: int) -> int:
        return 2 * x

    backend = Double(calls(("double", {"x": 4})), says("8"))
    assert (await Agent(backend, tools=[double]).run("Double 4")).output == "8"


async def test_a_result_may_be_the_history_of_the_next_run() -> None:
    backend = Double(says("Eve."), says("Eve again."))
    agent = Agent(backend, instructions="New words.")
    first = await agent.run("Who?")
    second = await agent.run("Who now?", history=(system("Old words."), *first.new_messages))
    assert backend.requests[1].messages == (
        system("New words."),
        *first.new_messages,
        user("Who now?"),
    )
    assert second.new_messages == (user("Who now?"), assistant("Eve again."))


async def test_history_keeps_its_system_message_when_the_agent_has_none() -> None:
    backend = Double(says("Yes."))
    await Agent(backend).run("Really?", history=[system("Old words.")])
    assert backend.requests[0].messages == (system("Old words."), user("Really?"))


async def test_sampling_and_the_deadline_reach_the_backend() -> None:
    backend = Double(says("Yes."))
    sampling = Sampling(seed=7)
    await Agent(backend, sampling=sampling, limits=UsageLimits(wall_s=60)).run("Really?")
    assert backend.requests[0].sampling == sampling
    assert 0 < (backend.requests[0].deadline_s or 0) <= 60


def test_run_sync_runs() -> None:
    assert Agent(Double(says("Yes."))).run_sync("Really?").output == "Yes."


async def test_run_sync_inside_an_event_loop_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"use `await agent\.run"):
        Agent(Double(says("Yes."))).run_sync("Really?")


# -- calls of one turn ----


async def test_the_calls_of_a_turn_run_at_once_and_answer_in_order() -> None:
    meeting = anyio.Event()

    @tool
    async def wait() -> str:
        await meeting.wait()
        return "waited"

    @tool
    async def wake() -> str:
        meeting.set()
        return "woke"

    backend = Double(calls(("wait", {}), ("wake", {})), says("done"))
    with anyio.fail_after(5):
        result = await Agent(backend, tools=[wait, wake]).run("Go")
    assert backend.told() == ["waited", "woke"]
    assert [c.tool for c in result.steps[0].calls] == ["wait", "wake"]


async def test_a_sequential_tool_runs_alone() -> None:
    running: set[str] = set()
    seen: list[tuple[str, frozenset[str]]] = []

    async def work(name: str) -> None:
        running.add(name)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        seen.append((name, frozenset(running)))
        running.discard(name)

    @tool
    async def free(name: str) -> None:
        await work(name)

    @tool(sequential=True)
    async def alone(name: str) -> None:
        await work(name)

    turn = [("free", "a"), ("free", "b"), ("alone", "c"), ("free", "d"), ("free", "e")]
    backend = Double(calls(*((tool, {"name": name}) for tool, name in turn)), says("done"))
    await Agent(backend, tools=[free, alone]).run("Go")
    together = dict(seen)
    assert together["c"] == {"c"}
    assert {"a", "b"} in together.values()
    assert {"d", "e"} in together.values()
    assert [name for name, _ in seen].index("c") == 2


@pytest.mark.parametrize("ids", [["x", "x"], ["", ""], ["call_1", ""]])
async def test_ids_that_are_missing_or_doubled_lose_no_call(ids: list[str]) -> None:
    turn = calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}), ids=ids)
    backend = Double(turn, turn, says("done"))
    result = await Agent(backend, tools=[add], limits=UsageLimits(identical_turns=None)).run("Go")
    assert backend.told() == ["2", "4", "2", "4"]
    asked = [call.id for message in result.messages for call in message.tool_calls]
    answered = [message.call_id for message in result.messages if message.role == "tool"]
    assert asked == answered
    assert len(set(asked)) == 4
    assert "" not in asked


@dataclass
class Point:
    x: int
    label: str


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("näkö", "näkö"),
        ("", ""),
        (None, "null"),
        (1.5, "1.5"),
        ({"a": [1, "ä"]}, '{"a":[1,"ä"]}'),
        (Point(1, "p"), '{"x":1,"label":"p"}'),
        (City(name="Oulu", people=1), '{"name":"Oulu","people":1}'),
        ((1, 2), "[1,2]"),
        (b"\xff", "b'\\xff'"),
        (ToolFailed, str(ToolFailed)),
    ],
)
async def test_a_result_is_told_as_it_is_or_as_compact_json(value, told) -> None:
    def get() -> object:
        return value

    backend = Double(calls(("get", {})), says("done"))
    await Agent(backend, tools=[get]).run("Go")
    assert backend.told() == [told]


async def test_a_result_that_contains_itself_is_told_somehow() -> None:
    def get() -> object:
        ring: list[object] = []
        ring.append(ring)
        return ring

    backend = Double(calls(("get", {})), says("done"))
    await Agent(backend, tools=[get]).run("Go")
    assert backend.told() == ["[[...]]"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("nope", {}), "error: there is no tool 'nope'; the tools are add, broken, unwilling"),
        (("broken", {"why": "no disk"}), "error: ValueError: no disk"),
        (("broken", {"why": ""}), "error: ValueError"),
        (("unwilling", {}), "error: not today; try tomorrow"),
    ],
)
async def test_a_tool_that_fails_is_told_to_the_model_and_recorded(call, told) -> None:
    backend = Double(calls(call, ("add", {"a": 1, "b": 1})), says("done"))
    result = await Agent(backend, tools=[add, broken, unwilling]).run("Go")
    assert backend.told() == [told, "2"]
    record = result.steps[0].calls[0]
    assert (record.result, record.error) == (None, told.removeprefix("error: "))
    assert result.output == "done"


async def test_wrong_arguments_are_told_in_detail_and_the_model_may_mend_them() -> None:
    backend = Double(
        calls(("add", {"a": "x", "c": 1})), calls(("add", {"a": "1", "b": 2})), says("3")
    )
    result = await Agent(backend, tools=[add]).run("Go")
    first, second = backend.told()
    assert first.startswith("error: the arguments of `add` are invalid: `a`: Input should be")
    assert "`b`: Field required" in first
    assert "`c`: Extra inputs are not permitted" in first
    assert second == "3"
    assert result.output == "3"


# -- typed output ----


async def test_without_tools_the_schema_goes_with_the_first_request() -> None:
    backend = Double(says(HELSINKI, enforcement="in_block"))
    result = await Agent(backend, output_type=City).run("Largest city?")
    assert result.output == City(name="Helsinki", people=684000)
    assert backend.requests[0].schema == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
        "required": ["name", "people"],
        "additionalProperties": False,
    }
    assert result.steps[0].enforcement == "in_block"


async def test_with_tools_the_output_is_asked_for_when_the_model_stops_calling() -> None:
    backend = Double(calls(("add", {"a": 1, "b": 2})), says("It is Helsinki."), says(HELSINKI))
    result = await Agent(backend, tools=[add], output_type=City).run("Largest city?")
    assert result.output.name == "Helsinki"
    assert [r.kind for r in backend.requests] == ["route", "route", "answer"]
    assert [r.schema is not None for r in backend.requests] == [False, False, True]
    assert backend.requests[-1].tools == ()
    assert [s.kind for s in result.steps] == ["route", "route", "answer"]
    assert result.steps[-1].enforcement == "validated"
    assert result.new_messages[-1] == assistant(HELSINKI)
    assert assistant("It is Helsinki.") not in result.messages


async def test_a_reply_that_is_the_output_already_is_taken() -> None:
    backend = Double(says(f"```json\n{HELSINKI}\n```"))
    result = await Agent(backend, tools=[add], output_type=City).run("Largest city?")
    assert result.output.name == "Helsinki"
    assert [s.kind for s in result.steps] == ["answer"]


@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (int, "42", 42),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (Point, '{"x":1,"label":"p"}', Point(1, "p")),
        (dict[str, int], '{"a":1}', {"a": 1}),
    ],
)
async def test_any_type_that_pydantic_reads_is_an_output_type(output_type, text, value) -> None:
    assert (await Agent(Double(says(text)), output_type=output_type).run("Go")).output == value


async def test_an_invalid_output_is_shown_its_faults_and_repaired() -> None:
    backend = Double(says('{"name":"Helsinki"}'), says(HELSINKI))
    result = await Agent(backend, output_type=City).run("Largest city?")
    assert result.output.people == 684000
    assert [(s.kind, s.enforcement) for s in result.steps] == [
        ("answer", "none"),
        ("repair", "repaired"),
    ]
    shown = backend.requests[1].messages
    assert shown[-2] == assistant('{"name":"Helsinki"}')
    assert "`people`: Field required" in shown[-1].content
    assert backend.requests[1].schema == backend.requests[0].schema


async def test_an_output_that_stays_invalid_ends_the_run() -> None:
    backend = Double(says("{}"), says("not json"))
    with pytest.raises(OutputInvalid, match="the output is invalid: Invalid JSON") as caught:
        await Agent(backend, output_type=City).run("Largest city?")
    assert_carries_what_there_was(caught.value, steps=2, requests=2)


async def test_without_repairs_the_first_invalid_output_ends_the_run() -> None:
    backend = Double(says("{}"))
    with pytest.raises(OutputInvalid, match="`name`: Field required"):
        await Agent(backend, output_type=City, max_output_repairs=0).run("Largest city?")
    assert len(backend.requests) == 1


async def test_an_empty_reply_is_asked_for_again_with_the_tools_at_hand() -> None:
    backend = Double(says(" "), calls(("add", {"a": 1, "b": 2})), says("3"))
    result = await Agent(backend, tools=[add]).run("Go")
    assert result.output == "3"
    assert [r.kind for r in backend.requests] == ["route", "repair", "route"]
    assert backend.requests[1].messages[-1] == user("the reply is empty. Reply again.")
    assert backend.requests[1].tools


async def test_an_empty_reply_is_never_an_answer() -> None:
    with pytest.raises(OutputInvalid, match="the reply is empty"):
        await Agent(Double(says(""), repeat_last=True)).run("Go")


# -- cut by the budget ----


async def test_every_request_has_a_budget_and_its_outcome_is_observed() -> None:
    predictor = LengthPredictor()
    agent = Agent(Double(says("Yes."), repeat_last=True), predictor=predictor, name="asker")
    result = await agent.run("Really?")
    budget = result.steps[0].budget
    assert budget is not None
    assert budget.source.startswith("prior")
    again = (await agent.run("Really?")).steps[0].budget
    assert again is not None
    assert again.source.startswith("history:answer/asker")


async def test_a_cut_reply_is_made_once_more_with_twice_the_room() -> None:
    backend = Double(ends("length", '{"a'), calls(("add", {"a": 1, "b": 2})), says("3"))
    result = await Agent(backend, tools=[add]).run("Go")
    first, second = backend.requests[0].budget, backend.requests[1].budget
    assert first is not None
    assert second is not None
    assert second.ceiling == 2 * first.ceiling
    assert backend.requests[0].messages == backend.requests[1].messages
    assert result.output == "3"
    step = result.steps[0]
    assert len(result.steps) == 2
    assert step.warnings == (f"cut at {first.ceiling} tokens; made again with {second.ceiling}",)
    assert (step.stats.attempts, step.usage.output_tokens, step.budget) == (2, 10, second)
    assert result.usage.requests == 3


async def test_a_reply_that_is_cut_twice_ends_the_run_with_the_numbers() -> None:
    backend = Double(ends("length", "a stump"), repeat_last=True)
    with pytest.raises(BudgetExceeded) as caught:
        await Agent(backend, tools=[add]).run("Go")
    assert len(backend.requests) == 2
    budget = backend.requests[1].budget
    assert budget is not None
    assert f"target {budget.target}, ceiling {budget.ceiling}" in str(caught.value)
    assert_carries_what_there_was(caught.value, steps=1, requests=2)
    assert "stump" not in repr((caught.value.messages, caught.value.steps))


async def test_a_backend_that_extends_is_not_asked_again() -> None:
    backend = Double(ends("length", "a stump"), capabilities=Capabilities(extends=True))
    with pytest.raises(BudgetExceeded):
        await Agent(backend).run("Go")
    assert len(backend.requests) == 1


async def test_an_output_that_closed_at_its_ceiling_is_an_output() -> None:
    backend = Double(ends("length", HELSINKI))
    result = await Agent(backend, output_type=City).run("Go")
    assert result.output.name == "Helsinki"


async def test_the_budget_that_was_in_force_is_the_one_that_is_recorded() -> None:
    budget = Budget(target=8, ceiling=16)
    finish = Finish(reason="stop", usage=spent(), stats=Stats(forwards=3), budget=budget)
    result = await Agent(Double([Commit("ok"), finish])).run("Go")
    assert result.steps[0].budget == budget
    assert result.steps[0].stats.forwards == 3


async def test_usage_that_is_unknown_stays_unknown() -> None:
    result = await Agent(Double([Commit("ok"), Finish(reason="stop")])).run("Go")
    assert result.usage == Usage(requests=1)


# -- refusals, limits, failures ----


async def test_a_model_that_finds_no_tool_ends_the_run_and_says_who_may_answer() -> None:
    with pytest.raises(OutOfScope, match=r"^the model found no tool .* API backend") as caught:
        await Agent(Double(ends("refused")), tools=[add]).run("Write a poem")
    step = assert_carries_what_there_was(caught.value, steps=1, requests=1)
    assert step.reason == "refused"


async def test_a_refusal_without_tools_does_not_speak_of_tools() -> None:
    with pytest.raises(OutOfScope, match="declined this request"):
        await Agent(Double(ends("refused"))).run("Write a poem")


async def test_a_loop_of_tool_calls_ends_at_the_limit_of_requests() -> None:
    backend = Double(*(calls(("add", {"a": n, "b": 1})) for n in range(30)))
    with pytest.raises(LimitExceeded, match="limit of 25 requests") as caught:
        await Agent(backend, tools=[add]).run("Go")
    assert len(backend.requests) == 25
    assert_carries_what_there_was(caught.value, steps=25, requests=25)
    assert [m.content for m in told_in(caught.value)][-1] == "25"


async def test_calls_beyond_the_limit_are_not_run_in_part() -> None:
    ran: list[int] = []

    @tool
    def mark(n: int) -> None:
        ran.append(n)

    backend = Double(calls(("mark", {"n": 1})), calls(("mark", {"n": 2}), ("mark", {"n": 3})))
    limits = UsageLimits(tool_calls=2)
    with pytest.raises(LimitExceeded, match="limit of 2 tool calls") as caught:
        await Agent(backend, tools=[mark], limits=limits).run("Go")
    assert ran == [1]
    assert_carries_what_there_was(caught.value, steps=2, requests=2)


async def test_output_tokens_are_limited() -> None:
    backend = Double(*(calls(("add", {"a": n, "b": 1})) for n in range(30)))
    with pytest.raises(LimitExceeded, match="limit of 8 output tokens"):
        await Agent(backend, tools=[add], limits=UsageLimits(output_tokens=8)).run("Go")
    assert len(backend.requests) == 2


async def test_the_wall_clock_stops_what_is_under_way() -> None:
    backend = Double(says("never"), hang_at=0)
    with pytest.raises(LimitExceeded, match=r"limit of 0\.01 seconds"):
        await Agent(backend, limits=UsageLimits(wall_s=0.01)).run("Go")
    assert backend.open == 0


async def test_a_timeout_of_the_backend_is_not_taken_for_the_runs() -> None:
    with pytest.raises(TimedOut):
        await Agent(Double(TimedOut("slow")), limits=UsageLimits(wall_s=60)).run("Go")


async def test_the_same_call_with_the_same_result_is_not_run_a_third_time() -> None:
    ran = 0

    @tool
    def look() -> str:
        nonlocal ran
        ran += 1
        return "nothing"

    backend = Double(calls(("look", {})), repeat_last=True)
    with pytest.raises(LimitExceeded, match="repeated calls of `look`") as caught:
        await Agent(backend, tools=[look]).run("Go")
    assert (ran, len(backend.requests)) == (2, 3)
    assert_carries_what_there_was(caught.value, steps=3, requests=3)


async def test_a_result_that_changes_is_progress() -> None:
    states = iter(["waiting", "queued", "running", "queued", "done"])

    @tool
    def poll() -> str:
        return next(states)

    turn = calls(("poll", {}))
    backend = Double(turn, turn, turn, turn, turn, says("done"))
    result = await Agent(backend, tools=[poll]).run("Go")
    assert result.output == "done"


def test_limits_are_positive() -> None:
    with pytest.raises(ConfigurationError, match=r"`UsageLimits\.requests` must be positive"):
        UsageLimits(requests=0)


@pytest.mark.parametrize("error", [RateLimited("slow down"), ProtocolError("what?")])
async def test_a_backend_that_fails_is_not_hidden(error: BackendError) -> None:
    with pytest.raises(type(error)) as caught:
        await Agent(Double(calls(("add", {"a": 1, "b": 1})), error), tools=[add]).run("Go")
    assert caught.value is error
    step = assert_carries_what_there_was(error, steps=1, requests=1)
    assert (step.reason, [call.result for call in step.calls]) == ("tool_calls", [2])
    assert [message.content for message in told_in(error)] == ["2"]


async def test_whatever_the_backend_refuses_before_it_begins_carries_the_prompt() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        await Agent(Double(BudgetTooSmall(budget=4, needed=30))).run("Go")
    assert (caught.value.messages, caught.value.steps) == ((user("Go"),), ())
    assert caught.value.usage == Usage(requests=0)


async def test_a_stream_without_an_end_is_a_fault_of_the_backend() -> None:
    with pytest.raises(ProtocolError, match="double: the stream ended without `Finish`"):
        await Agent(Double([Commit("half")])).run("Go")


# -- refused before anything runs ----


@pytest.mark.parametrize("prompt", ["", "  \n"])
async def test_an_empty_prompt_is_refused(prompt: str) -> None:
    backend = Double(says("?"))
    with pytest.raises(ConfigurationError, match="the prompt is empty"):
        await Agent(backend).run(prompt)
    assert not backend.requests


def test_more_tools_than_the_backend_takes_are_refused_with_both_numbers() -> None:
    backend = Double(capabilities=Capabilities(max_tools=1))
    with pytest.raises(ConfigurationError, match="at most 1 tools, got 2"):
        Agent(backend, tools=[add, note])
    with pytest.raises(ConfigurationError, match="cannot call tools"):
        Agent(Double(capabilities=Capabilities(tools=False)), tools=[add])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two tools are named `add`"):
        Agent(Double(), tools=[add, tool(name="add")(note.function)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"output_type": Double}, "`output_type` .* cannot be read from JSON"),
        ({"tools": [3]}, "a tool is a `Tool` or a function, got 3"),
        ({"max_output_repairs": -1}, "`max_output_repairs` must not be negative"),
    ],
)
def test_an_agent_that_cannot_work_is_refused(change, says) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Agent(Double(), **change)


def test_a_backend_is_an_object() -> None:
    with pytest.raises(ConfigurationError, match="`backend` must be a Backend, got 'embedded'"):
        Agent("embedded")  # pyright: ignore[reportCallIssue, reportArgumentType]


def conversation(error: AgentDiffError) -> list[Message]:
    return [message for message in error.messages if isinstance(message, Message)]


def told_in(error: AgentDiffError) -> list[Message]:
    return [message for message in conversation(error) if message.role == "tool"]


def assert_carries_what_there_was(
    error: AgentDiffError, *, steps: int, requests: int
) -> StepRecord:
    """Returns the last step."""
    assert len(error.steps) == steps
    assert isinstance(error.usage, Usage)
    assert error.usage.requests == requests
    assert conversation(error)
    asked = [call.id for message in conversation(error) for call in message.tool_calls]
    assert asked == [message.call_id for message in told_in(error)]
    step = error.steps[-1]
    assert isinstance(step, StepRecord)
    return step


def test_a_result_says_its_type() -> None:
    """Types only: a wrong one fails the type check."""

    def number() -> RunResult[int]:
        return Agent(Double(says("42")), output_type=int).run_sync("Go")

    def text() -> RunResult[str]:
        return Agent(Double(says("42"))).run_sync("Go")

    assert number().output == int(text().output)
    assert json.loads(text().output) == 42


async def test_a_run_that_is_over_is_freed_without_the_garbage_collector() -> None:
    def alive() -> int:
        return sum(type(each) in (Run, Spending) for each in gc.get_objects())

    agent = Agent(Double(calls(("note", {"text": "a"})), says("done")), tools=[note])
    gc.collect()
    gc.disable()
    try:
        before = alive()
        await agent.run("Go")
        assert alive() == before
    finally:
        gc.enable()
