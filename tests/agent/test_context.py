"""What a run hands to functions: deps, retries, approvals, hooks; and what they may do with it."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentdiff.agent import Agent, Price, RunContext, StepSettings, UsageLimits, tool
from agentdiff.errors import (
    ApprovalRequired,
    ConfigurationError,
    LimitExceeded,
    ModelRetry,
    OutputInvalid,
    RunPaused,
)
from agentdiff.generation import Request, Result, Sampling
from agentdiff.messages import ToolCall, Usage, system
from tests.agent.doubles import Double, calls, says, spent


@dataclasses.dataclass
class Shop:
    stock: dict[str, int]


@tool
def stock_of(context: RunContext[Shop], item: str) -> int:
    """Count an item."""
    return context.deps.stock[item]


SHOP = Shop({"mug": 12})


# -- deps ----


async def test_tools_find_the_deps_of_the_run_and_the_model_does_not_see_them() -> None:
    backend = Double(calls(("stock_of", {"item": "mug"})), says("12"))
    agent = Agent(backend, tools=[stock_of], deps_type=Shop)
    await agent.run("How many?", deps=SHOP)
    assert backend.told() == ["12"]
    assert list(backend.requests[0].tools[0].parameters["properties"]) == ["item"]


async def test_a_context_tells_where_the_run_is() -> None:
    seen: list[RunContext[Any]] = []

    @tool
    async def look(context: RunContext[None], n: int) -> int:
        seen.append(context)
        return n

    backend = Double(calls(("look", {"n": 1})), calls(("look", {"n": 2})), says("done"))
    agent = Agent(backend, tools=[look], name="looker", limits=UsageLimits(wall_s=60))
    await agent.run("Go")
    first, second = seen
    assert (first.agent, first.step, second.step) == ("looker", 1, 2)
    assert (first.call_id, second.call_id) == ("c1", "call_2")
    assert second.usage == spent() + spent()
    assert [message.role for message in second.messages] == ["user", "assistant", "tool"]
    assert 0 < (first.left_s() or 0) <= 60


async def test_deps_of_another_type_are_refused() -> None:
    agent = Agent(Double(says("?")), deps_type=Shop)
    with pytest.raises(ConfigurationError, match="takes an instance of `Shop`, its `deps_type`"):
        await agent.run("Go")
    with pytest.raises(ConfigurationError, match="takes no `deps`"):
        await Agent(Double(says("?"))).run("Go", deps=3)  # pyright: ignore[reportArgumentType]


def test_a_context_is_the_first_parameter_or_none() -> None:
    with pytest.raises(ConfigurationError, match="make it the first parameter"):

        @tool
        def late(a: int, context: RunContext[None]) -> None: ...


async def test_instructions_may_be_written_for_the_run() -> None:
    async def write(context: RunContext[Shop]) -> str:
        return f"There are {len(context.deps.stock)} items."

    backend = Double(says("Yes."))
    await Agent(backend, instructions=write, deps_type=Shop).run("Go", deps=SHOP)
    assert backend.requests[0].messages[0] == system("There are 1 items.")


async def test_a_tool_may_be_given_to_an_agent_later() -> None:
    backend = Double(calls(("plus", {"a": 1}), ("minus", {"a": 1})), says("done"))
    agent = Agent(backend)

    @agent.tool
    def plus(context: RunContext[None], a: int) -> int:
        return a + context.step

    @agent.tool(name="minus")
    def less(a: int) -> int:
        return a - 1

    await agent.run("Go")
    assert backend.told() == ["2", "0"]
    assert agent.tools == (plus, less)


# -- the model is asked again ----


async def test_a_tool_may_ask_the_model_to_call_it_again() -> None:
    attempts: list[int] = []

    @tool
    async def pick(context: RunContext[None], n: int) -> str:
        attempts.append(context.attempt)
        if n < 2:
            raise ModelRetry("larger, please")
        return "good"

    backend = Double(*(calls(("pick", {"n": n})) for n in range(3)), says("done"))
    result = await Agent(backend, tools=[pick]).run("Go")
    assert backend.told() == ["error: larger, please"] * 2 + ["good"]
    assert attempts == [1, 2, 3]
    assert [call.asks_again for step in result.steps for call in step.calls] == [True, True, False]


@pytest.mark.parametrize(("on_tool", "on_agent", "asked"), [(1, 3, 2), (None, 2, 3), (0, 9, 1)])
async def test_a_tool_that_always_asks_again_ends_the_run(on_tool, on_agent, asked) -> None:
    @tool(retries=on_tool)
    async def never(n: int) -> None:
        raise ModelRetry("no")

    backend = Double(*(calls(("never", {"n": n})) for n in range(9)))
    with pytest.raises(LimitExceeded, match=f"limit of {asked - 1} retries of `never`") as caught:
        await Agent(backend, tools=[never], retries=on_agent).run("Go")
    assert len(backend.requests) == asked
    assert len(caught.value.steps) == asked
    assert caught.value.messages[-1].content == "error: no"  # pyright: ignore[reportAttributeAccessIssue]


async def test_an_output_validator_may_have_the_output_written_again_or_change_it() -> None:
    agent = Agent(Double(says("7"), says("8")), output_type=int, deps_type=int)

    @agent.output_validator
    def even(value: int) -> int:
        if value % 2:
            raise ModelRetry("give an even number")
        return value

    @agent.output_validator
    async def scaled(context: RunContext[int], value: int) -> int:
        return value * context.deps

    result = await agent.run("Go", deps=10)
    assert result.output == 80
    assert [step.kind for step in result.steps] == ["answer", "repair"]
    assert result.messages[-2].content.startswith("give an even number")


async def test_an_output_that_no_validator_takes_ends_the_run() -> None:
    agent = Agent(Double(says("7"), repeat_last=True), output_type=int)

    @agent.output_validator
    def never(value: int) -> int:
        raise ModelRetry("no")

    with pytest.raises(OutputInvalid, match="no"):
        await agent.run("Go")


# -- what becomes of an error ----


@tool
async def secret() -> None:
    """Fail."""
    raise ValueError("password 123")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("tell", "error: ValueError: password 123"),
        ("hide", "error: the tool failed"),
        (lambda call, error: f"{call.name}: {type(error).__name__}", "error: secret: ValueError"),
    ],
)
async def test_what_the_model_reads_of_an_error_is_a_choice(how, told) -> None:
    backend = Double(calls(("secret", {})), says("done"))
    await Agent(backend, tools=[secret], on_tool_error=how).run("Go")
    assert backend.told() == [told]


async def test_an_error_of_a_tool_may_end_the_run_and_stops_the_calls_beside_it() -> None:
    stopped = anyio.Event()

    @tool
    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    backend = Double(calls(("wait", {}), ("secret", {})))
    with pytest.raises(ValueError, match="password"):
        await Agent(backend, tools=[wait, secret], on_tool_error="raise").run("Go")
    assert stopped.is_set()


# -- approval ----


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(approval=lambda arguments: arguments["amount"] > 100)
async def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


@tool
async def check(context: RunContext[None], amount: int) -> str:
    """Check an amount; a person looks at large ones."""
    if amount > 10 and not context.is_approved:
        raise ApprovalRequired
    return f"checked {amount}"


@pytest.mark.parametrize(
    ("answer", "told", "approval"),
    [
        (True, "paid 5", True),
        (False, "error: a person did not allow this call", False),
        ("too much", "error: a person did not allow this call: too much", "too much"),
    ],
)
async def test_a_person_is_asked_first(answer, told, approval) -> None:
    asked: list[ToolCall] = []

    async def approve(call: ToolCall) -> bool | str:
        asked.append(call)
        return answer

    backend = Double(calls(("pay", {"amount": 5})), says("done"))
    result = await Agent(backend, tools=[pay], approve=approve).run("Go")
    assert backend.told() == [told]
    assert [call.name for call in asked] == ["pay"]
    assert result.steps[0].calls[0].approval == approval


async def test_nobody_is_asked_about_a_call_that_needs_no_approval_or_cannot_run() -> None:
    asked: list[ToolCall] = []
    turn = calls(("refund", {"amount": 5}), ("refund", {"amount": "x"}), ("check", {"amount": 1}))
    backend = Double(turn, says("done"))
    agent = Agent(backend, tools=[refund, check], approve=lambda call: asked.append(call))
    await agent.run("Go")
    first, second, third = backend.told()
    assert (first, third, asked) == ("refunded 5", "checked 1", [])
    assert "`amount`" in second


async def test_a_tool_itself_may_ask_for_a_person() -> None:
    backend = Double(calls(("check", {"amount": 11})), says("done"))
    await Agent(backend, tools=[check], approve=lambda call: True).run("Go")
    assert backend.told() == ["checked 11"]


async def test_without_a_person_the_run_pauses_and_what_is_beside_is_done() -> None:
    turn = calls(("refund", {"amount": 5}), ("pay", {"amount": 6}), ("refund", {"amount": 500}))
    backend = Double(turn)
    with pytest.raises(RunPaused, match=r"2 tool call\(s\) wait for approval") as caught:
        await Agent(backend, tools=[pay, refund]).run("Go")
    pending = caught.value.pending
    assert [(call.id, call.name) for call in pending if isinstance(call, ToolCall)] == [
        ("c2", "pay"),
        ("c3", "refund"),
    ]
    assert len(caught.value.messages) == 1  # the conversation never ends inside a turn


# -- hooks ----


async def test_hooks_stand_around_generations_and_calls_the_first_outermost() -> None:
    order: list[str] = []

    def model_hook(name: str):
        async def hook(
            request: Request, generate: Callable[[Request], Awaitable[Result]]
        ) -> Result:
            order.append(f"{name} {request.kind}")
            return await generate(dataclasses.replace(request, sampling=Sampling(seed=1)))

        return hook

    async def tool_hook(
        context: RunContext[Any], call: ToolCall, run: Callable[[ToolCall], Awaitable[Any]]
    ) -> Any:
        order.append(f"tool {call.name} {context.step}")
        result = await run(dataclasses.replace(call, arguments={"amount": 7}))
        return f"{result}!"

    backend = Double(calls(("refund", {"amount": 5})), says("done"))
    agent = Agent(
        backend,
        tools=[refund],
        model_hooks=[model_hook("a"), model_hook("b")],
        tool_hooks=[tool_hook],
    )
    await agent.run("Go")
    assert order == ["a route", "b route", "tool refund 1", "a route", "b route"]
    assert backend.told() == ["refunded 7!"]
    assert backend.requests[0].sampling.seed == 1


async def test_a_hook_may_answer_for_the_tool_or_fail_for_it() -> None:
    async def cached(context: RunContext[Any], call: ToolCall, run: Any) -> Any:
        if call.arguments["amount"] == 1:
            return "from the cache"
        raise ModelRetry("not that")

    backend = Double(calls(("refund", {"amount": 1}), ("refund", {"amount": 2})), says("done"))
    await Agent(backend, tools=[refund], tool_hooks=[cached]).run("Go")
    assert backend.told() == ["from the cache", "error: not that"]


# -- settings for kinds of steps ----


async def test_each_kind_of_step_may_have_its_own_backend_sampling_and_budget() -> None:
    small, strong = Double(says("no json"), says("no json")), Double(says("42"))
    repair = StepSettings(backend=strong, sampling=Sampling(effort="quality"), budget=99)
    agent = Agent(small, output_type=int, steps={"repair": repair}, max_output_repairs=1)
    assert (await agent.run("Go")).output == 42
    (request,) = strong.requests
    assert (request.kind, request.sampling.effort) == ("repair", "quality")
    assert request.budget is not None
    assert (request.budget.target, request.budget.ceiling) == (99, 99)
    assert small.requests[0].sampling.effort == "balanced"


# -- runs inside runs ----


async def test_an_agent_as_a_tool_spends_from_the_run_around_it() -> None:
    inner = Agent(Double(says("inner answer"), repeat_last=True), name="inner")
    backend = Double(calls(("inner", {"prompt": "help"})), says("done"))
    agent = Agent(backend, tools=[inner.as_tool(description="Helps.")])
    result = await agent.run("Go")
    assert backend.told() == ["inner answer"]
    assert result.usage == Usage(input_tokens=30, output_tokens=15, requests=3)
    assert result.steps[0].calls[0].usage == spent()


async def test_limits_of_the_outer_run_hold_inside() -> None:
    deep = Double(*(calls(("refund", {"amount": n})) for n in range(9)))
    inner = Agent(deep, name="inner", tools=[refund], limits=UsageLimits(requests=9))
    backend = Double(calls(("inner", {"prompt": "help"})), says("done"))
    agent = Agent(backend, tools=[inner.as_tool()], limits=UsageLimits(requests=4))
    with pytest.raises(LimitExceeded, match="limit of 4 requests"):
        await agent.run("Go")
    assert len(deep.requests) == 3


async def test_the_deadline_of_the_outer_run_reaches_the_backend_inside() -> None:
    deep = Double(says("inner answer"))
    inner = Agent(deep, name="inner")
    backend = Double(calls(("inner", {"prompt": "help"})), says("done"))
    await Agent(backend, tools=[inner.as_tool()], limits=UsageLimits(wall_s=30)).run("Go")
    assert 0 < (deep.requests[0].deadline_s or 0) <= 30


async def test_an_agent_inside_is_given_the_deps_it_takes() -> None:
    inner = Agent(
        Double(calls(("stock_of", {"item": "mug"})), says("12")), tools=[stock_of], deps_type=Shop
    )
    backend = Double(calls(("agent", {"prompt": "count"})), says("done"))
    agent = Agent(backend, tools=[inner.as_tool()], deps_type=Shop)
    await agent.run("Go", deps=SHOP)
    assert backend.told() == ["12"]


async def test_a_pause_inside_is_told_to_the_outer_model() -> None:
    inner = Agent(Double(calls(("pay", {"amount": 5}))), tools=[pay], name="inner")
    backend = Double(calls(("inner", {"prompt": "pay"})), says("done"))
    await Agent(backend, tools=[inner.as_tool()]).run("Go")
    assert "nobody can be asked inside another agent" in backend.told()[0]


def test_a_sync_tool_may_run_an_agent_of_its_own() -> None:
    inner = Agent(Double(says("inner answer")), name="inner")

    @tool
    def ask() -> str:
        return inner.run_sync("help").output

    backend = Double(calls(("ask", {})), says("done"))
    result = Agent(backend, tools=[ask]).run_sync("Go")
    assert backend.told() == ["inner answer"]
    assert result.usage.requests == 3


# -- tokens and money ----


@pytest.mark.parametrize(
    ("limits", "says_what"),
    [
        (UsageLimits(input_tokens=20), "20 input tokens"),
        (UsageLimits(total_tokens=30), "30 tokens"),
        (UsageLimits(cost=0.04), r"0\.04 cost"),
    ],
)
async def test_tokens_and_cost_are_limited(limits, says_what) -> None:
    backend = Double(*(calls(("refund", {"amount": n})) for n in range(9)))
    agent = Agent(backend, tools=[refund], price=Price(input=1000, output=2000), limits=limits)
    with pytest.raises(LimitExceeded, match=f"limit of {says_what}"):
        await agent.run("Go")
    assert len(backend.requests) == 2


async def test_a_run_says_what_it_cost() -> None:
    agent = Agent(Double(says("Yes.")), price=Price(input=1000, output=2000))
    assert (await agent.run("Go")).cost == pytest.approx(0.02)
    assert (await Agent(Double(says("Yes."))).run("Go")).cost is None


def test_a_limit_of_cost_needs_a_price() -> None:
    with pytest.raises(ConfigurationError, match="give the agent a `price=`"):
        Agent(Double(), limits=UsageLimits(cost=1))
