"""A circuit breaker: a backend that keeps failing is left alone for a while, then tried by one call.

closed ──failures in a row──▶ open ──after a while──▶ half-open: one call probes it
  ▲                             ▲                          │
  └────────── it answered ──────┼──────────────────────────┤
                                └───── it failed: longer ──┘
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentdiff.errors import (
    AgentDiffError,
    BackendError,
    ConfigurationError,
    RateLimited,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When a backend is left alone, and for how long."""

    failures: int = 5
    """Failures in a row that open the circuit."""
    rest_s: float = 10.0
    """Seconds until a first call probes it; doubles each time the probe fails."""
    longest_rest_s: float = 120.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ConfigurationError(f"`failures` must be at least 1, got {self.failures!r}")
        if not 0 < self.rest_s <= self.longest_rest_s < math.inf:
            raise ConfigurationError(
                f"`rest_s` must be in (0, {self.longest_rest_s:g}], got {self.rest_s!r}"
            )


class Breaker:
    """The circuit to one backend."""

    def __init__(
        self, settings: BreakerSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._failures = 0
        self._rest_s = settings.rest_s
        self._open_until: float | None = None
        self._is_probed = False
        self._busy_until = -math.inf

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        """Whether calls may pass: all, none, or one."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def wait_s(self) -> float:
        """Seconds until a call may pass; 0 where one may now."""
        if self.state == "half_open" and self._is_probed:
            return self._rest_s  # at the latest: then the probe has failed or is forgotten
        until = max(self._busy_until, self._open_until or -math.inf)
        return max(0.0, until - self._clock())

    def objection(self) -> str | None:
        """Why no call may pass now; None where one may."""
        if self.state == "half_open" and self._is_probed:
            return "another call is finding out whether it is back"
        if self.wait_s == 0:
            return None
        if self.state == "open":
            return f"it failed {self._failures} times in a row; tried again in {self.wait_s:.1f} s"
        return f"it asked to wait {self.wait_s:.1f} s"

    def begin(self) -> None:
        """A call passes; half-open, it is the probe."""
        if self.state == "half_open":
            self._is_probed = True

    def succeeded(self) -> None:
        """The call was answered, or refused with a reason: the backend is there."""
        self._failures = 0
        self._rest_s = self._settings.rest_s
        self._open_until = None
        self._is_probed = False

    def failed(self, error: AgentDiffError) -> None:
        """The call failed. One that the backend answered with a reason says that it is there."""
        if not (isinstance(error, BackendError) and error.retryable):
            self.succeeded()
            return
        if isinstance(error, RateLimited) and error.retry_after_s is not None:
            # Busy, not broken: it says itself when to come again.
            wait_s = min(error.retry_after_s, self._settings.longest_rest_s)
            self._busy_until = self._clock() + wait_s
            self._is_probed = False
            return
        was_probe = self._is_probed
        self._is_probed = False
        self._failures += 1
        if was_probe:
            self._rest_s = min(2 * self._rest_s, self._settings.longest_rest_s)
        if was_probe or self._failures >= self._settings.failures:
            self._open_until = self._clock() + self._rest_s

    def left(self) -> None:
        """The call was given up by its caller, which says nothing about the backend."""
        self._is_probed = False
