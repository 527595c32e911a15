"""Lists over parts that are built by somebody else.

Counted and endless lists are filled as they are reached, so a limit of 65,535 items costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from agentdiff.constraint.containers import Layout, Part, Picks, trie

_Counts = tuple[int, tuple[int, ...]]
"""(items so far, of each kind)."""


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
    nodes: dict[int, Node] = {}
    rules: dict[int, Rule] = {}

    def rule(k: int) -> Rule:
        """The items of a kind: written once, since they may stand before many things."""
        found = rules.get(k)
        if found is None:
            found = rules[k] = Rule()
            found.start = kinds[k](END)
            found.near = found.start.near
        return found

    def behind(used: int) -> Node:
        """After items of some kinds, one bit for each."""
        node = nodes.get(used)
        if node is None:
            count = used.bit_count()
            owed = picks.cheapest(used, max(0, fewest - count))
            near = owed + shell.separators(count, fewest) + shell.closing(max(count, fewest)).near
            node = nodes[used] = Node(near, lambda node: fill(node, used))
        return node

    def fill(node: Node, used: int) -> None:
        count = used.bit_count()
        if count >= fewest:
            node.skips.append(shell.closing(count))
        if most is not None and count >= most:
            return
        items: list[Node] = []
        for k in range(len(kinds)):
            target = NOWHERE if used >> k & 1 else behind(used | 1 << k)
            if not target.is_dead and rule(k).near < INFINITE:
                items.append(call(rule(k), target))
        if items:
            node.skips.append(shell.separated(count, choice(items)))

    start = behind(0)
    return NOWHERE if start.is_dead else literal(b"[", start)


def array_of_texts(
    texts: Sequence[bytes], *, fewest: int, most: int | None, layout: Layout, after: Node
) -> Node:
    """Return a node that takes a list of some of these texts, none of them twice."""
    ordered = sorted(set(texts))
    picks = Picks([len(text) for text in ordered])
    shell = _Shell(layout, after)
    nodes: dict[int, Node] = {}

    def near(used: int) -> int:
        count = used.bit_count()
        owed = picks.cheapest(used, max(0, fewest - count))
        return owed + shell.separators(count, fewest) + shell.closing(max(count, fewest)).near

    def behind(used: int) -> Node:
        node = nodes.get(used)
        if node is None:
            node = nodes[used] = Node(near(used), lambda node: fill(node, used))
        return node

    def fill(node: Node, used: int) -> None:
        count = used.bit_count()
        if count >= fewest:
            node.skips.append(shell.closing(count))
        if most is not None and count >= most:
            return
        left = [k for k in range(len(ordered)) if not used >> k & 1]
        if left and near(used | 1 << left[0]) < INFINITE:
            item = trie(
                [ordered[k] for k in left],
                lambda i: near(used | 1 << left[i]),
                lambda i: behind(used | 1 << left[i]),
            )
            node.skips.append(shell.separated(count, item))

    if after.is_dead or (most is not None and most < fewest) or len(ordered) < fewest:
        return NOWHERE
    return literal(b"[", behind(0))
