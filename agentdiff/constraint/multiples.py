"""Multiples of a step between two bounds, as digits.

All numbers here are whole: a decimal with at most `places` digits behind the point, times
10^places. What may still follow some digits is then an interval, and whether a multiple lies in an
interval is one division: no table of remainders is made, so a step of a billion costs what a step
of three does. Two beginnings of the same length are one node when they leave the same remainder and
their intervals lie alike to the bounds.

The comparison is exact, as JSON Schema means it. Readers that divide doubles disagree here and
there: 0.3 / 0.1 is 2.9999999999999996.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from agentdiff.constraint.automaton import INFINITE, NOWHERE, Node

_Key = tuple[int, int, tuple[int, ...], int]


class Multiples:
    """Unsigned multiples of a step in low..high."""

    def __init__(
        self, low: int, high: int, step: int, *, places: int, digits: int, after: Node
    ) -> None:
        """Prepare; nodes are made when they are asked for.

        Args:
            low: The lower bound, at least 0, times 10^places.
            high: The upper bound, times 10^places.
            step: What divides, times 10^places.
            places: Digits behind the point at most.
            digits: Digits in all at most.
            after: What follows.
        """
        self._low, self._high, self._step = low, high, step
        self._places, self._after = places, after
        self._most_whole = digits - places
        self._steps = [lcm(step, 10 ** (places - behind)) for behind in range(places + 1)]
        """What divides a number with so many digits behind the point."""
        self._lengths = sorted(
            (more + behind + (behind > 0), more, behind)
            for more in range(self._most_whole)
            for behind in range(places + 1)
        )
        """(bytes, digits before the point, digits behind it), the shortest first."""
        self._nodes: dict[_Key, Node] = {}

    def start(self) -> Node:
        """Return the node before the first digit; NOWHERE when there is no multiple."""
        ways = [(d, self._whole(d, 1)) for d in range(10)] if self._most_whole > 0 else []
        return self._of_digits(ways)

    def _of_digits(self, ways: list[tuple[int, Node]]) -> Node:
        live = [(digit, node) for digit, node in ways if not node.is_dead]
        if not live or self._after.is_dead:
            return NOWHERE
        start = Node(1 + min(node.near for _, node in live))
        start.arcs += [(0x30 + digit, 0x30 + digit, node) for digit, node in live]
        return start

    def _has(self, value: int, behind: int, step: int) -> bool:
        """Whether `value`, then `behind` digits, can be a multiple of a step within the bounds."""
        first = max(value * 10**behind, self._low)
        last = min((value + 1) * 10**behind - 1, self._high)
        return -(-first // step) * step <= last

    def _is_one(self, value: int, behind: int) -> bool:
        """Whether `value` and `behind` zeros is a multiple within the bounds."""
        scaled = value * 10**behind
        return self._low <= scaled <= self._high and scaled % self._step == 0

    def _missing(self, value: int, written: int, point: int) -> int:
        """Bytes of the shortest way on; see `_node` for the arguments."""
        if point >= 0:
            left = self._places - point
            ways = ((more, left, point + more) for more in range(point == 0, left + 1))
        else:
            most = self._most_whole - written if value else 0
            ways = (
                (length, more + self._places, behind)
                for length, more, behind in self._lengths
                if more <= most
            )
        return next(
            (n for n, left, behind in ways if self._has(value, left, self._steps[behind])), INFINITE
        )

    def _whole(self, value: int, written: int) -> Node:
        return self._node(value, written, -1)

    def _node(self, value: int, written: int, point: int) -> Node:
        """The node after these digits.

        Args:
            value: The digits, as a number.
            written: How many of them stand before the point.
            point: How many of them stand behind it; -1 when it is not written yet.
        """
        key = self._key(value, written, point)
        node = self._nodes.get(key)
        if node is None:
            missing = self._missing(value, written, point)
            if missing >= INFINITE:
                node = NOWHERE
            else:
                node = Node(
                    missing + self._after.near, lambda n: self._fill(n, value, written, point)
                )
            self._nodes[key] = node
        return node

    def _key(self, value: int, written: int, point: int) -> _Key:
        """What the future depends on."""
        lies: list[int] = []
        for behind in self._futures(value, written, point):
            first, last = value * 10**behind, (value + 1) * 10**behind - 1
            if last < self._low or first > self._high:
                lies.append(0)
            elif self._low <= first and last <= self._high:
                lies.append(1)
            else:
                return written, point, (), value  # cut by a bound: only equal to itself
        # Zero takes no further digit before the point.
        return written, point, (*lies, value == 0), value % self._step

    def _futures(self, value: int, written: int, point: int) -> Iterator[int]:
        """How many digits may still follow, for all lengths of the whole part."""
        if point >= 0:
            return iter((self._places - point,))
        most = self._most_whole - written if value else 0
        return iter(range(self._places, self._places + most + 1))

    def _fill(self, node: Node, value: int, written: int, point: int) -> None:
        left = self._places - max(point, 0)
        if point != 0 and self._is_one(value, left):
            node.skips.append(self._after)
        if point < 0 and self._places:
            behind = self._node(value, written, 0)
            if not behind.is_dead:
                node.arcs.append((0x2E, 0x2E, behind))
        may_go_on = left > 0 if point >= 0 else value > 0 and written < self._most_whole
        if not may_go_on:
            return
        for digit in range(10):
            further = (
                self._whole(value * 10 + digit, written + 1)
                if point < 0
                else self._node(value * 10 + digit, written, point + 1)
            )
            if not further.is_dead:
                node.arcs.append((0x30 + digit, 0x30 + digit, further))
