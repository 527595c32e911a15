"""The router: who is asked, who takes over, when nobody may, and what the caller and the span are told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from agentdiff.agent import Agent
from agentdiff.backends.breaker import BreakerSettings
from agentdiff.backends.latency import Taken
from agentdiff.backends.policies import ByKind, Escalate, Objection, RouteContext
from agentdiff.backends.router import Router
from agentdiff.backends.scripted import FunctionBackend, Scripted
from agentdiff.errors import (
    AgentDiffError,
    AuthenticationFailed,
    BackendError,
    ConfigurationError,
    ContextTooLong,
    OutputInvalid,
    ProtocolError,
    RateLimited,
    Rejected,
    TimedOut,
    Unavailable,
)
from agentdiff.generation import (
    Backend,
    Capabilities,
    Commit,
    Decision,
    Draft,
    Event,
    Finish,
    Question,
    Request,
    Result,
    Sampling,
    Stats,
    generate,
)
from agentdiff.messages import ToolCall, ToolSpec, Usage, user
from tests.backends.conformance import CHECKS, Subject
from tests.backends.test_conformance import scripted
from tests.telemetry.recorder import recording

ASK = Request(messages=(user("the launch code is swordfish-0042"),))
DOWN = Unavailable("connection refused", backend="a")


def says(name: str, said: Any = None, **capabilities: Any) -> FunctionBackend:
    """A backend that always says the same; its own name where nothing is given."""
    claimed = Capabilities(enforcement="validated", **capabilities)
    return FunctionBackend(
        lambda request: name if said is None else said, name=name, capabilities=claimed
    )


def finish(text: str = "", **fields: Any) -> list[Event]:
    usage = fields.pop("usage", Usage(input_tokens=7, output_tokens=3))
    return [Commit(text), Finish(reason="stop", usage=usage, stats=Stats(**fields))]


@dataclass
class Hangs:
    """A backend that sends `events` and then nothing."""

    events: Sequence[Event] = ()
    name: str = "hangs"
    capabilities: Capabilities = field(default_factory=Capabilities)
    open: int = 0

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        return self._stream()

    async def aclose(self) -> None: ...

    @asynccontextmanager
    async def _stream(self) -> AsyncGenerator[AsyncIterator[Event]]:
        self.open += 1
        try:
            async with aclosing(self._events()) as events:
                yield events
        finally:
            self.open -= 1

    async def _events(self) -> AsyncGenerator[Event]:
        for event in self.events:
            yield event
        await anyio.sleep_forever()


async def events_of(backend: Backend, request: Request) -> list[Event]:
    async with backend.stream(request) as events:
        return [event async for event in events]


# --- the contract ---


def subject(name: str, open: Callable[[], Backend]) -> Subject:
    return Subject(
        name=name,
        open=open,
        failing=lambda: Router([says("a", DOWN), says("b", DOWN)]),
    )


SUBJECTS = (
    subject("router", lambda: Router([scripted(), says("b")])),
    subject("router-that-fails-over", lambda: Router([says("a", DOWN), scripted()])),
    subject("router-of-routers", lambda: Router([Router([scripted()]), Router([says("b")])])),
    subject("router-that-doubts", lambda: Router([scripted(), says("b")], doubt_below=0.5)),
)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(
    check: Callable[[Subject], Awaitable[None]], subject: Subject
) -> None:
    await check(subject)


# --- taking over ---


@pytest.mark.parametrize(
    "error",
    [
        DOWN,
        TimedOut("slow", backend="a"),
        RateLimited("slow down", backend="a", retry_after_s=30),
        ProtocolError("odd", backend="a"),
        ContextTooLong("too long", backend="a"),
        OutputInvalid("a: not JSON"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_another_backend_takes_over(error: AgentDiffError) -> None:
    first, second = says("a", error), says("b")
    result = await generate(Router([first, second]), ASK)
    assert result.text == "b"
    assert result.usage.requests == 2
    assert result.stats.attempts == 2
    assert result.warnings == (f"`a` was asked before: {type(error).__name__}",)
    assert [request.may_retry for request in first.requests + second.requests] == [False, True]


@pytest.mark.parametrize(
    "error", [Rejected("no", backend="a", status=400), AuthenticationFailed("key", backend="a")]
)
async def test_what_another_one_would_refuse_too_is_raised_at_once(error: BackendError) -> None:
    second = says("b")
    with pytest.raises(type(error)) as caught:
        await generate(Router([says("a", error), second]), ASK)
    assert caught.value.status == error.status
    assert str(caught.value) == f"router: {error}"
    assert caught.value.__cause__ is error
    assert second.requests == []


async def test_when_all_have_failed_the_error_tells_of_each() -> None:
    busy = RateLimited("the server answered 429", backend="b", status=429, retry_after_s=7.0)
    with pytest.raises(RateLimited) as caught:
        await generate(Router([says("a", DOWN), says("b", busy)]), ASK)
    told = "router: a: connection refused; b: the server answered 429"
    assert (str(caught.value), caught.value.retry_after_s) == (told, 7.0)
    assert caught.value.backend == "router"
    usage = caught.value.usage
    assert isinstance(usage, Usage)
    assert usage.requests == 2


async def test_nobody_takes_over_once_the_caller_has_text() -> None:
    cut = Unavailable("the connection broke", backend="a")
    cut.partial = "half"
    second = says("b")
    router = Router([says("a", [Commit("half"), cut]), second])
    async with router.stream(ASK) as events:
        assert await anext(events) == Commit("half")
        with pytest.raises(Unavailable) as caught:
            await anext(events)
    assert caught.value.partial == "half"
    assert second.requests == []


async def test_drafts_do_not_bind_since_others_replace_them() -> None:
    first = says("a", [Draft("dra░"), DOWN], drafts=True)
    events = await events_of(Router([first, says("b")]), ASK)
    assert events[:2] == [Draft("dra░"), Commit("b")]


async def test_the_backend_s_usage_in_an_error_counts() -> None:
    invalid = OutputInvalid("a: not JSON")
    invalid.usage = Usage(input_tokens=10, output_tokens=5, requests=2)
    second = says("b", finish("b", attempts=3))
    result = await generate(Router([says("a", invalid), second]), ASK)
    assert result.usage == Usage(input_tokens=17, output_tokens=8, requests=3)
    assert result.stats.attempts == 4


async def test_an_invalid_output_of_the_last_one_keeps_its_faults() -> None:
    invalid = OutputInvalid("b: not JSON")
    invalid.text, invalid.faults = "nope", ("not JSON",)
    with pytest.raises(OutputInvalid) as caught:
        await generate(Router([says("a", DOWN), says("b", invalid)]), ASK)
    assert caught.value is invalid
    assert isinstance(invalid.usage, Usage)
    assert invalid.usage.requests == 2


async def test_no_more_are_asked_than_allowed() -> None:
    third = says("c")
    with pytest.raises(Unavailable):
        await generate(Router([says("a", DOWN), says("b", DOWN), third], max_attempts=2), ASK)
    assert third.requests == []


async def test_a_stream_without_its_end_is_a_failure() -> None:
    result = await generate(Router([says("a", [Draft("x")], drafts=True), says("b")]), ASK)
    assert result.text == "b"


# --- time ---


async def test_a_backend_that_hangs_leaves_time_for_the_next() -> None:
    hangs = Hangs()
    with anyio.fail_after(5):
        result = await generate(Router([hangs, says("b")]), replace(ASK, deadline_s=0.2))
    assert result.text == "b"
    assert hangs.open == 0


async def test_when_nobody_is_left_a_hanging_backend_ends_with_the_deadline() -> None:
    with anyio.fail_after(5), pytest.raises(TimedOut) as caught:
        await generate(Router([Hangs(), Hangs()]), replace(ASK, deadline_s=0.1))
    assert "hangs (2): no answer within" in str(caught.value)


async def test_once_text_has_come_all_the_time_that_is_left_may_be_used() -> None:
    async def slow(request: Request) -> list[Event]:
        await anyio.sleep(0.06)
        return finish("slow")

    streaming = Hangs([Commit("a")])
    with pytest.raises(TimedOut):
        await generate(Router([streaming, says("b")]), replace(ASK, deadline_s=0.1))
    router = Router([Scripted([slow], name="a"), says("b")])
    assert (await generate(router, replace(ASK, deadline_s=5.0))).text == "slow"


async def test_the_deadline_that_is_passed_on_shrinks() -> None:
    second = says("b")
    await generate(Router([Hangs(), second]), replace(ASK, deadline_s=0.2))
    (asked,) = second.requests
    assert asked.deadline_s is not None
    assert 0 < asked.deadline_s <= 0.11


async def test_a_known_fallback_is_left_no_more_time_than_it_needs() -> None:
    second = says("b")
    router = Router([Hangs(), second])
    for _ in range(4):
        router.latencies.observe("b", "answer", Taken(total_s=0.05))
    await generate(router, replace(ASK, deadline_s=0.4))
    (asked,) = second.requests
    assert asked.deadline_s is not None
    assert asked.deadline_s < 0.19


# --- the circuit ---


async def test_a_backend_that_keeps_failing_is_left_alone() -> None:
    first = says("a", DOWN)
    router = Router([first, says("b")], breaker=BreakerSettings(failures=2, rest_s=60))
    for _ in range(5):
        assert (await generate(router, ASK)).text == "b"
    assert len(first.requests) == 2


async def test_a_backend_that_asks_to_wait_is_not_asked_before() -> None:
    first = says("a", RateLimited("busy", backend="a", retry_after_s=30))
    router = Router([first, says("b")])
    for _ in range(3):
        await generate(router, ASK)
    assert len(first.requests) == 1


async def test_when_all_rest_the_error_says_how_long() -> None:
    router = Router([says("a", DOWN)], breaker=BreakerSettings(failures=1, rest_s=60))
    with pytest.raises(Unavailable):
        await generate(router, ASK)
    with pytest.raises(Unavailable) as caught:
        await generate(router, ASK)
    assert "no backend can take this request (a: it failed 1 times in a row" in str(caught.value)
    assert caught.value.retry_after_s == pytest.approx(60, abs=5)


async def test_without_a_breaker_it_is_asked_each_time() -> None:
    first = says("a", DOWN)
    router = Router([first, says("b")], breaker=None)
    for _ in range(7):
        await generate(router, ASK)
    assert len(first.requests) == 7


# --- doubt ---


async def test_an_answer_in_doubt_is_asked_for_again() -> None:
    unsure, sure = says("a", finish("unsure", confidence=0.2)), says("b", finish("sure"))
    events = await events_of(Router([unsure, sure], doubt_below=0.5), ASK)
    assert [event for event in events if isinstance(event, Commit)] == [Commit("sure")]
    assert isinstance(last := events[-1], Finish)
    assert last.warnings == ("`a` answered with too little confidence",)
    assert last.usage == Usage(input_tokens=14, output_tokens=6, requests=2)


@pytest.mark.parametrize("second", [DOWN, finish("less sure", confidence=0.1), Rejected("no")])
async def test_an_answer_in_doubt_stands_where_there_is_no_better_one(second: Any) -> None:
    unsure = says("a", finish("unsure", confidence=0.2))
    result = await generate(Router([unsure, says("b", second)], doubt_below=0.5), ASK)
    assert result.text == "unsure"
    assert result.usage.requests == 2


async def test_an_answer_without_a_confidence_is_not_in_doubt() -> None:
    assert (await generate(Router([says("a"), says("b")], doubt_below=1.0), ASK)).text == "a"


async def test_hard_calls_are_escalated() -> None:
    unsure = says("a", finish("unsure", confidence=0.2))
    router = Router(
        [unsure, says("b"), says("strong")], policy=Escalate(to="strong"), doubt_below=0.5
    )
    assert (await generate(router, ASK)).text == "strong"
    hard = replace(ASK, sampling=Sampling(effort="quality"))
    assert (await generate(router, hard)).text == "strong"
    assert len(unsure.requests) == 1


# --- who may be asked at all ---


async def test_a_backend_that_cannot_do_it_is_not_asked() -> None:
    call = replace(ASK, tools=(ToolSpec(name="t"),))
    toolless = says("a", tools=False)
    assert (await generate(Router([toolless, says("b")]), call)).text == "b"
    with pytest.raises(ConfigurationError, match="no backend can take this request"):
        await generate(Router([toolless]), call)


async def test_a_rule_of_one_s_own_is_an_object_with_a_method() -> None:
    class NotOnMondays:
        def objection(self, context: RouteContext, backend: Backend) -> Objection | None:
            return Objection(reason="it is Monday") if backend.name == "a" else None

    assert (await generate(Router([says("a"), says("b")], rules=[NotOnMondays()]), ASK)).text == "b"


async def test_a_policy_chooses_among_the_candidates() -> None:
    class Stubborn:
        reason = "always"

        def select(self, context: RouteContext) -> Backend | None:
            return strange

    strange = says("strange")
    with pytest.raises(ConfigurationError, match="'strange', which is not among the candidates"):
        await generate(Router([says("a")], policy=Stubborn()), ASK)


async def test_an_agent_does_not_know_the_difference() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    call = ToolCall(id="1", name="add", arguments={"a": 1, "b": 2})
    down = says("down", DOWN)
    agent = Agent(Router([down, Scripted([call, "3"], name="b")]), tools=[add])
    result = await agent.run("1 + 2")
    assert result.output == "3"
    assert result.usage.requests == 4
    assert [step.stats.attempts for step in result.steps] == [2, 2]


def test_a_router_needs_backends_and_sensible_numbers() -> None:
    a = says("a")
    for make in (
        lambda: Router([]),
        lambda: Router([a, a]),
        lambda: Router([a], max_attempts=0),
        lambda: Router([a], doubt_below=2),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_it_claims_what_holds_whoever_is_asked() -> None:
    one = says("a", seed=True, context_tokens=100, max_tools=3, quantum=32, tokenizer="x")
    two = says("b", drafts=True, context_tokens=200, quantum=48, tokenizer="y")
    claimed = Router([one, two]).capabilities
    assert (claimed.seed, claimed.drafts, claimed.is_double) == (False, True, True)
    assert (claimed.context_tokens, claimed.max_tools) == (200, None)
    assert (claimed.quantum, claimed.tokenizer, claimed.model) == (96, "x|y", "a, b")


def test_a_block_that_extends_is_no_canvas_beside_a_backend_that_does_not() -> None:
    blocks, hosted = says("a", quantum=32, extends=True), says("b")
    claimed = Router([blocks, hosted]).capabilities
    assert (claimed.quantum, claimed.extends) == (1, False)
    claimed = Router([blocks, says("c", quantum=64, extends=True)]).capabilities
    assert (claimed.quantum, claimed.extends) == (64, True)
    claimed = Router([blocks, says("d", quantum=64)]).capabilities
    assert (claimed.quantum, claimed.extends) == (64, False)


async def test_closing_closes_all_whatever_one_of_them_says() -> None:
    closed: list[str] = []

    class Closing(Hangs):
        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "b":
                raise Unavailable("broken pipe", backend="b")

    router = Router([Closing(name="a"), Closing(name="b"), Closing(name="c")])
    with pytest.raises(Unavailable):
        await router.aclose()
    assert sorted(closed) == ["a", "b", "c"]


# --- decisions ---


async def test_decisions_are_routed_too() -> None:
    question = Question(messages=(user("hi"),), instructions="?", options={"yes": "", "no": ""})

    class Decider(Hangs):
        async def decide(self, question: Question) -> Decision:
            return Decision(choice="no", usage=Usage(input_tokens=3))

    router = Router([says("a", DOWN), Decider()])
    decision = await router.decide(question)
    assert decision.choice == "no"
    assert decision.usage == Usage(input_tokens=3, requests=2)
    assert decision.warnings == ("`a` was asked before: Unavailable",)
    written = Router([says("a", DOWN), says("b", '"yes"')])
    assert (await written.decide(question)).choice == "yes"
    with pytest.raises(Unavailable):
        await Router([says("a", DOWN)]).decide(question)


# --- the trace ---


async def test_the_span_tells_every_decision_and_holds_a_span_for_each_backend() -> None:
    router = Router([says("a", DOWN), says("c", tools=False), says("b")])
    with recording() as spans:
        result = await generate(router, replace(ASK, tools=(ToolSpec(name="t"),)))
    assert isinstance(result, Result)
    route, first, second = spans.named("route answer"), spans.named("chat a"), spans.named("chat b")
    assert route.context is not None
    assert first.parent is not None
    assert second.parent is not None
    assert {first.parent.span_id, second.parent.span_id} == {route.context.span_id}
    assert route.status.is_unset
    chosen, failed, again = route.events
    assert chosen.attributes is not None
    assert chosen.attributes["agentdiff.backend"] == "a"
    assert chosen.attributes["agentdiff.route.reason"] == "the first in order"
    assert chosen.attributes["agentdiff.route.rejected"] == ("c: calls no tools",)
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "Unavailable"
    assert again.attributes is not None
    assert again.attributes["agentdiff.route.rejected"] == ("a: Unavailable", "c: calls no tools")
    assert route.attributes is not None
    assert route.attributes["agentdiff.attempts"] == 2
    assert "swordfish" not in spans.everything()


async def test_the_span_of_a_stream_that_is_left_is_cancelled_and_of_a_failure_an_error() -> None:
    with recording() as spans:
        async with Router([Hangs([Draft("x")])]).stream(ASK) as events:
            await anext(events)
    assert (spans.named("route answer").attributes or {})["agentdiff.cancelled"] is True
    with recording() as spans, pytest.raises(Unavailable):
        await generate(Router([says("a", DOWN)]), ASK)
    span = spans.named("route answer")
    assert (span.attributes or {})["error.type"] == "Unavailable"
    with recording() as spans:
        await generate(Router([says("a")]), ASK)
    span = spans.named("route answer")
    assert "agentdiff.cancelled" not in (span.attributes or {})


async def test_a_policy_s_reason_is_told() -> None:
    a, b = says("a"), says("b")
    with recording() as spans:
        await generate(Router([a, b], policy=ByKind({"answer": b})), ASK)
    (chosen,) = spans.named("route answer").events
    assert (chosen.attributes or {})["agentdiff.route.reason"] == "by kind of step"
