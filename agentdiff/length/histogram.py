"""A length distribution that learns: a hierarchy of histograms, each leaning on its parent.

What is counted is the *excess* over the schema's minimum, so that a tool never seen before starts
from what others do beyond theirs. Knows no step, no budget and no store.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import NamedTuple

Tail = Callable[[int], float]
"""The probability that an output is longer than so many tokens."""
Distribution = Sequence[float]
"""How probable each bin is, up to a factor."""
Mass = Mapping[int, float]
"""The weight of each bin that has any."""
Share = Iterable[tuple[int, float]]
"""An observation spread over bins, as (bin, weight); the weights sum to 1."""


def _edges() -> tuple[int, ...]:
    """Exact up to 16 tokens, then 7 % wide."""
    edges = list(range(17))
    while edges[-1] < 8192:
        edges.append(max(edges[-1] + 1, math.ceil(edges[-1] * 1.07)))
    return tuple(edges)


EDGES = _edges()
"""Upper edge of each bin, in tokens; the last one holds everything longer too."""
BINS = len(EDGES)
HALF_LIFE = 150
"""Observations after which one counts half."""
_GROWTH = 2 ** (1 / HALF_LIFE)
FULL = 1 / (1 - 1 / _GROWTH)
"""The weight that no number of observations exceeds."""
_RESCALE = 1e9
REACH = ((3, 6), (15, 4))
"""Up to so many observations, each is spread so many bins to both sides: few say less exactly."""
LATER_REACH = 2
SURE = REACH[-1][0]


def bin_of(excess: int) -> int:
    """The bin that holds `excess` tokens."""
    return min(BINS - 1, bisect_left(EDGES, excess))


@dataclass(slots=True, kw_only=True)
class Node:
    """What has been seen at one place of the hierarchy. The only thing here that changes.

    Instead of the old observations losing weight, each new one weighs more than the one before.
    """

    mass: dict[int, float] = field(default_factory=dict[int, float])
    """Weight of each bin that has any."""
    total: float = 0.0
    """Sum of `mass`."""
    unit: float = 1.0
    """Weight of the newest observation."""
    seen: int = 0
    """Observations ever made."""
    cut: int = 0
    """Those of which only a lower bound is known."""
    floor: int = 0
    """The budget that the newest output did not fit; 0 once one fits. Nothing smaller is tried."""
    newest: int = -1
    """The bin of the newest output that had room left."""

    @property
    def weight(self) -> float:
        """Observations, older ones counting less."""
        return self.total / self.unit

    def leaning(self, worth: float) -> tuple[float, float]:
        """How it leans on what is above it, as if that were `worth` observations.

        What is kept of that, and the probability that a unit of `mass` then is.
        """
        lent = worth * self.unit
        whole = self.total + lent
        return lent / whole, 1 / whole

    def add(self, place: int, *, had_room: bool) -> None:
        """Take in an output whose bin is known, and whether it ended well before its budget."""
        reach = LATER_REACH if self.seen >= SURE else _reach(self.seen)
        # What repeats itself is exact.
        self.add_share(_triangle(place, 0 if place == self.newest else reach))
        if had_room:
            self.newest = place

    def add_share(self, share: Share) -> None:
        """Take in an output of which only a distribution is known."""
        self.seen += 1
        self.unit = unit = self.unit * _GROWTH
        mass = self.mass
        for place, weight in share:
            mass[place] = mass.get(place, 0.0) + weight * unit
        self.total += unit
        if self.unit > _RESCALE:
            self.mass = {place: weight / self.unit for place, weight in self.mass.items()}
            self.total /= self.unit
            self.unit = 1.0


class Lengths(NamedTuple):
    """How long whole outputs are."""

    sums: Sequence[float]
    """Of none of the bins, of the last one, of the last two, and so on; the last sum is of all."""
    offset: int
    """Tokens to be added to a bin's edge."""

    @property
    def tail(self) -> Tail:
        """The probability of more than so many tokens."""
        sums, offset = self
        whole = sums[-1]

        def tail(tokens: int) -> float:
            return sums[BINS - bisect_right(EDGES, tokens - offset)] / whole

        return tail

    def exceeded_by(self, level: float) -> int:
        """The first bin that no more than a share `level` of outputs, below 1, is longer than."""
        return BINS - bisect_right(self.sums, level * self.sums[-1])

    def quantile(self, level: float) -> int:
        """The tokens that a share `level` of outputs does not exceed, to the width of a bin."""
        return self.offset + EDGES[min(BINS - 1, self.exceeded_by(1 - level))]

    def after(self, tokens: int) -> Lengths:
        """How much is still to come where so many tokens were not enough."""
        longer = BINS - bisect_right(EDGES, tokens - self.offset)
        return Lengths(self.sums[: max(1, longer) + 1], self.offset - tokens)


def lengths_of(distribution: Distribution, *, offset: int) -> Lengths:
    """Whole lengths, from the distribution of their excess over `offset`."""
    return Lengths(list(accumulate(reversed(distribution), initial=0.0)), offset)


def shrunk(
    above: Distribution, chain: Sequence[tuple[Node | None, float]], *, least: float
) -> Distribution:
    """The distribution of the last of a chain, each leaning on the one before by so much worth.

    What is left for a node's ancestors once that is no more than `least` goes to `above`.
    """
    share, own = 1.0, list[tuple[float, Mass]]()
    for node, worth in reversed(chain):
        if node is not None:
            kept, scale = node.leaning(worth)
            own.append((share * scale, node.mass))
            share *= kept
            if share <= least:
                break
    return added(above, share, own)


def added(base: Distribution, share: float, others: Iterable[tuple[float, Mass]]) -> Distribution:
    """`share` of `base`, and to it of each other mass its multiple; all of it over `share`."""
    mixed = list(base)
    for scale, mass in others:
        scale /= share
        for place, weight in mass.items():
            mixed[place] += scale * weight
    return mixed


def _reach(seen: int) -> int:
    return next((reach for most, reach in REACH if seen < most), LATER_REACH)


@cache
def _triangle(place: int, reach: int) -> tuple[tuple[int, float], ...]:
    weights: dict[int, float] = {}
    for step in range(-reach, reach + 1):
        at = min(BINS - 1, max(0, place + step))
        weights[at] = weights.get(at, 0.0) + (reach + 1 - abs(step)) / (reach + 1) ** 2
    return tuple(weights.items())


def beyond(excess: int, distribution: Distribution) -> Share:
    """The share of an output that was cut: what `distribution` holds above `excess`.

    Counting a cut output as if it had ended where it was cut teaches the next budget to cut again.
    """
    first = bisect_right(EDGES, excess)
    above = sum(distribution[first:])
    if above <= 0:
        return ((BINS - 1, 1.0),)
    return tuple((place, distribution[place] / above) for place in range(first, BINS))


VOTE_REACH = 9
"""Bins to both sides that count as near."""


def near(excess: int) -> range:
    """The bins of about this length. How much lies there is what votes between distributions.

    At the width of one bin a vote would be about single tokens, which no budget is about.
    """
    place = bin_of(excess)
    return range(max(0, place - VOTE_REACH), min(BINS, place + VOTE_REACH + 1))


def past(excess: int) -> range:
    """The bins of everything longer."""
    return range(min(BINS - 1, bisect_right(EDGES, excess)), BINS)
