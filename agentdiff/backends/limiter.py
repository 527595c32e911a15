"""What a service lets an account do in a minute, kept to on this side.

Two buckets that refill steadily: requests, and output tokens. Tokens are reserved before a request,
as many as it may write, and settled after it, when it is known how many it wrote.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from agentdiff.errors import ConfigurationError, RateLimited


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """What an account may do in a minute. None is no limit."""

    requests_per_minute: int | None = None
    output_tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "output_tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"`{name}` must be at least 1, got {value!r}")


class _Bucket:
    """Full at first; refills steadily, a minute's worth in a minute."""

    def __init__(self, per_minute: int | None) -> None:
        self._size = math.inf if per_minute is None else float(per_minute)
        self._left = self._size
        self._at = time.monotonic()

    def clipped(self, amount: float) -> float:
        """`amount`, or all that ever is in the bucket where that is less."""
        return min(amount, self._size)

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there."""
        missing = amount - self._now()
        return 0.0 if missing <= 0 else missing * 60 / self._size

    def take(self, amount: float) -> None:
        self._left = self._now() - amount

    def _now(self) -> float:
        if self._size == math.inf:
            return math.inf
        now = time.monotonic()
        self._left = min(self._size, self._left + (now - self._at) * self._size / 60)
        self._at = now
        return self._left


class Reservation:
    """A request's share; settled once, when its use is known."""

    def __init__(self, limiter: RateLimiter, tokens: float) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._is_settled = False

    def settle(self, used: int | None) -> None:
        """Give back what was not used, or take what was used beyond; None keeps all. Once only."""
        if self._is_settled or used is None:
            return
        self._is_settled = True
        self._limiter.give_back(self._tokens - used)


class RateLimiter:
    """Requests wait here, in order, until the limit has room for them.

    Safe to share between backends that draw on one account, within one event loop.
    """

    def __init__(self, limit: RateLimit) -> None:
        self._requests = _Bucket(limit.requests_per_minute)
        self._tokens = _Bucket(limit.output_tokens_per_minute)
        self._turn = anyio.Lock()
        self._freed = anyio.Event()
        self._queued_requests = 0
        self._queued_tokens = 0.0
        self._closed_until = 0.0

    async def reserve(
        self, tokens: int | None, *, deadline: float = math.inf, backend: str = ""
    ) -> Reservation:
        """Wait until a request that writes up to `tokens` may be sent; None reserves none.

        Raises:
            RateLimited: Its turn would come after `deadline` (by anyio's clock); at once, and with
                `retry_after_s`.
        """
        wanted = self._tokens.clipped(tokens or 0)
        expected = self._wait_s(self._queued_requests + 1, self._queued_tokens + wanted)
        if anyio.current_time() + expected >= deadline:
            message = f"this side's limit has no room for {expected:.1f} s, which is too late"
            raise RateLimited(message, backend=backend, retry_after_s=expected)
        with self._queued(wanted):
            async with self._turn:
                while (wait_s := self._wait_s(1, wanted)) > 0:
                    with anyio.move_on_after(wait_s):
                        await self._freed.wait()
                self._requests.take(1)
                self._tokens.take(wanted)
        return Reservation(self, wanted)

    def give_back(self, tokens: float) -> None:
        """Put tokens back into the bucket; a negative number takes more out."""
        self._tokens.take(-tokens)
        freed, self._freed = self._freed, anyio.Event()
        freed.set()

    def pause(self, seconds: float) -> None:
        """Send nothing for a while, because the service said so."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    def _wait_s(self, requests: int, tokens: float) -> float:
        return max(
            self._requests.wait_s(requests),
            self._tokens.wait_s(tokens),
            self._closed_until - time.monotonic(),
        )

    @contextmanager
    def _queued(self, tokens: float) -> Generator[None]:
        self._queued_requests += 1
        self._queued_tokens += tokens
        try:
            yield
        finally:
            self._queued_requests -= 1
            self._queued_tokens -= tokens
