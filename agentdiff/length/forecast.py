"""Forecasts of a length: a straight line through what is known of a step, and what the same led to.

A forecast is one bin. It becomes a distribution through the errors of earlier forecasts: a node
counts by how many bins they were off, and is laid around the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add, mul

from agentdiff.length.histogram import BINS, Distribution, Mass, Share
from agentdiff.length.moment import FEATURES
from agentdiff.length.solving import solver, taker

MIDDLE = BINS // 2
"""The bin of an errors' histogram that counts forecasts that were right."""
_RIDGE = 3.0
_KEPT = 0.998
"""The share of its weight that an observation keeps at each new one."""
PRODUCTS = FEATURES * (FEATURES + 1) // 2
"""Pairs of features."""
_PLACES = tuple(map(float, range(BINS)))
_ALL = frozenset(range(BINS))


def _zeros(count: int) -> list[float]:
    return [0.0] * count


@dataclass(slots=True, kw_only=True)
class Trend:
    """Least squares with forgetting (ridge regression), kept as sums, so that two trends add up."""

    products: list[float] = field(default_factory=lambda: _zeros(PRODUCTS))
    """Sums of products of two features: the lower triangle, row by row."""
    moments: list[float] = field(default_factory=lambda: _zeros(FEATURES))
    """Sums of a feature times what was to be told."""

    def add(self, features: Sequence[float], value: float) -> None:
        """Take in what came of a step."""
        take = taker(FEATURES, kept=_KEPT)
        self.products, self.moments = take(self.products, self.moments, features, value)

    def __add__(self, other: Trend) -> Trend:
        """What both have seen."""
        return Trend(
            products=list(map(add, self.products, other.products)),
            moments=list(map(add, self.moments, other.moments)),
        )

    def tell(self, features: Sequence[float]) -> float:
        """The value to be expected; 0 before anything has been seen."""
        return solver(FEATURES, ridge=_RIDGE)(self.products, features, self.moments)


def error_of(place: int, forecast: int) -> int:
    """The bin that counts how far a forecast was off."""
    return min(BINS - 1, max(0, place - forecast + MIDDLE))


def errors_of(share: Share, forecast: int) -> Share:
    """The same for an output of which only a distribution is known."""
    return [(error_of(place, forecast), weight) for place, weight in share]


def around(forecast: int, errors: Mass) -> Mass:
    """What errors so far say about a new forecast."""
    shift = forecast - MIDDLE
    mass = {error + shift: weight for error, weight in errors.items()}
    if not _ALL.issuperset(mass):
        for place in [place for place in mass if place not in _ALL]:
            end = 0 if place < 0 else BINS - 1
            mass[end] = mass.get(end, 0.0) + mass.pop(place)
    return mass


def center(distribution: Distribution, whole: float) -> float:
    """The mean bin of a distribution over all bins that sums to `whole`."""
    return sum(map(mul, distribution, _PLACES)) / whole
