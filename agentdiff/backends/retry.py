"""When a request is sent again, and when its time is over.

Knows errors and clocks, no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import anyio
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_random_exponential,
)

from agentdiff.errors import BackendError, TimedOut

JITTER_S = 0.5
"""The first pause is up to this long; the bound doubles with each further one, 16-fold at most."""
LONGEST_WAIT_S = 60.0
"""A server that asks to wait longer is not asked again."""

_T = TypeVar("_T")


async def retrying(
    attempt: Callable[[], Awaitable[_T]], *, max_attempts: int, deadline: float
) -> _T:
    """Call `attempt` until it returns, with full jitter between, or as long as the server asked.

    Only errors that are `retryable` are tried again, at most `max_attempts` calls in all, and only
    where the next one would begin before `deadline` (by anyio's clock); else the last error is
    raised at once, so that whoever has another backend can turn to it in time.
    """
    # Most calls return: what tenacity needs is made for the others.
    try:
        return await attempt()
    except BackendError as error:
        if max_attempts < 2 or not error.retryable:
            raise
        failed: list[BackendError] = [error]
    jitter = wait_random_exponential(multiplier=JITTER_S, max=16 * JITTER_S)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, BackendError) else None
        return jitter(state) if asked is None else asked

    def is_enough(state: RetryCallState) -> bool:
        pause = state.upcoming_sleep
        return (
            state.attempt_number >= max_attempts
            or pause > LONGEST_WAIT_S
            or anyio.current_time() + pause >= deadline
        )

    async def again() -> _T:
        if failed:  # the first attempt, which tenacity has not seen
            raise failed.pop()
        return await attempt()

    loop = AsyncRetrying(
        retry=retry_if_exception(lambda e: isinstance(e, BackendError) and e.retryable),
        wait=wait,
        stop=is_enough,
        sleep=anyio.sleep,
        reraise=True,
    )
    return await loop(again)


@contextmanager
def within(deadline: float, *, backend: str) -> Generator[None]:
    """Raise `TimedOut` where the block has not ended at `deadline` (by anyio's clock)."""
    if deadline == math.inf:
        yield
        return
    with anyio.CancelScope(deadline=deadline) as scope:
        yield
    if scope.cancelled_caught:
        raise TimedOut("no answer within the request's `deadline_s`", backend=backend)
