"""Lists, objects and sets of ready texts, over parts that are built by somebody else.

Counted and endless things are filled as they are reached, so a limit of 65,535 items costs nothing.
Where things must differ from each other, they are picked from kinds that have nothing in common,
each kind once: that is all that a finite automaton can say about being different.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from agentdiff.constraint.automaton import END, INFINITE, NOWHERE, Node, choice, literal

_Counts = tuple[int, tuple[int, ...]]
"""(items so far, of each kind)."""


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


# -- lists --------------------------------------------------------------------------------------


def array(
    item: Callable[[int], Part],
    *,
    distinct: int,
    fewest: int,
    most: int | None,
    layout: Layout,
    after: Node,
) -> Node:
    """Return a node that takes a list, then goes on; NOWHERE when there is none.

    Args:
        item: Index → the item there. From index `distinct` on, all items are alike.
        distinct: Items at the front that differ from the rest.
        fewest: Items there must be.
        most: Items there may be; None for no limit.
        layout: What separates items.
        after: What follows.
    """
    lengths: list[int] = []
    for i in range(distinct + 1):
        lengths.append(item(i).shortest)
        if lengths[-1] >= INFINITE:  # an item that cannot be ends the list before it
            most = i if most is None else min(most, i)
            break
    distinct = len(lengths) - 1
    if after.is_dead or (most is not None and most < fewest):
        return NOWHERE
    shell = _Shell(layout, after)

    def bytes_owed(count: int) -> int:
        """Bytes of the items still owed after `count` of them, separators included."""
        owed = sum(lengths[count : min(fewest, distinct)])
        if fewest > distinct:
            owed += lengths[distinct] * max(0, fewest - max(count, distinct))
        return owed + shell.separators(count, fewest)

    def behind(count: int) -> Node:
        """After `count` items: close, or a further one."""
        if most is None:
            count = min(count, max(fewest, distinct, 1))  # alike from here on
        node = known.get(count)
        if node is None:
            near = bytes_owed(count) + shell.closing(max(count, fewest)).near
            node = known[count] = Node(near, lambda node: fill(node, count))
        return node

    def fill(node: Node, count: int) -> None:
        if count >= fewest:
            node.skips.append(shell.closing(count))
        if most is None or count < most:
            value = item(count).build(behind(count + 1))
            if not value.is_dead:
                node.skips.append(shell.separated(count, value))

    known: dict[int, Node] = {}
    return literal(b"[", behind(0))


class _Shell:
    """The brackets and commas of a list."""

    def __init__(self, layout: Layout, after: Node) -> None:
        self._layout = layout
        self._empty = literal(b"]", after)
        self._close = literal(layout.last, self._empty)

    def closing(self, count: int) -> Node:
        """The end of a list of `count` items."""
        return self._close if count else self._empty

    def separated(self, count: int, item: Node) -> Node:
        """A further item behind `count` of them."""
        return literal(self._layout.comma if count else self._layout.first, item)

    def separators(self, count: int, fewest: int) -> int:
        """Bytes of what stands before the items that are owed after `count` of them."""
        if count >= fewest:
            return 0
        first = 0 if count else len(self._layout.first)
        return first + len(self._layout.comma) * (fewest - max(count, 1))


def array_with(
    item: Callable[[int, frozenset[int]], Part],
    *,
    bounds: Sequence[tuple[int, int | None]],
    distinct: int,
    fewest: int,
    most: int | None,
    layout: Layout,
    after: Node,
) -> Node:
    """Return a node that takes a list in which items of some kinds are counted.

    Args:
        item: (index, kinds it must be of) → the item there. It may be of further kinds, but not of
            one with an upper bound.
        bounds: Kind → items of it there must be, and may be.
        distinct: Items at the front that differ from the rest.
        fewest: Items there must be.
        most: Items there may be; None for no limit.
        layout: What separates items.
        after: What follows.
    """
    if after.is_dead:
        return NOWHERE
    shell = _Shell(layout, after)
    steady = max(fewest, distinct, 1)
    kinds = [
        frozenset(k for k in range(len(bounds)) if mask >> k & 1)
        for mask in range(1 << len(bounds))
    ]
    nears: dict[_Counts, int] = {}
    nodes: dict[_Counts, Node] = {}

    def following(state: _Counts, of: frozenset[int]) -> _Counts | None:
        """The state behind an item of these kinds."""
        count, found = state
        if most is not None and count >= most:
            return None
        counts: list[int] = []
        for k, (least, limit) in enumerate(bounds):
            n = found[k] + (k in of)
            if limit is not None and n > limit:
                return None
            counts.append(min(n, least) if limit is None else n)
        return (count + 1 if most is not None else min(count + 1, steady)), tuple(counts)

    def may_close(state: _Counts) -> bool:
        count, found = state
        return count >= fewest and all(n >= b[0] for n, b in zip(found, bounds, strict=True))

    def near(state: _Counts) -> int:
        known = nears.get(state)
        if known is None:
            count, found = state
            if may_close(state):
                known = shell.closing(count).near
            else:
                known = INFINITE
                nears[state] = INFINITE
                for of in kinds:
                    target = following(state, of)
                    if target is None or target == state:
                        continue
                    # Nothing is gained by going on without what is owed once there are enough.
                    if count >= steady and target[1] == found:
                        continue
                    length = item(count, of).shortest
                    if length < INFINITE:
                        known = min(known, len(shell_text(count)) + length + near(target))
            nears[state] = min(known, INFINITE)
        return nears[state]

    def shell_text(count: int) -> bytes:
        return layout.comma if count else layout.first

    def node_of(state: _Counts) -> Node:
        node = nodes.get(state)
        if node is None:
            node = nodes[state] = Node(near(state), lambda node: fill(node, state))
        return node

    def fill(node: Node, state: _Counts) -> None:
        if may_close(state):
            node.skips.append(shell.closing(state[0]))
        for of in kinds:
            target = following(state, of)
            if target is None or near(target) >= INFINITE:
                continue
            value = item(state[0], of).build(node_of(target))
            if not value.is_dead:
                node.skips.append(shell.separated(state[0], value))

    start = node_of((0, (0,) * len(bounds)))
    return NOWHERE if start.is_dead else literal(b"[", start)


def array_of_kinds(
    kinds: Sequence[Callable[[Node], Node]],
    *,
    fewest: int,
    most: int | None,
    layout: Layout,
    after: Node,
) -> Node:
    """Return a node that takes a list with at most one item of each kind."""
    if after.is_dead or (most is not None and most < fewest):
        return NOWHERE
    picks = Picks([kind(END).near for kind in kinds] if fewest else [0] * len(kinds))
    shell = _Shell(layout, after)
    nodes: dict[frozenset[int], Node] = {}

    def behind(used: frozenset[int]) -> Node:
        node = nodes.get(used)
        if node is None:
            count = len(used)
            owed = picks.cheapest(used, max(0, fewest - count))
            near = owed + shell.separators(count, fewest) + shell.closing(max(count, fewest)).near
            node = nodes[used] = Node(near, lambda node: fill(node, used))
        return node

    def fill(node: Node, used: frozenset[int]) -> None:
        count = len(used)
        if count >= fewest:
            node.skips.append(shell.closing(count))
        if most is not None and count >= most:
            return
        for k, kind in enumerate(kinds):
            target = NOWHERE if k in used else behind(used | {k})
            item = NOWHERE if target.is_dead else kind(target)
            if not item.is_dead:
                node.skips.append(shell.separated(count, item))

    start = behind(frozenset())
    return NOWHERE if start.is_dead else literal(b"[", start)


def array_of_texts(
    texts: Sequence[bytes], *, fewest: int, most: int | None, layout: Layout, after: Node
) -> Node:
    """Return a node that takes a list of some of these texts, none of them twice."""
    ordered = sorted(set(texts))
    picks = Picks([len(text) for text in ordered])
    shell = _Shell(layout, after)
    nodes: dict[frozenset[int], Node] = {}

    def near(used: frozenset[int]) -> int:
        count = len(used)
        owed = picks.cheapest(used, max(0, fewest - count))
        return owed + shell.separators(count, fewest) + shell.closing(max(count, fewest)).near

    def behind(used: frozenset[int]) -> Node:
        node = nodes.get(used)
        if node is None:
            node = nodes[used] = Node(near(used), lambda node: fill(node, used))
        return node

    def fill(node: Node, used: frozenset[int]) -> None:
        count = len(used)
        if count >= fewest:
            node.skips.append(shell.closing(count))
        if most is not None and count >= most:
            return
        left = [k for k in range(len(ordered)) if k not in used]
        if near(used | {left[0]} if left else used) < INFINITE and left:
            item = _trie([ordered[k] for k in left], lambda i: behind(used | {left[i]}))
            node.skips.append(shell.separated(count, item))

    if after.is_dead or (most is not None and most < fewest) or len(ordered) < fewest:
        return NOWHERE
    return literal(b"[", behind(frozenset()))


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
    return NOWHERE if after.is_dead else _trie(ordered, lambda _: after)


def _trie(ordered: Sequence[bytes], after: Callable[[int], Node]) -> Node:
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
