"""What containers are made of: parts, what stands between them, and sets of ready texts.

Where things must differ from each other, they are picked from kinds that have nothing in common,
each kind once: that is all that a finite automaton can say about being different.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from agentdiff.constraint.automaton import INFINITE, NOWHERE, Node, literal


@dataclass(frozen=True, slots=True)
class Part:
    """A value inside a container."""

    shortest: int
    """Bytes of the shortest such value; INFINITE when there is none."""
    build: Callable[[Node], Node]
    """What follows → the node where the value begins."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands between things."""

    comma: bytes
    colon: bytes
    first: bytes = b""
    """Before the first of several things; between empty brackets stands nothing."""
    last: bytes = b""
    """Behind the last."""


def cheapest(costs: Iterable[int], count: int) -> int:
    """Return the sum of the `count` lowest costs; INFINITE if there are too few."""
    lowest = nsmallest(count, costs)
    return INFINITE if len(lowest) < count else min(sum(lowest), INFINITE)


class Picks:
    """How many bytes it takes to pick things of different kinds."""

    def __init__(self, costs: Sequence[int]) -> None:
        """Take the bytes of the shortest thing of each kind."""
        self.costs = costs
        self._order = sorted(range(len(costs)), key=costs.__getitem__)

    def cheapest(self, used: int, count: int) -> int:
        """Bytes of `count` things of kinds that are not used yet; INFINITE if there are too few.

        used: one bit for each kind.
        """
        total, left = 0, count
        for kind in self._order:
            if left == 0:
                break
            if not used >> kind & 1:
                total, left = total + self.costs[kind], left - 1
        return INFINITE if left else min(total, INFINITE)


def one_of(texts: Iterable[bytes], after: Node) -> Node:
    """Return a node that takes one of these texts, then goes on: a trie, filled as it is walked."""
    ordered = sorted(set(texts))
    return NOWHERE if after.is_dead else trie(ordered, lambda _: after.near, lambda _: after)


def trie(
    ordered: Sequence[bytes], near: Callable[[int], int], after: Callable[[int], Node]
) -> Node:
    """Return a node that takes one of some texts, sorted, then goes where its index says.

    Args:
        ordered: The texts.
        near: Index → bytes from the end of that text on.
        after: Index → what follows that text; asked when somebody gets there.
    """
    lengths = [len(text) + near(i) for i, text in enumerate(ordered)]

    def branch(low: int, high: int, depth: int) -> Node:
        """The node after the common `depth` bytes of texts low..high-1."""
        if high - low == 1:
            return literal(ordered[low][depth:], after(low))
        nearest = min(lengths[low:high]) - depth

        def fill(node: Node) -> None:
            i = low
            if len(ordered[i]) == depth:
                node.skips.append(after(i))
                i += 1
            while i < high:
                byte = ordered[i][depth]
                j = bisect_right(ordered, byte, i, high, key=lambda text: text[depth])
                node.arcs.append((byte, byte, branch(i, j, depth + 1)))
                i = j

        return Node(nearest, fill)

    return branch(0, len(ordered), 0) if ordered else NOWHERE
