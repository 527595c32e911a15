"""Objects and sets of ready texts, over parts that are built by somebody else.

Where things must differ from each other, they are picked from kinds that have nothing in common,
each kind once: that is all that a finite automaton can say about being different.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from agentdiff.constraint.automaton import END, INFINITE, NOWHERE, Node, choice, literal


@dataclass(frozen=True, slots=True)
class Part:
    """A value inside a container."""

    shortest: int
    """Bytes of the shortest such value; INFINITE when there is none."""
    build: Callable[[Node], Node]
    """What follows → the node where the value begins."""


@dataclass(frozen=True, slots=True)
class Member:
    """A declared key of an object."""

    key: bytes
    """As it is spelled, with its quotes."""
    build: Callable[[Node], Node]
    """What follows → the node where its value begins."""
    is_required: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands between things."""

    comma: bytes
    colon: bytes
    first: bytes = b""
    """Before the first of several things; between empty brackets stands nothing."""
    last: bytes = b""
    """Behind the last."""


class Picks:
    """How many bytes it takes to pick things of different kinds."""

    def __init__(self, costs: Sequence[int]) -> None:
        """Take the bytes of the shortest thing of each kind."""
        self.costs = costs
        self._order = sorted(range(len(costs)), key=costs.__getitem__)

    def cheapest(self, used: frozenset[int], count: int) -> int:
        """Bytes of `count` things of kinds that are not used yet; INFINITE if there are too few."""
        total, left = 0, count
        for kind in self._order:
            if left == 0:
                break
            if kind not in used:
                total, left = total + self.costs[kind], left - 1
        return INFINITE if left else min(total, INFINITE)


# -- objects ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Others:
    """Keys beyond the declared ones, which come last, and their values."""

    key: Callable[[Node], Node]
    """What follows the key → the node where it begins, quotes included."""
    value: Part
    by_kind: Callable[[], Sequence[Callable[[Node], Node]]]
    """The same keys in kinds that have nothing in common: kind by kind the same for all others."""


def members(
    declared: Sequence[Member],
    others: Sequence[Others],
    *,
    fewest: int = 0,
    most: int | None = None,
    layout: Layout,
    after: Node,
) -> Node:
    """Return a node that takes an object, then goes on; NOWHERE when there is none.

    Args:
        declared: Keys in the order they are written. Optional ones may be left out.
        others: Sets of further keys, which may overlap; none of them a declared key.
        fewest: Keys there must be.
        most: Keys there may be; None for no limit.
        layout: What stands between key and value, and between members.
        after: What follows.
    """
    if after.is_dead:
        return NOWHERE
    if fewest <= sum(member.is_required for member in declared):
        fewest = 0
    if most is not None and most >= len(declared) and not others:
        most = None
    tail = _Tail(others, fewest, most, layout, after)
    if most is None and not fewest:
        return _uncounted(declared, tail, layout)
    # Right to left; at each place in the order of keys one node for each count of keys before it.
    highest = min(len(declared), fewest if most is None else most)
    row = [tail.node(count) for count in range(highest + 1)]
    for member in reversed(declared):
        nodes: list[Node] = []
        for count in range(highest + 1):
            ways = [] if member.is_required else [row[count]]
            target = min(count + 1, highest) if most is None else count + 1
            if target <= highest:
                value = member.build(row[target])
                ways.append(_separated(member.key + layout.colon, value, count, layout))
            nodes.append(choice(ways))
        row = nodes
    return NOWHERE if row[0].is_dead else literal(b"{", row[0])


def _separated(key: bytes, value: Node, count: int, layout: Layout) -> Node:
    if value.is_dead:
        return NOWHERE
    return literal((layout.comma if count else layout.first) + key, value)


def _uncounted(declared: Sequence[Member], tail: _Tail, layout: Layout) -> Node:
    # Right to left; at each place in the order of keys one node with nothing before it, one with.
    bare, following = tail.node(0), tail.node(1)
    for member in reversed(declared):
        value = member.build(following)
        if value.is_dead:
            if member.is_required:
                return NOWHERE
            continue
        key = literal(member.key + layout.colon, value)
        first, further = literal(layout.first, key), literal(layout.comma, key)
        if member.is_required:
            bare, following = first, further
        else:
            bare, following = choice([first, bare]), choice([further, following])
    return literal(b"{", bare)


