"""Whose budget holds, and what happens at its end."""

from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentdiff.agent import Agent, StepSettings, UsageLimits, tool
from agentdiff.errors import BudgetExceeded, BudgetTooSmall, ConfigurationError, LimitExceeded
from agentdiff.generation import Budget, Capabilities
from agentdiff.messages import assistant, user
from tests.agent.doubles import Double, calls, ends, says


@tool(budget=40)
async def small(n: int) -> int:
    return n


@tool(budget=Budget(target=60, ceiling=90))
async def large(n: int) -> int:
    return n


@tool
async def free(n: int) -> int:
    return n


async def sent(
    *,
    tools: Any = (),
    agent: Any = "auto",
    step: Any = None,
    run: Any = None,
) -> Budget | None:
    """The budget that a request is sent with."""
    backend = Double(says("ok"))
    kind = "route" if tools else "answer"
    steps: Any = {kind: StepSettings(budget=step)}
    await Agent(backend, tools=tools, budget=agent, steps=steps).run("Go", budget=run)
    return backend.requests[0].budget


def exactly(tokens: int) -> Budget:
    return Budget(target=tokens, ceiling=tokens)


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ({"agent": 50}, exactly(50)),
        ({"agent": Budget(target=8, ceiling=20)}, Budget(target=8, ceiling=20)),
        ({"agent": 50, "step": 60}, exactly(60)),
        ({"agent": 50, "step": 60, "run": 70}, exactly(70)),
        ({"agent": {"answer": 50}}, exactly(50)),
        ({"agent": 50, "run": {"answer": 70}}, exactly(70)),
        ({"agent": 50, "run": {"repair": 70}}, exactly(50)),
        ({"tools": [small]}, exactly(40)),
        ({"tools": [small, large]}, Budget(target=60, ceiling=90)),
        ({"tools": [small], "agent": 50}, exactly(50)),
        ({"agent": Budget.off()}, None),
        ({"agent": 50, "run": Budget.off()}, None),
    ],
)
async def test_the_nearest_budget_holds(given, budget) -> None:
    assert await sent(**given) == budget


@pytest.mark.parametrize(
    "given", [{}, {"agent": 50, "run": "auto"}, {"tools": [small, free]}, {"agent": {"repair": 5}}]
)
async def test_what_nobody_has_said_is_predicted(given) -> None:
    budget = await sent(**given)
    assert budget is not None
    assert budget.source.startswith("prior")


@pytest.mark.parametrize("budget", [0, -1, True, "much", {"answer": 0}, 1.5])
async def test_what_is_no_budget_is_refused(budget) -> None:
    with pytest.raises(ConfigurationError, match="`budget` must be 'auto', a number of tokens"):
        Agent(Double(), budget=budget)
    with pytest.raises(ConfigurationError, match="`budget` must be"):
        await Agent(Double()).run("Go", budget=budget)


async def test_nothing_goes_beyond_a_budget_that_was_given() -> None:
    backend = Double(ends("length", "a stump"))
    with pytest.raises(BudgetExceeded) as caught:
        await Agent(backend, budget=16).run("Go")
    assert len(backend.requests) == 1
    error = caught.value
    assert (error.predicted, error.allocated, error.used) == (16, 16, 5)


async def test_without_a_budget_the_server_cuts_and_that_is_said() -> None:
    with pytest.raises(BudgetExceeded, match="none was sent") as caught:
        await Agent(Double(ends("length")), budget=Budget.off()).run("Go")
    assert (caught.value.predicted, caught.value.allocated) == (None, None)


async def test_a_step_tells_what_was_predicted_and_what_was_allocated() -> None:
    backend = Double(ends("length", "half"), says("whole"))
    step = (await Agent(backend).run("Go")).steps[0]
    assert step.predicted == backend.requests[0].budget
    assert step.budget == backend.requests[1].budget
    assert step.duration_s is not None


CONTINUES = Capabilities(continues=True)


async def test_a_backend_that_continues_writes_on_from_what_it_had() -> None:
    backend = Double(
        ends("length", "one "), ends("length", "two "), says("three"), capabilities=CONTINUES
    )
    result = await Agent(backend, cut_retries=2).run("Count")
    assert result.output == "one two three"
    assert backend.requests[1].messages == (user("Count"), assistant("one "))
    assert backend.requests[2].messages == (user("Count"), assistant("one two "))
    assert backend.requests[0].budget == backend.requests[2].budget
    assert result.steps[0].usage.output_tokens == 15
    assert result.new_messages == (user("Count"), assistant("one two three"))


async def test_a_typed_output_is_made_again_rather_than_continued() -> None:
    backend = Double(ends("length", "[4"), says("[42]"), capabilities=CONTINUES)
    assert (await Agent(backend, output_type=list[int]).run("Go")).output == [42]
    assert backend.requests[1].messages == backend.requests[0].messages


async def test_more_cut_retries_double_each_time() -> None:
    backend = Double(*[ends("length", "x")] * 3, says("whole"))
    assert (await Agent(backend, cut_retries=3).run("Go")).output == "whole"
    ceilings = [request.budget.ceiling for request in backend.requests if request.budget]
    assert ceilings == [ceilings[0] * 2**n for n in range(4)]


async def test_every_attempt_counts_as_a_request() -> None:
    backend = Double(ends("length", "x"), says("whole"))
    with pytest.raises(LimitExceeded, match="limit of 1 requests"):
        await Agent(backend, limits=UsageLimits(requests=1)).run("Go")


async def test_only_the_tools_of_the_agent_size_its_budget() -> None:
    """However many tools a program has, those that are not active cost nothing."""

    def named(number: int) -> Any:
        async def lookup(key: str, numbers: list[int]) -> None: ...

        return tool(name=f"tool_{number}")(lookup)

    assert await sent(tools=[named(0)]) == await sent(tools=[named(n) for n in range(50)])


async def test_lengths_are_learned_from_predicted_budgets_alone() -> None:
    backend = Double(says("ok"), repeat_last=True)
    agent = Agent(backend)
    await agent.run("Go", budget=7)
    await agent.run("Go")
    first = backend.requests[1].budget
    await agent.run("Go")
    second = backend.requests[2].budget
    assert first is not None
    assert second is not None
    assert first.source.startswith("prior")
    assert second.source.startswith("history")


async def test_calls_that_parsed_are_no_cut() -> None:
    turn = [*calls(("free", {"n": 1}))]
    backend = Double(turn, says("done"))
    assert (await Agent(backend, tools=[free], budget=5).run("Go")).output == "done"


class Needy(Double):
    """Needs 3,000 tokens for anything."""

    @asynccontextmanager
    async def stream(self, request):
        assert request.budget is not None
        if request.budget.ceiling < 3000:
            raise BudgetTooSmall(budget=request.budget.ceiling, needed=3000)
        async with super().stream(request) as events:
            yield events


async def test_a_predicted_budget_in_which_nothing_fits_is_raised_to_the_least() -> None:
    backend = Needy(says("ok"))
    result = await Agent(backend).run("Go")
    assert result.output == "ok"
    (request,) = backend.requests
    assert request.budget is not None
    assert (request.budget.target, request.budget.ceiling) == (3000, 3000)
    assert any("given 3000" in warning for warning in result.steps[0].warnings)


async def test_a_given_budget_in_which_nothing_fits_is_the_callers_to_raise() -> None:
    with pytest.raises(BudgetTooSmall, match="at least 3000"):
        await Agent(Needy(says("ok")), budget=100).run("Go")
