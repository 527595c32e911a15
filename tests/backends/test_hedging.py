"""Hedging: only slow calls are made twice, few of them, and the result says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from agentdiff.backends.hedging import ENOUGH, Hedged
from agentdiff.backends.latency import Taken
from agentdiff.backends.scripted import FunctionBackend
from agentdiff.errors import ConfigurationError, Unavailable
from agentdiff.generation import Backend, Capabilities, Request, generate
from agentdiff.messages import user
from tests.backends.conformance import CHECKS, Subject
from tests.backends.test_conformance import scripted
from tests.telemetry.recorder import recording

ASK = Request(messages=(user("hello"),))
DOWN = Unavailable("down", backend="a")


def says(name: str, error: Exception | None = None) -> FunctionBackend:
    return FunctionBackend(lambda request: error or name, name=name, capabilities=Capabilities())


def slow(name: str) -> FunctionBackend:
    async def wait(request: Request) -> str:
        await anyio.sleep(30)
        return name

    return FunctionBackend(wait, name=name, capabilities=Capabilities())


def hedged(first: Backend, second: Backend, *, at_most: float = 1.0) -> Hedged:
    """Two, of which the first is known to be fast."""
    made = Hedged(first, second, at_most=at_most)
    for _ in range(ENOUGH):
        made.latencies.observe(first.name, "answer", Taken(total_s=0.01))
    return made


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(check: Callable[[Subject], Awaitable[None]]) -> None:
    def failing() -> Backend:
        return Hedged(says("a", DOWN), says("b"), name="a")

    await check(Subject(name="hedged", open=lambda: Hedged(scripted(), says("b")), failing=failing))


async def test_a_slow_call_is_made_twice_and_the_first_answer_wins() -> None:
    with anyio.fail_after(10), recording() as spans:
        result = await generate(hedged(slow("a"), says("b")), ASK)
    assert result.text == "b"
    assert (result.usage.requests, result.stats.attempts) == (2, 2)
    assert result.warnings == ("`a` was asked too: it was slow",)
    attributes = spans.named("route answer").attributes or {}
    assert (attributes["agentdiff.hedge.backend"], attributes["agentdiff.hedge.winner"]) == (
        "b",
        "b",
    )
    assert (spans.named("chat a").attributes or {})["agentdiff.cancelled"] is True


async def test_a_fast_call_is_made_once() -> None:
    second = says("b")
    result = await generate(hedged(says("a"), second), ASK)
    assert (result.text, result.usage.requests, result.warnings) == ("a", 1, ())
    assert second.requests == []


async def test_before_it_is_known_what_slow_is_nothing_is_hedged() -> None:
    second = says("b")
    for _ in range(3):
        await generate(Hedged(says("a"), second, at_most=1.0), ASK)
    assert second.requests == []


async def test_no_more_calls_are_made_twice_than_allowed() -> None:
    second = says("b")
    both = hedged(slow("a"), second, at_most=0.0)
    with anyio.move_on_after(0.1):
        await generate(both, ASK)
    assert second.requests == []


async def test_an_error_of_the_first_is_raised_and_of_the_second_is_not() -> None:
    second = says("b")
    with pytest.raises(Unavailable) as caught:
        await generate(hedged(says("a", DOWN), second), ASK)
    assert caught.value is DOWN
    assert second.requests == []

    async def late(request: Request) -> str:
        await anyio.sleep(0.1)
        return "a"

    first = FunctionBackend(late, name="a", capabilities=Capabilities())
    assert (await generate(hedged(first, says("b", DOWN)), ASK)).text == "a"


def test_shares_are_shares() -> None:
    for share, at_most in ((0.0, 0.05), (1.0, 0.05), (0.95, 2.0)):
        with pytest.raises(ConfigurationError):
            Hedged(says("a"), says("b"), share=share, at_most=at_most)
