"""What outcomes steer and give away: the price of a miss, and outputs squeezed into their budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

START_PRICE = 400.0
"""Positions that a call beyond the first is worth, once the first dozens are over."""
STEP, OWN_STEP = 0.1, 0.03
"""How far one outcome moves the logarithm of the price: of all kinds, of its own kind."""
PRICE_RANGE, OWN_RANGE = (0.0, 11.0), (-6.0, 6.0)
_SQUEEZE_KEPT = 0.995


@dataclass(slots=True, kw_only=True)
class Control:
    """A price, steered so that misses come at the wanted rate.

    A bounded price that moves by `step * (missed - target)` cannot let the share of misses stay
    away from the target (adaptive conformal inference, arXiv 2106.00170).
    """

    log_price: float
    seen: int = 0
    missed: int = 0

    def add(self, *, missed: bool, target: float, step: float, within: tuple[float, float]) -> None:
        """Take in one outcome."""
        low, high = within
        self.log_price = min(high, max(low, self.log_price + step * (missed - target)))
        self.seen += 1
        self.missed += missed


@dataclass(slots=True, kw_only=True)
class Squeeze:
    """How often a model ends just before its target, against how often it would by chance.

    A model that sees the whole canvas may write less instead of being cut. Nothing reports that,
    and learned as a length it teaches the next budget to squeeze more.
    """

    ended_near: float = 0.0
    expected: float = 0.0

    @property
    def is_suspected(self) -> bool:
        """Whether chance does not explain it."""
        return self.ended_near - self.expected > 4 + 3 * math.sqrt(self.expected)

    def add(self, *, ended_near: bool, chance: float) -> None:
        """Take in one output that was not cut."""
        self.ended_near = _SQUEEZE_KEPT * self.ended_near + ended_near
        self.expected = _SQUEEZE_KEPT * self.expected + chance
