"""Runs that stop and go on: paused for a person, or killed at any point and resumed from a journal."""

import random
from pathlib import Path

import pytest

from agentdiff.agent import (
    Agent,
    Committed,
    Drafting,
    Journal,
    RunFinished,
    RunState,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
    UsageLimits,
    tool,
)
from agentdiff.errors import (
    BackendError,
    ConfigurationError,
    LimitExceeded,
    RunPaused,
    StoreError,
    Unavailable,
)
from agentdiff.messages import Usage
from tests.agent.doubles import Double, Reply, calls, says
from tests.agent.journaled_run import check, run_with_kills


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Counted:
    """A tool that remembers how often it ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []

        @tool
        async def note(n: int) -> str:
            self.ran.append(n)
            return f"noted {n}"

        self.tool = note


async def paused(agent: Agent[str], **options) -> RunState:
    with pytest.raises(RunPaused) as caught:
        await agent.run("Go", **options)
    state = caught.value.state
    assert isinstance(state, RunState)
    return state


TURN = calls(("note", {"n": 1}), ("pay", {"amount": 5}))


async def test_a_paused_run_goes_on_elsewhere_without_doing_anything_twice() -> None:
    counted = Counted()
    before = Double(TURN)
    state = await paused(Agent(before, tools=[counted.tool, pay], instructions="Be kind."))
    text = state.to_json()
    assert RunState.from_json(text) == state

    after = Double(says("done"))
    agent = Agent(after, tools=[counted.tool, pay], instructions="Be kind.")
    result = await agent.resume(RunState.from_json(text), approvals={"c2": True})
    assert result.output == "done"
    assert after.told() == ["noted 1", "paid 5"]
    assert counted.ran == [1]
    assert (len(before.requests), len(after.requests)) == (1, 1)
    assert result.usage == Usage(input_tokens=20, output_tokens=10, requests=2)
    assert [step.number for step in result.steps] == [1, 2]
    assert after.requests[0].messages[0].content == "Be kind."


@pytest.mark.parametrize(("answer", "told"), [(False, "this call"), ("no money", ": no money")])
async def test_a_call_that_is_denied_is_told(answer, told) -> None:
    counted = Counted()
    state = await paused(Agent(Double(TURN), tools=[counted.tool, pay]))
    after = Double(says("sorry"))
    await Agent(after, tools=[counted.tool, pay]).resume(state, approvals={"c2": answer})
    assert after.told()[1].endswith(told)


async def test_a_call_that_nobody_has_spoken_of_pauses_again() -> None:
    turn = calls(("pay", {"amount": 1}), ("pay", {"amount": 2}))
    state = await paused(Agent(Double(turn), tools=[pay]))
    with pytest.raises(RunPaused) as caught:
        await Agent(Double(), tools=[pay]).resume(state, approvals={"c2": True})
    assert [call.id for call in caught.value.pending] == ["c1"]  # pyright: ignore[reportAttributeAccessIssue]
    again = caught.value.state
    assert isinstance(again, RunState)
    after = Double(says("done"))
    await Agent(after, tools=[pay]).resume(again, approvals={"c1": True})
    assert after.told() == ["paid 1", "paid 2"]


async def test_what_stands_behind_a_sequential_call_that_waits_is_not_begun() -> None:
    counted = Counted()

    @tool(approval=True, sequential=True)
    async def gate() -> str:
        return "open"

    turn = calls(("note", {"n": 1}), ("gate", {}), ("note", {"n": 2}))
    state = await paused(Agent(Double(turn), tools=[counted.tool, gate]))
    assert counted.ran == [1]
    after = Double(says("done"))
    await Agent(after, tools=[counted.tool, gate]).resume(state, approvals={"c2": True})
    assert after.told() == ["noted 1", "open", "noted 2"]
    assert counted.ran == [1, 2]


async def test_a_sequential_call_waits_for_a_call_before_it_that_waits() -> None:
    counted = Counted()

    @tool(sequential=True)
    async def settle() -> str:
        counted.ran.append(0)
        return "settled"

    turn = calls(("note", {"n": 1}), ("pay", {"amount": 5}), ("settle", {}), ("note", {"n": 2}))
    tools = [counted.tool, pay, settle]
    state = await paused(Agent(Double(turn), tools=tools))
    assert ([call.id for call in state.pending], counted.ran) == (["c2"], [1])
    after = Double(says("done"))
    await Agent(after, tools=tools).resume(state, approvals={"c2": True})
    assert after.told() == ["noted 1", "paid 5", "settled", "noted 2"]
    assert counted.ran == [1, 0, 2]


async def test_limits_count_what_was_spent_before_the_pause() -> None:
    state = await paused(Agent(Double(TURN), tools=[Counted().tool, pay]))
    agent = Agent(Double(), tools=[Counted().tool, pay])
    with pytest.raises(LimitExceeded, match="limit of 1 requests"):
        await agent.resume(state, approvals={"c2": True}, limits=UsageLimits(requests=1))


async def test_the_state_of_another_agent_is_refused() -> None:
    state = await paused(Agent(Double(TURN), tools=[Counted().tool, pay]))
    with pytest.raises(ConfigurationError, match="of agent 'agent', and this one is 'other'"):
        await Agent(Double(), name="other").resume(state)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "agentdiff-run-2"}'])
def test_what_is_no_state_is_refused_in_one_line(text) -> None:
    with pytest.raises(ConfigurationError, match="not the state of a run") as caught:
        RunState.from_json(text)
    assert "\n" not in str(caught.value)


async def test_an_approval_of_a_call_that_does_not_wait_is_refused() -> None:
    state = await paused(Agent(Double(TURN), tools=[Counted().tool, pay]))
    with pytest.raises(
        ConfigurationError, match=r"names 'c1', and these calls wait: 'c2' \(`pay`\)"
    ):
        await Agent(Double(), tools=[Counted().tool, pay]).resume(state, approvals={"c1": True})


async def test_a_run_that_goes_on_is_told_as_events_too() -> None:
    counted = Counted()
    first = calls(("note", {"n": 1}))
    state = await paused(Agent(Double(first, TURN), tools=[counted.tool, pay]))
    agent = Agent(Double(says("done")), tools=[counted.tool, pay])
    async with agent.resume_events(state, approvals={"c2": True}) as events:
        seen = [event async for event in events]
    assert [type(event) for event in seen] == [
        StepFinished,  # of an earlier life
        ToolStarted,  # what had waited
        ToolFinished,
        StepFinished,
        StepStarted,
        Drafting,
        Committed,
        StepFinished,
        RunFinished,
    ]
    match seen:
        case [_, ToolStarted(call=call), *_, RunFinished(result=result)]:
            assert call.name == "pay"
            assert (result.output, counted.ran) == ("done", [1, 1])
        case _:
            pytest.fail(f"{seen}")


async def test_a_pause_and_a_wrong_state_come_through_the_events_as_they_are() -> None:
    state = await paused(Agent(Double(TURN), tools=[Counted().tool, pay]))
    with pytest.raises(RunPaused):
        async with Agent(Double(), tools=[Counted().tool, pay]).resume_events(state) as events:
            assert [event async for event in events]
    with pytest.raises(ConfigurationError, match="of agent 'agent'"):
        async with Agent(Double(), name="other").resume_events(state):
            pass


# -- the journal ----


def journaled(*replies: Reply, counted: Counted) -> tuple[Double, Agent[str]]:
    backend = Double(*replies)
    return backend, Agent(backend, tools=[counted.tool, pay])


@pytest.fixture
def journal(tmp_path: Path):
    journal = Journal(tmp_path / "deeper" / "runs.sqlite")
    yield journal
    journal.close()


async def test_a_run_that_broke_off_goes_on_from_its_journal(journal: Journal) -> None:
    counted = Counted()
    first = [calls(("note", {"n": 1})), calls(("note", {"n": 2})), Unavailable("gone")]
    _, agent = journaled(*first, counted=counted)
    with pytest.raises(BackendError):
        await agent.run("Go", journal=journal.run("r"))
    assert journal.unfinished() == ["r"]

    backend, agent = journaled(calls(("note", {"n": 3})), says("done"), counted=counted)
    result = await agent.run("Go", journal=journal.run("r"))
    assert result.output == "done"
    assert counted.ran == [1, 2, 3]
    assert len(backend.requests) == 2
    assert result.usage.requests == 4
    assert [step.calls[0].result for step in result.steps[:3]] == ["noted 1", "noted 2", "noted 3"]
    assert journal.unfinished() == []


async def test_a_run_that_has_ended_gives_its_result_again_and_does_nothing(journal) -> None:
    counted = Counted()
    _, agent = journaled(calls(("note", {"n": 1})), says("done"), counted=counted)
    once = await agent.run("Go", journal=journal.run("r"))
    backend, agent = journaled(counted=counted)
    again = await agent.run("Go", journal=journal.run("r"))
    assert (again.output, again.messages, again.usage) == (once.output, once.messages, once.usage)
    assert (backend.requests, counted.ran) == ([], [1])


async def test_a_paused_run_goes_on_from_its_journal(journal: Journal) -> None:
    counted = Counted()
    _, agent = journaled(TURN, counted=counted)
    await paused(agent, journal=journal.run("r"))
    backend, agent = journaled(says("done"), counted=counted)
    run = journal.run("r")
    result = await agent.resume(run.state(), approvals={"c2": True}, journal=run)
    assert backend.told() == ["noted 1", "paid 5"]
    assert (result.output, counted.ran, journal.unfinished()) == ("done", [1], [])


async def test_another_task_under_the_same_id_is_refused(journal: Journal) -> None:
    _, agent = journaled(says("done"), counted=Counted())
    await agent.run("Go", journal=journal.run("r"))
    with pytest.raises(ConfigurationError, match="a run 'r' with the prompt 'Go'"):
        await agent.run("Stay", journal=journal.run("r"))
    journal.forget("r")
    with pytest.raises(ConfigurationError, match="there is no run 'r'"):
        journal.run("r").state()


async def test_one_at_a_time_goes_on_with_a_run(journal: Journal) -> None:
    counted = Counted()
    old = journal.run("r")
    _, first = journaled(calls(("note", {"n": 1})), says("done"), counted=counted)
    async with first.run_events("Go", journal=old) as events:
        async for event in events:
            if isinstance(event, ToolFinished):
                _, second = journaled(says("done"), counted=counted)
                await second.run("Go", journal=journal.run("r"))
                break
    with pytest.raises(StoreError, match="was taken over or forgotten"):
        await old.end()


async def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    path.write_text("not a database, and longer than its header would be")
    with pytest.raises(StoreError, match="cannot be used"):
        Journal(path).unfinished()


def test_an_id_is_not_empty(journal: Journal) -> None:
    with pytest.raises(ConfigurationError, match="an id that is not empty"):
        journal.run("")


def test_a_run_of_twenty_steps_that_is_killed_again_and_again_repeats_nothing(tmp_path) -> None:
    """`tests/benchmarks/agent_crashes.py` does the same many more times."""
    assert run_with_kills(tmp_path, chance=random.Random(7), kills=3) > 0
    check(tmp_path)
