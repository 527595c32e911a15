"""Forecasts of a length: a straight line through what is known of a step, and what the same led to.

A forecast is one bin. It becomes a distribution through the errors of earlier forecasts: a node
counts by how many bins they were off, and is laid around the new one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add, mul

from agentdiff.length.histogram import BINS, Leaning, Share
from agentdiff.length.moment import FEATURES

MIDDLE = BINS // 2
"""The bin of an errors' histogram that counts forecasts that were right."""
_RIDGE = 3.0
_KEPT = 0.998
"""The share of its weight that an observation keeps at each new one."""
PRODUCTS = FEATURES * (FEATURES + 1) // 2
"""Pairs of features."""


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
        pairs = [one * other for at, one in enumerate(features) for other in features[: at + 1]]
        self.products = [_KEPT * old + new for old, new in zip(self.products, pairs, strict=True)]
        self.moments = [
            _KEPT * old + one * value for old, one in zip(self.moments, features, strict=True)
        ]

    def __add__(self, other: Trend) -> Trend:
        """What both have seen."""
        return Trend(
            products=list(map(add, self.products, other.products)),
            moments=list(map(add, self.moments, other.moments)),
        )

    def tell(self, features: Sequence[float]) -> float:
        """The value to be expected; 0 before anything has been seen."""
        lower = _cholesky(self.products)
        # x' A^-1 b = (L^-1 x)' (L^-1 b)
        of_features, of_moments = _forward(lower, features), _forward(lower, self.moments)
        return _dot(of_features, of_moments)


def _cholesky(products: Sequence[float]) -> list[list[float]]:
    """The lower triangular L with L L' = the matrix of products with the ridge on its diagonal."""
    rows: list[list[float]] = []
    start = 0
    for size in range(FEATURES):
        row: list[float] = []
        for at, other in enumerate(rows):
            left = products[start + at] - _dot(row, other[:at])
            row.append(left / other[at])
        row.append(math.sqrt(products[start + size] + _RIDGE - _dot(row, row)))
        rows.append(row)
        start += size + 1
    return rows


def _forward(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve L y = right."""
    solved: list[float] = []
    for row, value in zip(lower, right, strict=True):
        solved.append((value - _dot(row[:-1], solved)) / row[-1])
    return solved


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return sum(map(mul, one, other))


def error_of(place: int, forecast: int) -> int:
    """The bin that counts how far a forecast was off."""
    return min(BINS - 1, max(0, place - forecast + MIDDLE))


def errors_of(share: Share, forecast: int) -> Share:
    """The same for an output of which only a distribution is known."""
    return [(error_of(place, forecast), weight) for place, weight in share]


def around(forecast: int, errors: Leaning) -> Leaning:
    """What errors so far say about a new forecast."""
    mass: dict[int, float] = {}
    for error, weight in errors.mass.items():
        place = min(BINS - 1, max(0, error - MIDDLE + forecast))
        mass[place] = mass.get(place, 0.0) + weight
    return Leaning(errors.kept, errors.scale, mass)


def center(distribution: Sequence[float]) -> float:
    """The mean bin."""
    return _dot(distribution, range(len(distribution))) / sum(distribution)
