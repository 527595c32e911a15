"""Objects whose keys stand in any order.

What has been written is remembered as the set of declared keys that are used up, so each stands once
and none of the required ones is missing at the end. There are 2^n such sets; a node is made for those
that somebody gets to, and a text of n keys gets to n + 1 of them. Values are calls: what the value of
a key is made of is the same whatever stands around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentdiff.constraint.automaton import END, INFINITE, NOWHERE, Joint, Node, literal
from agentdiff.constraint.containers import Layout, cheapest, trie
from agentdiff.constraint.members import Further, Member, Others


def unordered_members(
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
        declared: Keys that stand once at most; the required ones stand once. Building the value of
            one must be cheap: it is done for many nodes that follow.
        others: Sets of further keys, which may overlap; none of them a declared key. They stand
            anywhere among the declared ones.
        fewest: Keys there must be.
        most: Keys there may be; None for no limit.
        layout: What stands between key and value, and between members.
        after: What follows.
    """
    needed = sum(member.is_required for member in declared)
    if after.is_dead or (most is not None and most < max(fewest, needed)):
        return NOWHERE
    if most is not None and most >= len(declared) and not others:
        most = None
    lengths = [member.build(END).near for member in declared]
    if any(n >= INFINITE and m.is_required for m, n in zip(declared, lengths, strict=True)):
        return NOWHERE
    live = [m for m, n in zip(declared, lengths, strict=True) if n < INFINITE]
    keys = _Keys(live, Further(others, layout.colon, is_called=True), layout, after)
    start = _State(
        used=0,
        owed=max(0, fewest - needed),
        room=None if most is None else most - needed,
        is_first=True,
        kinds=frozenset(),
    )
    node = keys.node(start)
    return NOWHERE if node.is_dead else literal(b"{", node)


class _State(NamedTuple):
    """What has been written, as far as it matters to what may follow."""

    used: int
    """The declared keys that stand there, as bits."""
    owed: int
    """Different keys that must come beside the required ones."""
    room: int | None
    """Keys that may come beside the required ones; None for no limit."""
    is_first: bool
    """Whether there is no key yet."""
    kinds: frozenset[int]
    """The kinds of the other keys, as long as there must be different ones."""

    def behind(self, bit: int, *, is_required: bool) -> _State:
        """Return the state behind a declared key."""
        if is_required:
            return self._replace(used=self.used | bit, is_first=False)
        return self._behind_one(self.kinds)._replace(used=self.used | bit)

    def behind_other(self, kinds: frozenset[int]) -> _State:
        """Return the state behind another key, with the kinds used then."""
        return self._behind_one(kinds)

    def _behind_one(self, kinds: frozenset[int]) -> _State:
        owed = max(0, self.owed - 1)
        return self._replace(
            owed=owed,
            room=None if self.room is None else self.room - 1,
            is_first=False,
            kinds=kinds if owed else frozenset(),
        )


class _Keys:
    """The places between the members of one object."""

    def __init__(
        self, declared: Sequence[Member], further: Further, layout: Layout, after: Node
    ) -> None:
        # In the order of their spelling, as a trie takes them: no spelled key begins another one.
        self._declared = sorted(declared, key=lambda member: member.key)
        self._spelled = [member.key + layout.colon for member in self._declared]
        self._costs = [
            len(layout.comma) + len(spelled) + member.build(END).near
            for member, spelled in zip(self._declared, self._spelled, strict=True)
        ]
        """Bytes of the shortest member of each key, with a comma."""
        self._required = sum(1 << i for i, m in enumerate(self._declared) if m.is_required)
        self._further, self._layout = further, layout
        self._empty = literal(b"}", after)
        self._close = literal(layout.last, self._empty)
        self._nodes: dict[_State, Node] = {}
        self._members: dict[int, Node] = {}

    def node(self, state: _State) -> Node:
        """Return the place where another member may stand, or the end."""
        node = self._nodes.get(state)
        if node is None:
            near = self._near(state)
            if state.is_first or state.owed:
                node = Node(near, lambda node: self._fill(node, state))
            else:
                # What is missing costs the same in any order, so nobody has to go that way to know.
                missing = self._required & ~state.used
                node = Joint(
                    near,
                    lambda node: self._fill(node, state),
                    lambda: [self._close, *map(self._member, _bits(missing))],
                )
            self._nodes[state] = node
        return node

    def _member(self, i: int) -> Node:
        """A whole member of a key, with a comma, as a frame of its own."""
        node = self._members.get(i)
        if node is None:
            text = self._layout.comma + self._spelled[i]
            node = self._members[i] = literal(text, self._declared[i].build(END))
        return node

    def _near(self, state: _State) -> int:
        """Bytes to the end: what is required, and the cheapest of what else is owed."""
        missing = self._required & ~state.used
        if not missing and not state.owed:
            return (self._empty if state.is_first else self._close).near
        total = self._close.near + self._cost_of(missing)
        if state.is_first:
            total += len(self._layout.first) - len(self._layout.comma)
        if state.owed:
            comma = len(self._layout.comma)
            costs = [self._costs[i] for i in self._optional(state)]
            costs += [comma + cost for cost in self._further.costs(state.owed, state.kinds)]
            total += cheapest(costs, state.owed)
        return min(total, INFINITE)

    def _optional(self, state: _State) -> list[int]:
        """The declared keys that may still come and need not."""
        return _bits(~(self._required | state.used) & ((1 << len(self._declared)) - 1))

    def _fill(self, node: Node, state: _State) -> None:
        missing = self._required & ~state.used
        if not missing and not state.owed:
            node.skips.append(self._empty if state.is_first else self._close)
        has_room = state.room is None or state.room > 0
        # A key that is not required may come even where others are owed: it is one of them.
        ways: list[Node] = []
        keys = sorted(_bits(missing) + (self._optional(state) if has_room else []))
        if keys:
            ways.append(self._declared_member(state, keys))
        if has_room:
            ways += self._further.ways(
                state.owed, state.kinds, lambda kinds: self.node(state.behind_other(kinds))
            )
        separator = self._layout.first if state.is_first else self._layout.comma
        node.skips += [literal(separator, way) for way in ways]

    def _declared_member(self, state: _State, keys: list[int]) -> Node:
        """A node that takes a member with one of these keys, then what follows it."""
        behind_all = self._close.near + self._cost_of(self._required & ~state.used)
        comma = len(self._layout.comma)

        def near(k: int) -> int:
            i = keys[k]
            value = self._costs[i] - comma - len(self._spelled[i])
            if state.owed:
                return value + self._near(self._behind(state, i))
            # The same without looking at each of the others.
            return value + behind_all - (self._costs[i] if self._required >> i & 1 else 0)

        def value(k: int) -> Node:
            i = keys[k]
            return self._declared[i].build(self.node(self._behind(state, i)))

        return trie([self._spelled[i] for i in keys], near, value)

    def _behind(self, state: _State, i: int) -> _State:
        return state.behind(1 << i, is_required=bool(self._required >> i & 1))

    def _cost_of(self, mask: int) -> int:
        return sum(self._costs[i] for i in _bits(mask))


def _bits(mask: int) -> list[int]:
    return [i for i, digit in enumerate(reversed(f"{mask:b}")) if digit == "1"]