class _Tail:
    """The end of an object: other members, then the closing brace.

    Other keys may repeat each other, where the last one wins. So what is owed is picked from
    different kinds of keys, and only what comes after that is free.
    """

    def __init__(
        self,
        others: Sequence[Others],
        fewest: int,
        most: int | None,
        layout: Layout,
        after: Node,
    ) -> None:
        self._others = [o for o in others if o.value.shortest < INFINITE]
        self._fewest, self._most, self._layout = fewest, most, layout
        self._empty = literal(b"}", after)
        self._close = literal(layout.last, self._empty)
        self._nodes: dict[Hashable, Node] = {}
        self._picks: Picks | None = None
        self._by_kind: list[tuple[Callable[[Node], Node], ...]] = []

    def node(self, count: int) -> Node:
        """Behind `count` members."""
        if self._most is None:
            count = min(count, max(1, self._fewest))
        elif count > self._most:
            return NOWHERE
        return self._node(count, frozenset())

    def _node(self, count: int, used: frozenset[int]) -> Node:
        key = (count, used)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(
                self._near(count, used), lambda node: self._fill(node, count, used)
            )
        return node

    def _near(self, count: int, used: frozenset[int]) -> int:
        missing = self._fewest - count
        if missing <= 0:
            return (self._close if count else self._empty).near
        if self._most is not None and self._most < self._fewest:
            return INFINITE
        separators = len(self._layout.first) if count == 0 else len(self._layout.comma)
        separators += len(self._layout.comma) * (missing - 1)
        if missing == 1 and not used:
            least = min((self._shortest(o, o.key) for o in self._others), default=INFINITE)
        else:
            least = self._kinds().cheapest(used, missing)
        return least + separators + self._close.near

    def _shortest(self, other: Others, key: Callable[[Node], Node]) -> int:
        return self._member(other, key, END).near

    def _member(self, other: Others, key: Callable[[Node], Node], following: Node) -> Node:
        value = other.value.build(following)
        return NOWHERE if value.is_dead else key(literal(self._layout.colon, value))

    def _kinds(self) -> Picks:
        if self._picks is None:
            self._by_kind = list(zip(*(o.by_kind() for o in self._others), strict=True))
            self._picks = Picks(
                [
                    min(self._shortest(o, key) for o, key in zip(self._others, kind, strict=True))
                    for kind in self._by_kind
                ]
            )
        return self._picks

    def _fill(self, node: Node, count: int, used: frozenset[int]) -> None:
        missing = self._fewest - count
        if missing <= 0:
            node.skips.append(self._close if count else self._empty)
        if self._most is not None and count >= self._most:
            return
        separator = self._layout.comma if count else self._layout.first
        limit = max(1, self._fewest)
        target = count + 1 if self._most is not None else min(count + 1, limit)
        ways: list[Node] = []
        if missing <= 0 or (missing == 1 and not used):
            following = self._node(target, frozenset())
            ways = [self._member(o, o.key, following) for o in self._others]
        else:
            for k, cost in enumerate(self._kinds().costs):
                if k in used or cost >= INFINITE:
                    continue
                following = self._node(target, used | {k} if missing > 1 else frozenset())
                if not following.is_dead:
                    kind = zip(self._others, self._by_kind[k], strict=True)
                    ways += [self._member(o, key, following) for o, key in kind]
        node.skips += [literal(separator, way) for way in ways if not way.is_dead]


# -- ready texts --------------------------------------------------------------------------------


def one_of(texts: Iterable[bytes], after: Node) -> Node:
    """Return a node that takes one of these texts, then goes on: a trie, filled as it is walked."""
    ordered = sorted(set(texts))
    return NOWHERE if after.is_dead else trie(ordered, lambda _: after)


def trie(ordered: Sequence[bytes], after: Callable[[int], Node]) -> Node:
    """A node that takes one of some texts, sorted, then goes where its index says."""

    def branch(low: int, high: int, depth: int) -> Node:
        """The node after the common `depth` bytes of texts low..high-1."""
        if high - low == 1:
            return literal(ordered[low][depth:], after(low))
        nearest = min(len(ordered[i]) - depth + after(i).near for i in range(low, high))

        def fill(node: Node) -> None:
            i = low
            if len(ordered[i]) == depth:
                node.skips.append(after(i))
                i += 1
            while i < high:
                byte = ordered[i][depth]
                j = bisect_left(ordered, ordered[i][:depth] + bytes([byte + 1]), i, high)
                node.arcs.append((byte, byte, branch(i, j, depth + 1)))
                i = j

        return Node(nearest, fill)

    return branch(0, len(ordered), 0) if ordered else NOWHERE
