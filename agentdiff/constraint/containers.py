"""Lists, objects and sets of ready texts, over parts that are built by somebody else.

Counted and endless things are filled as they are reached, so a limit of 65,535 items costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentdiff.constraint.automaton import INFINITE, NOWHERE, Node, choice, literal
from agentdiff.constraint.strings import OtherKey


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


def array(
    item: Callable[[int], Part],
    *,
    distinct: int,
    fewest: int,
    most: int | None,
    comma: bytes,
    after: Node,
) -> Node:
    """Return a node that takes a list, then goes on; NOWHERE when there is none.

    Args:
        item: Index → the item there. From index `distinct` on, all items are alike.
        distinct: Items at the front that differ from the rest.
        fewest: Items there must be.
        most: Items there may be; None for no limit.
        comma: What separates items.
        after: What follows.
    """
    lengths = [item(i).shortest for i in range(distinct + 1)]
    for i, length in enumerate(lengths):
        if length >= INFINITE:  # an item that cannot be ends the list before it
            most = i if most is None else min(most, i)
            break
    if after.is_dead or (most is not None and most < fewest):
        return NOWHERE

    def bytes_owed(count: int) -> int:
        """Bytes of the items still owed after `count` of them, separators included."""
        owed = sum(lengths[count : min(fewest, distinct)])
        if fewest > distinct:
            owed += lengths[distinct] * max(0, fewest - max(count, distinct))
        return owed + len(comma) * max(0, fewest - max(count, 1))

    def behind(count: int) -> Node:
        """After `count` items: close, or a further one."""
        if most is None:
            count = min(count, max(fewest, distinct, 1))  # alike from here on
        node = known.get(count)
        if node is None:
            near = bytes_owed(count) + 1 + after.near
            node = known[count] = Node(near, lambda node: fill(node, count))
        return node

    def fill(node: Node, count: int) -> None:
        if count >= fewest:
            node.skips.append(close)
        if most is None or count < most:
            value = item(count).build(behind(count + 1))
            if not value.is_dead:
                node.skips.append(literal(comma, value) if count else value)

    known: dict[int, Node] = {}
    close = literal(b"]", after)
    return literal(b"[", behind(0))


def members(
    declared: Sequence[Member],
    rest: Part,
    *,
    excluded: Iterable[bytes],
    comma: bytes,
    colon: bytes,
    after: Node,
) -> Node:
    """Return a node that takes an object, then goes on; NOWHERE when there is none.

    Args:
        declared: Keys in the order they are written. Optional ones may be left out.
        rest: The value of any key beyond the declared ones, which come last; dead for a closed
            object.
        excluded: Keys that may not come back among the others, spelled, without quotes.
        comma: What separates members.
        colon: What stands between key and value.
        after: What follows.
    """
    # Right to left; at each place in the order of keys one node with nothing before it, one with.
    bare, following = _other_members(rest, excluded, comma, colon, literal(b"}", after))
    for member in reversed(declared):
        value = member.build(following)
        if value.is_dead:
            if member.is_required:
                return NOWHERE
            continue
        key = literal(member.key + colon, value)
        continued = literal(comma, key)
        if member.is_required:
            bare, following = key, continued
        else:
            bare, following = choice([key, bare]), choice([continued, following])
    return literal(b"{", bare)


def _other_members(
    rest: Part, excluded: Iterable[bytes], comma: bytes, colon: bytes, close: Node
) -> tuple[Node, Node]:
    """Other members, then the end: (with nothing before, with a member before)."""
    if rest.shortest >= INFINITE or close.is_dead:
        return close, close
    spelled = list(excluded)

    def member(following: Node) -> Node:
        value = literal(colon, rest.build(following))
        return literal(b'"', OtherKey(spelled, value).start())

    def fill(node: Node) -> None:
        node.skips += [close, literal(comma, member(node))]

    following = Node(close.near, fill)
    return choice([close, member(following)]), following


def one_of(texts: Iterable[bytes], after: Node) -> Node:
    """Return a node that takes one of these texts, then goes on: a trie, filled as it is walked."""
    ordered = sorted(set(texts))
    if after.is_dead or not ordered:
        return NOWHERE

    def branch(low: int, high: int, depth: int) -> Node:
        """The node after the common `depth` bytes of texts low..high-1."""
        if high - low == 1:
            return literal(ordered[low][depth:], after)
        shortest = min(len(text) for text in ordered[low:high]) - depth

        def fill(node: Node) -> None:
            i = low
            if len(ordered[i]) == depth:
                node.skips.append(after)
                i += 1
            while i < high:
                byte, j = ordered[i][depth], i + 1
                while j < high and ordered[j][depth] == byte:
                    j += 1
                node.arcs.append((byte, byte, branch(i, j, depth + 1)))
                i = j

        return Node(shortest + after.near, fill)

    return branch(0, len(ordered), 0)
