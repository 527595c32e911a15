"""Objects: declared keys in their order, then all others.

Keys beyond the declared ones may repeat each other, where the last one wins. So those that are owed
are picked from kinds of keys that have nothing in common, and only what comes after them is free.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from agentdiff.constraint.automaton import (
    END,
    INFINITE,
    NOWHERE,
    Node,
    Rule,
    call,
    choice,
    literal,
)
from agentdiff.constraint.containers import Layout, Part, cheapest


@dataclass(frozen=True, slots=True)
class Member:
    """A declared key of an object."""

    key: bytes
    """As it is spelled, with its quotes."""
    build: Callable[[Node], Node]
    """What follows → the node where its value begins."""
    is_required: bool


@dataclass(frozen=True, slots=True)
class Others:
    """Keys beyond the declared ones, and their values."""

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
        others: Sets of further keys, which may overlap; none of them a declared key. They come
            last.
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
    tail = _Tail(Further(others, layout.colon), fewest, most, layout, after)
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


class Further:
    """One more member whose key is none of the declared ones."""

    def __init__(self, others: Sequence[Others], colon: bytes, *, is_called: bool = False) -> None:
        """Take the sets of such keys, and what stands between key and value.

        Args:
            others: The sets.
            colon: What stands between key and value.
            is_called: Whether such a member stands before many things, so that it is a call.
        """
        self._others = [o for o in others if o.value.shortest < INFINITE]
        self._colon = colon
        self._any = self._build(o.key for o in self._others)
        if is_called:
            self._any = _called(self._any)

    def costs(self, owed: int, used: frozenset[int]) -> list[int]:
        """Return the bytes of the members to pick from where so many different ones are owed."""
        if owed == 1 and not used:
            return [self._shortest]
        return [cost for k, cost in enumerate(self._kind_costs) if k not in used]

    def ways(
        self, owed: int, used: frozenset[int], following: Callable[[frozenset[int]], Node]
    ) -> list[Node]:
        """Return the nodes where such a member begins.

        Args:
            owed: How many different members are owed here, this one among them.
            used: The kinds of those that there are.
            following: The kinds that are used then → what follows.
        """
        if owed == 0 or (owed == 1 and not used):
            found = [self._any(following(frozenset()))]
        else:
            found = [
                kind(following(used | {k} if owed > 1 else frozenset()))
                for k, (kind, cost) in enumerate(zip(self._kinds, self._kind_costs, strict=True))
                if k not in used and cost < INFINITE
            ]
        return [way for way in found if not way.is_dead]

    def _build(self, keys: Iterable[Callable[[Node], Node]]) -> Callable[[Node], Node]:
        """A member with the keys of each set."""
        pairs = list(zip(self._others, keys, strict=True))

        def build(after: Node) -> Node:
            ways: list[Node] = []
            for other, key in pairs:
                value = NOWHERE if after.is_dead else other.value.build(after)
                if not value.is_dead:
                    ways.append(key(literal(self._colon, value)))
            return choice(ways)

        return build

    @cached_property
    def _shortest(self) -> int:
        return self._any(END).near

    @cached_property
    def _kinds(self) -> list[Callable[[Node], Node]]:
        by_kind = zip(*(o.by_kind() for o in self._others), strict=True)
        return [_called(self._build(keys)) for keys in by_kind]

    @cached_property
    def _kind_costs(self) -> list[int]:
        return [kind(END).near for kind in self._kinds]


def _called(build: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """The same as a call, built once."""

    @cache
    def rule() -> Rule:
        start = build(END)
        found = Rule(start.near)
        found.start = start
        return found

    return lambda after: call(rule(), after)


class _Tail:
    """The end of an object: other members, then the closing brace."""

    def __init__(
        self, further: Further, fewest: int, most: int | None, layout: Layout, after: Node
    ) -> None:
        self._further, self._layout = further, layout
        self._fewest, self._most = fewest, most
        self._empty = literal(b"}", after)
        self._close = literal(layout.last, self._empty)
        self._nodes: dict[Hashable, Node] = {}

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
        owed = self._fewest - count
        if owed <= 0:
            return (self._close if count else self._empty).near
        if self._most is not None and self._most < self._fewest:
            return INFINITE
        separators = len(self._layout.first) if count == 0 else len(self._layout.comma)
        separators += len(self._layout.comma) * (owed - 1)
        return cheapest(self._further.costs(owed, used), owed) + separators + self._close.near

    def _fill(self, node: Node, count: int, used: frozenset[int]) -> None:
        owed = max(0, self._fewest - count)
        if not owed:
            node.skips.append(self._close if count else self._empty)
        if self._most is not None and count >= self._most:
            return
        separator = self._layout.comma if count else self._layout.first
        target = count + 1 if self._most is not None else min(count + 1, max(1, self._fewest))
        ways = self._further.ways(owed, used, lambda kinds: self._node(target, kinds))
        node.skips += [literal(separator, way) for way in ways]
