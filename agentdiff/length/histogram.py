"""A length distribution that learns: a hierarchy of histograms, each leaning on its parent.

What is counted is the *excess* over the schema's minimum, so that a tool never seen before starts
from what its agent's other tools do beyond theirs. Knows no step, no budget and no store.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

Tail = Callable[[int], float]
"""The probability that an output is longer than so many tokens."""


def _edges() -> tuple[int, ...]:
    """Exact up to 16 tokens, then 6 % wide."""
    edges = list(range(17))
    while edges[-1] < 8192:
        edges.append(max(edges[-1] + 1, math.ceil(edges[-1] * 1.06)))
    return tuple(edges)


EDGES = _edges()
"""Upper edge of each bin, in tokens; the last one holds everything longer too."""
BINS = len(EDGES)
SHRINKAGE = (30.0, 8.0, 6.0, 6.0, 6.0)
"""Observations that the parent is worth, root first. Halved or doubled, results move by 2 %."""
HALF_LIFE = 400
"""Observations after which one counts half."""
_KEPT = 0.5 ** (1 / HALF_LIFE)


def bin_of(excess: int) -> int:
    """The bin that holds `excess` tokens."""
    return min(BINS - 1, bisect_left(EDGES, excess))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What has been seen at one place of the hierarchy."""

    mass: tuple[float, ...] = (0.0,) * BINS
    """Weight of each bin; older observations weigh less."""
    seen: int = 0
    """Observations ever made."""
    floor: int = 0
    """The budget that the newest output did not fit; 0 once one fits. Nothing smaller is tried."""

    def plus(self, share: Sequence[float], *, floor: int) -> Node:
        """The node after one more observation, spread over the bins by `share` (summing to 1)."""
        mass = tuple(_KEPT * old + new for old, new in zip(self.mass, share, strict=True))
        return Node(mass=mass, seen=self.seen + 1, floor=floor)


def predictives(path: Sequence[Node | None], prior: Sequence[float]) -> list[list[float]]:
    """The distribution at each node of `path`, root first, each shrunk towards the one above it.

    A node that is None has seen nothing and passes on its parent's.
    """
    above = list(prior)
    found: list[list[float]] = []
    for node, weight in zip(path, SHRINKAGE, strict=False):
        if node is not None:
            scale = 1 / (sum(node.mass) + weight)
            above = [
                scale * (own + weight * parent)
                for own, parent in zip(node.mass, above, strict=True)
            ]
        found.append(above)
    return found


def tail_of(distribution: Sequence[float], *, offset: int) -> Tail:
    """The tail of whole lengths, from a distribution of the excess over `offset`."""
    fits = list(accumulate(distribution))
    whole = fits[-1]

    def tail(tokens: int) -> float:
        reached = bisect_right(EDGES, tokens - offset)
        return 1.0 if not reached else max(0.0, 1 - fits[reached - 1] / whole)

    return tail


def exactly(excess: int) -> list[float]:
    """The share of an output whose excess is known."""
    share = [0.0] * BINS
    share[bin_of(excess)] = 1.0
    return share


def beyond(excess: int, distribution: Sequence[float]) -> list[float]:
    """The share of an output that was cut: what `distribution` holds above `excess`.

    Counting a cut output as if it had ended where it was cut teaches the next budget to cut again.
    """
    cut = bisect_right(EDGES, excess)
    above = sum(distribution[cut:])
    if above <= 0:
        return exactly(EDGES[-1])
    return [0.0] * cut + [weight / above for weight in distribution[cut:]]
