"""The event stream: order, end, and leaving early."""

from collections.abc import AsyncIterator

import anyio
import pytest

from agentdiff.agent import (
    Agent,
    Committed,
    Drafting,
    RunEvent,
    RunFinished,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
    tool,
)
from agentdiff.errors import ConfigurationError, LimitExceeded, OutOfScope, RateLimited
from tests.agent.doubles import Double, calls, ends, says


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def events_of(agent: Agent[str], prompt: str = "Go") -> list[RunEvent]:
    async with agent.run_events(prompt) as events:
        return [event async for event in events]


async def test_everything_that_happens_is_told_in_order() -> None:
    agent = Agent(Double(calls(("add", {"a": 1, "b": 2})), says("three")), tools=[add])
    events = await events_of(agent)
    assert [type(event) for event in events] == [
        StepStarted,
        Committed,
        ToolStarted,
        ToolFinished,
        StepFinished,
        StepStarted,
        Drafting,
        Committed,
        StepFinished,
        RunFinished,
    ]
    match events:
        case [
            StepStarted(number=1, kind="route"),
            _,
            ToolStarted(call=call),
            ToolFinished(call=same, record=record),
            StepFinished(record=first),
            StepStarted(number=2),
            Drafting(number=2, text="t␣"),
            Committed(number=2, text="three"),
            StepFinished(record=second),
            RunFinished(result=result),
        ]:
            assert call == same
            assert record.result == 3
            assert result.steps == (first, second)
            assert result.output == "three"
        case _:
            pytest.fail(f"{events}")


async def test_run_gives_the_result_that_the_events_end_with() -> None:
    def agent() -> Agent[str]:
        return Agent(Double(says("three")))

    last = (await events_of(agent()))[-1]
    assert isinstance(last, RunFinished)
    result = await agent().run("Go")
    assert (last.result.output, last.result.messages) == (result.output, result.messages)


async def test_a_cut_attempt_starts_its_step_again() -> None:
    events = await events_of(Agent(Double(ends("length", "stu"), says("whole"))))
    starts = [event for event in events if isinstance(event, StepStarted)]
    assert [start.number for start in starts] == [1, 1]
    assert starts[1].budget.ceiling == 2 * starts[0].budget.ceiling


@pytest.mark.parametrize(
    ("reply", "error"), [(ends("refused"), OutOfScope), (RateLimited("wait"), RateLimited)]
)
async def test_an_error_of_the_run_is_raised_by_the_iterator_as_it_is(reply, error) -> None:
    seen: list[RunEvent] = []

    async def read(events: AsyncIterator[RunEvent]) -> None:
        async for event in events:
            seen.append(event)  # noqa: PERF401 (what came before the error is kept)

    async with Agent(Double(reply)).run_events("Go") as events:
        with pytest.raises(error):
            await read(events)
    assert isinstance(seen[0], StepStarted)
    assert not any(isinstance(event, RunFinished) for event in seen)


async def test_an_error_of_the_run_comes_through_the_context_as_it_is() -> None:
    with pytest.raises(OutOfScope):
        await events_of(Agent(Double(ends("refused"))))


async def test_an_error_of_the_reader_is_raised_as_it_is() -> None:
    backend = Double(says("three"), hang_at=0)

    async def read() -> None:
        async with Agent(backend).run_events("Go") as events:
            await anext(events)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert backend.open == 0


async def test_leaving_early_closes_the_stream_of_the_backend() -> None:
    backend = Double(says("three"), hang_at=0)
    async with Agent(backend).run_events("Go") as events:
        async for event in events:
            assert isinstance(event, StepStarted)
            break
    assert backend.open == 0


async def test_leaving_early_stops_the_tools() -> None:
    stopped: list[str] = []

    @tool
    async def wait(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(name)

    backend = Double(calls(("wait", {"name": "a"}), ("wait", {"name": "b"})))
    async with Agent(backend, tools=[wait]).run_events("Go") as events:
        started = 0
        async for event in events:
            started += isinstance(event, ToolStarted)
            if started == 2:
                break
        await anyio.wait_all_tasks_blocked()
    assert sorted(stopped) == ["a", "b"]


async def test_cancelling_a_run_leaves_nothing_open() -> None:
    backend = Double(says("three"), hang_at=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Agent(backend).run, "Go")
        await anyio.wait_all_tasks_blocked()
        assert backend.open == 1
        tasks.cancel_scope.cancel()
    assert backend.open == 0


async def test_cancelling_the_reader_cancels_the_run() -> None:
    backend = Double(says("three"), hang_at=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(events_of, Agent(backend))
        await anyio.wait_all_tasks_blocked()
        assert backend.open == 1
        tasks.cancel_scope.cancel()
    assert backend.open == 0


async def test_a_reader_may_be_slow() -> None:
    replies = [calls(("add", {"a": n, "b": 1})) for n in range(24)]
    seen = 0
    async with Agent(Double(*replies, says("done")), tools=[add]).run_events("Go") as events:
        async for _ in events:
            seen += 1
            await anyio.lowlevel.checkpoint()
    assert seen == 24 * 5 + 5


async def test_the_end_stays_the_end() -> None:
    async with Agent(Double(says("three"))).run_events("Go") as events:
        assert len([event async for event in events]) == 5
        assert [event async for event in events] == []


async def test_an_empty_prompt_is_refused_at_the_door() -> None:
    with pytest.raises(ConfigurationError, match="the prompt is empty"):
        await events_of(Agent(Double(says("three"))), "")


async def test_many_runs_of_one_agent_may_be_under_way_at_once() -> None:
    agent = Agent(Double(says("three"), repeat_last=True))
    outputs: list[str] = []

    async def one() -> None:
        outputs.append((await agent.run("Go")).output)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(one)
    assert outputs == ["three"] * 20


async def test_a_limit_reached_is_raised_by_the_iterator() -> None:
    backend = Double(calls(("add", {"a": 1, "b": 1})), repeat_last=True)
    with pytest.raises(LimitExceeded, match="identical turns"):
        await events_of(Agent(backend, tools=[add]))
