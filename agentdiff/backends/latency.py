"""How fast backends are, learned from the calls that they answer.

Of each backend and kind of step the newest calls are kept, so that an answer comes from them as
they were, not from a model of them, and a backend that has become slow is known to be slow soon.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentdiff.generation import StepKind

KEPT: Final = 64
"""Calls of a backend and kind that are looked at."""
ENOUGH: Final = 4
"""Calls from which on they say something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The time that one call took."""

    total_s: float
    """Until it ended. A call that was given up took at least this long."""
    first_s: float | None = None
    """Until its first committed text; None where there was none."""


class Latencies:
    """Times of calls, by backend and kind of step."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, StepKind], deque[Taken]] = {}

    def observe(self, backend: str, kind: StepKind, taken: Taken) -> None:
        """Remember one call."""
        self._taken.setdefault((backend, kind), deque(maxlen=KEPT)).append(taken)

    def count(self, backend: str, kind: StepKind) -> int:
        """Calls of this kind that are remembered."""
        return len(self._taken.get((backend, kind), ()))

    def total_s(self, backend: str, kind: StepKind, *, share: float = 0.5) -> float | None:
        """Seconds within which a share of the calls ended; None while too few are known.

        Where this kind has been seen too seldom, all kinds of the backend speak for it.
        """
        return _quantile([taken.total_s for taken in self._of(backend, kind)], share)

    def first_s(self, backend: str, kind: StepKind, *, share: float = 0.5) -> float | None:
        """Seconds within which a share of the calls had their first text; None while too few are known."""
        times = [taken.first_s for taken in self._of(backend, kind) if taken.first_s is not None]
        return _quantile(times, share)

    def table(self) -> Mapping[tuple[str, StepKind], tuple[int, float | None, float | None]]:
        """`(backend, kind)` → calls, and the median seconds to the first text and to the end."""
        return {
            key: (
                len(taken),
                _quantile([one.first_s for one in taken if one.first_s is not None], 0.5),
                _quantile([one.total_s for one in taken], 0.5),
            )
            for key, taken in self._taken.items()
        }

    def _of(self, backend: str, kind: StepKind) -> list[Taken]:
        own = self._taken.get((backend, kind), ())
        if len(own) >= ENOUGH:
            return list(own)
        return [one for (name, _), taken in self._taken.items() if name == backend for one in taken]


def _quantile(times: list[float], share: float) -> float | None:
    if len(times) < ENOUGH:
        return None
    return sorted(times)[max(0, math.ceil(share * len(times)) - 1)]
