"""Requests and output tokens per minute, kept to on this side. Limits are large, so waits are short."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio
import pytest

from agentdiff.backends.limiter import RateLimit, RateLimiter
from agentdiff.errors import ConfigurationError, RateLimited, Unavailable
from agentdiff.generation import Budget, Request, generate
from agentdiff.messages import user
from tests.backends.fakes import Server, completion, whole

ASK = Request(messages=(user("hello"),), budget=Budget(target=10, ceiling=100))


async def test_a_full_bucket_lets_a_minutes_worth_through_at_once() -> None:
    limiter = RateLimiter(RateLimit(requests_per_minute=50))
    began = time.monotonic()
    for _ in range(50):
        await limiter.reserve(1_000_000)
    assert time.monotonic() - began < 1
    soon = anyio.current_time() + 0.5
    with pytest.raises(RateLimited) as caught:
        await limiter.reserve(1, deadline=soon)
    assert caught.value.retry_after_s == pytest.approx(1.2, abs=0.5)


async def test_what_was_reserved_and_not_used_comes_back_once() -> None:
    limiter = RateLimiter(RateLimit(output_tokens_per_minute=1000))
    soon = anyio.current_time() + 2
    first = await limiter.reserve(800)
    with pytest.raises(RateLimited):
        await limiter.reserve(800, deadline=soon)
    first.settle(100)
    first.settle(0)  # settled already
    second = await limiter.reserve(800, deadline=soon)
    second.settle(None)  # nobody knows what was used: all of it counts
    with pytest.raises(RateLimited):
        await limiter.reserve(800, deadline=soon)


async def test_whoever_waits_is_let_through_in_order_as_soon_as_tokens_come_back() -> None:
    limiter = RateLimiter(RateLimit(output_tokens_per_minute=1000))
    held = await limiter.reserve(1000)
    order: list[int] = []

    async def wait(number: int) -> None:
        await limiter.reserve(300)
        order.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
        assert order == []
        held.settle(0)
    assert order == [0, 1, 2]


async def test_whoever_is_cancelled_while_waiting_leaves_no_trace() -> None:
    limiter = RateLimiter(RateLimit(output_tokens_per_minute=1000))
    held = await limiter.reserve(1000)
    with anyio.move_on_after(0.01):
        await limiter.reserve(900)
    held.settle(0)
    await limiter.reserve(950, deadline=anyio.current_time() + 1)


async def test_more_than_a_minutes_worth_waits_for_a_full_bucket_only() -> None:
    limiter = RateLimiter(RateLimit(output_tokens_per_minute=1000))
    await limiter.reserve(5000, deadline=anyio.current_time() + 1)


@pytest.mark.parametrize("options", [{"requests_per_minute": 0}, {"output_tokens_per_minute": -1}])
def test_a_limit_that_lets_nothing_through_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RateLimit(**options)


async def test_a_backend_reserves_the_ceiling_and_settles_what_was_used() -> None:
    server = Server(completion("hi"))  # it counts 3 tokens
    backend = server.backend(limit=RateLimit(output_tokens_per_minute=110))
    for _ in range(3):  # 100 each would not fit
        await generate(backend, replace(ASK, deadline_s=5.0))
    assert len(server.requests) == 3


async def test_a_limit_without_room_in_time_fails_over_at_once() -> None:
    server = Server(completion("hi"))
    backend = server.backend(limit=RateLimit(requests_per_minute=1), max_attempts=1)
    await generate(backend, ASK)
    with anyio.fail_after(2), pytest.raises(RateLimited, match="this side's limit") as caught:
        await generate(backend, replace(ASK, deadline_s=5.0))
    assert caught.value.backend == "openai:tiny"
    assert len(server.requests) == 1


async def test_a_refused_request_costs_no_tokens_and_a_429_closes_the_gate_for_all() -> None:
    busy = whole({"error": {"message": "no"}}, status=503)
    slow = whole({"error": {"message": "slow"}}, status=429, headers={"retry-after": "30"})
    server = Server(busy, slow)
    backend = server.backend(limit=RateLimit(output_tokens_per_minute=150), max_attempts=1)
    with pytest.raises(Unavailable):
        await generate(backend, ASK)
    with pytest.raises(RateLimited):
        await generate(backend, replace(ASK, deadline_s=5.0))
    with pytest.raises(RateLimited, match="no room for"):
        await generate(backend, replace(ASK, deadline_s=5.0))
    assert len(server.requests) == 2
