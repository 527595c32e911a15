"""A byte automaton with calls, determinised as far as somebody looks.

Nodes are what the schema compiler builds, from right to left: a node is made after what follows it,
so it knows at birth how many bytes lie between it and the end of its frame (`near`). Nodes of
counted or endless things are filled on demand. A rule is a piece that is called and returns: that
is how recursion stays finite.

A state is the set of (node, stack) pairs that a prefix of bytes can have reached. Stacks are
hash-consed. States and their rows of next states are made when first asked for, never all at once.

Knows bytes; no JSON, no tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentdiff.errors import SchemaError

INFINITE = 1 << 30
"""A distance or cost that no finite path has."""
DONE = 0
"""The state after the end of the text; only EOS follows, for ever."""
DEAD = -1
"""No state: the bytes are not a prefix of any sentence."""
NARROW = 24
"""A state with at most this many next bytes is kept as a list of them."""
MAX_STATES = 100_000
"""States an automaton may have; beyond it a schema is refused rather than served slowly."""
MAX_PLACES = 2_000_000
"""Places that all states together may stand for."""


class Node:
    """A place in the automaton. Treat as frozen once `fill` has run."""

    __slots__ = ("_arcs", "_calls", "_skips", "best", "fill", "near", "place", "price")

    def __init__(
        self, near: int, fill: Callable[[Node], None] | None = None, place: Place | None = None
    ) -> None:
        self.near = min(near, INFINITE)
        """An upper bound on the bytes to the frame's end that the best way out really has; INFINITE
        if none."""
        # Most nodes have edges of one kind or are never filled, so lists are made when asked for.
        self._arcs: list[tuple[int, int, Node]] | None = None
        self._skips: list[Node] | None = None
        self._calls: list[tuple[Rule, Node]] | None = None
        self.fill = fill
        """Writes the node's edges when they are first needed; None when they are there."""
        self.place = place
        """Where the node stands in something repeated, for those who know a short cut there. Such a
        node has arcs, and no other edges."""
        self.best: Step | None = None
        self.price = -1
        """Tokens to the frame's end; -1 until `closing` has computed it."""

    @property
    def arcs(self) -> list[tuple[int, int, Node]]:
        """(lowest byte, highest byte, next)."""
        if self._arcs is None:
            self._arcs = []
        return self._arcs

    @arcs.setter
    def arcs(self, arcs: list[tuple[int, int, Node]]) -> None:
        self._arcs = arcs

    @property
    def skips(self) -> list[Node]:
        """Next nodes that cost no byte."""
        if self._skips is None:
            self._skips = []
        return self._skips

    @skips.setter
    def skips(self, skips: list[Node]) -> None:
        self._skips = skips

    @property
    def calls(self) -> list[tuple[Rule, Node]]:
        """(rule, node to return to)."""
        if self._calls is None:
            self._calls = []
        return self._calls

    @property
    def edges(self) -> Edges:
        """The edges of all three kinds, not to be written to."""
        return self._arcs or (), self._skips or (), self._calls or ()

    def ready(self) -> Node:
        """Return self, with its edges there."""
        fill = self.fill
        if fill is not None:
            self.fill = None
            fill(self)
        return self

    @property
    def has_arcs_only(self) -> bool:
        """Whether it is known, without filling the node, that it has no skips and no calls."""
        return self.place is not None

    @property
    def is_dead(self) -> bool:
        """Whether no way leads from here to the end of the frame."""
        return self.near >= INFINITE


Edges = tuple[Sequence[tuple[int, int, "Node"]], Sequence["Node"], Sequence[tuple["Rule", "Node"]]]
"""(arcs, skips, calls) of a node."""
Step = tuple[int, "Node", "Rule | None"]
"""One step on the shortest way out: (byte or -1, next node, the rule called or None)."""


class Word:
    """Bytes to spell, and what follows them: one object for as many nodes as somebody gets to."""

    __slots__ = ("after", "data", "prices")

    def __init__(self, data: bytes, after: Node) -> None:
        self.data, self.after = data, after
        self.prices: array[int] | None = None
        """[bytes] tokens from each byte to the frame's end, -1 where that is not known yet; None
        before `closing` looks."""


class Letter(Node):
    """A place before a byte of a word. It has one arc."""

    __slots__ = ("at", "word")

    def __init__(self, word: Word, at: int) -> None:
        super().__init__(len(word.data) - at + word.after.near, _spell)
        self.word, self.at = word, at

    @property
    def has_arcs_only(self) -> bool:
        """It has one."""
        return True


def _spell(node: Node) -> None:
    assert isinstance(node, Letter)
    word, at = node.word, node.at
    byte = word.data[at]
    is_last = at + 1 == len(word.data)
    node.arcs.append((byte, byte, word.after if is_last else Letter(word, at + 1)))


class Joint(Node):
    """A place whose price is the sum of others': no token is counted on to reach across it."""

    __slots__ = ("parts",)

    def __init__(
        self, near: int, fill: Callable[[Node], None], parts: Callable[[], Sequence[Node]]
    ) -> None:
        super().__init__(near, fill)
        self.parts = parts
        """The nodes whose prices add up."""


class Place(Protocol):
    """A node's place in something repeated."""

    def way_out(self) -> Step:
        """The first step of the shortest way to the end of the frame, without filling the node."""
        ...


class Rule:
    """A piece of automaton that is called and returns."""

    __slots__ = ("near", "start")

    def __init__(self, near: int = INFINITE) -> None:
        self.near = near
        """Bytes of its shortest sentence."""
        self.start: Node = NOWHERE


END = Node(0)
"""The end of every frame."""
NOWHERE = Node(INFINITE)
"""The node of the empty language."""


def literal(data: bytes, after: Node) -> Node:
    """Return a node that spells `data`, then goes on."""
    return Letter(Word(data, after), 0) if data else after


def byte_range(low: int, high: int, after: Node) -> Node:
    """Return a node that takes one byte in low..high, then goes on."""
    node = Node(after.near + 1)
    node.arcs.append((low, high, after))
    return node


def choice(ways: Sequence[Node]) -> Node:
    """Return a node that goes any of these ways, or NOWHERE when all are dead."""
    live = [way for way in ways if not way.is_dead]
    if len(live) < 2:
        return live[0] if live else NOWHERE
    node = Node(min(way.near for way in live))
    node.skips.extend(live)
    return node


def call(rule: Rule, after: Node) -> Node:
    """Return a node that calls `rule`, then goes on."""
    node = Node(rule.near + after.near)
    node.calls.append((rule, after))
    return node


def way_out(node: Node) -> Step:
    """Return the first step of the shortest way out of a live node other than END."""
    if node.best is None and node.place is not None:
        node.best = node.place.way_out()
    elif node.best is None:
        arcs, skips, calls = node.ready().edges
        steps: list[tuple[int, Step]] = [(n.near, (-1, n, None)) for n in skips]
        steps += [(n.near + 1, (_typical(low, high), n, None)) for low, high, n in arcs]
        steps += [(rule.near + n.near, (-1, n, rule)) for rule, n in calls]
        distance, node.best = min(steps, key=lambda step: step[0])
        assert distance <= node.near, "a node promised a shorter way out than it has"
    assert node.best is not None
    return node.best


def _typical(low: int, high: int) -> int:
    """The byte of a range that a vocabulary is likeliest to have on its own."""
    for byte in b'a10"}],':
        if low <= byte <= high:
            return byte
    return low


Item = tuple[Node, int]
"""(node, stack): one place that a prefix can have reached."""


class Wide:
    """Where each byte leads, as runs of bytes that lead to the same state."""

    __slots__ = ("_firsts", "_targets")

    def __init__(self, firsts: bytes, targets: Sequence[int]) -> None:
        self._firsts = firsts
        """[runs] the first byte of each; the first run begins at byte 0."""
        self._targets = array("i", targets)

    def next(self, byte: int) -> int:
        """Return the next state, or DEAD."""
        return self._targets[bisect_right(self._firsts, byte) - 1]

    def write_targets(self, targets: NDArray[np.int32]) -> None:
        """Write the next state of every byte: [256]."""
        for first, target in zip(self._firsts, self._targets, strict=True):
            targets[first:] = target


Row = list[tuple[int, int]] | Wide
"""Where the bytes lead from a state: (byte, next state) pairs when few may follow."""


def _wide(runs: Sequence[tuple[int, int, int]]) -> Wide:
    """The row of runs (first byte, byte behind the last, next state), in order."""
    firsts, targets, at = bytearray(), list[int](), 0
    for first, stop, target in runs:
        if first > at:
            firsts.append(at)
            targets.append(DEAD)
        firsts.append(first)
        targets.append(target)
        at = stop
    if at < 256:
        firsts.append(at)
        targets.append(DEAD)
    return Wide(bytes(firsts), targets)


class Automaton:
    """The determinised view; grows while it is asked. Not thread-safe: the owner holds a lock."""

    def __init__(self, start: Node, price: Callable[[Node], int]) -> None:
        """Begin with the start state alone.

        Args:
            start: Where a text begins.
            price: Tokens from a node to the end of its frame, or INFINITE.
        """
        self._price = price
        self._stacks: list[Item] = [(END, -1)]  # stack 0 is empty
        self._stack_ids: dict[Item, int] = {}
        self._stack_costs: list[int] = [0]
        self._states: dict[object, int] = {}
        """Places → the state they close to. A closed set of places closes to itself."""
        self.items: list[tuple[Item, ...]] = [()]
        """[states] the places a state stands for."""
        self.costs: list[int] = [-INFINITE]
        """[states] tokens to the end of the text, or INFINITE; DONE is below every limit."""
        self.accepting: list[bool] = [False]
        """[states] whether the text may end here."""
        self._rows: list[Row | None] = [[]]
        """[states] where the bytes lead; None until `expand` has run."""
        self._places = 0
        self.start = self._intern([(start, 0)])

    def __len__(self) -> int:
        return len(self.items)

    @property
    def nbytes(self) -> int:
        """Bytes held, about: as measured, with the nodes that were made for these places."""
        return 500 * len(self.items) + 150 * self._places

    def expand(self, state: int) -> Row:
        """Return where the bytes lead from a state."""
        known = self._rows[state]
        if known is not None:
            return known
        single: dict[int, list[Item]] = {}
        ranges: list[tuple[int, int, Item]] = []
        for node, stack in self.items[state]:
            for low, high, after in node.ready().edges[0]:
                if low == high:
                    single.setdefault(low, []).append((after, stack))
                else:
                    ranges.append((low, high, (after, stack)))
        if not ranges:
            runs = [(byte, byte + 1, self._intern(items)) for byte, items in sorted(single.items())]
        else:
            cuts = {low for low, _, _ in ranges} | {high + 1 for _, high, _ in ranges}
            cuts.update(single, (byte + 1 for byte in single))
            runs: list[tuple[int, int, int]] = []
            for first, stop in pairwise(sorted(cuts)):
                items = [item for low, high, item in ranges if low <= first and stop - 1 <= high]
                items += single.get(first, ())
                if items:
                    runs.append((first, stop, self._intern(items)))
        if sum(stop - first for first, stop, _ in runs) <= NARROW:
            row: Row = [
                (byte, target) for first, stop, target in runs for byte in range(first, stop)
            ]
        else:
            row = _wide(runs)
        self._rows[state] = row
        return row

    def step(self, state: int, data: bytes) -> int:
        """Follow the bytes from a state; DEAD when they lead nowhere."""
        for byte in data:
            row = self.expand(state)
            is_wide = isinstance(row, Wide)
            state = row.next(byte) if is_wide else dict(row).get(byte, DEAD)
            if state == DEAD:
                break
        return state

    def place(self, items: Iterable[Item]) -> int:
        """Return the state that stands for these places."""
        return self._intern(list(items))

    def above(self, stack: int) -> Item:
        """Return where a frame on this stack returns to: (node, the stack below)."""
        return self._stacks[stack]

    def _push(self, after: Node, stack: int) -> int:
        key = (after, stack)
        known = self._stack_ids.get(key)
        if known is None:
            known = self._stack_ids[key] = len(self._stacks)
            self._stacks.append(key)
            self._stack_costs.append(min(self._price(after) + self._stack_costs[stack], INFINITE))
        return known

    def _intern(self, raw: list[Item]) -> int:
        key: object = raw[0] if len(raw) == 1 else frozenset(raw)
        state = self._states.get(key)
        if state is None:
            items = self._close(raw)
            identity: object = items[0] if len(items) == 1 else frozenset(items)
            state = self._states.get(identity)
            if state is None:
                state = self._states[identity] = len(self.items)
                self._append(items)
            self._states[key] = state
        return state

    def _append(self, items: list[Item]) -> None:
        self._places += len(items)
        if len(self.items) >= MAX_STATES or self._places > MAX_PLACES:
            raise SchemaError(
                f"the schema needs more than {MAX_STATES:,} states of {MAX_PLACES:,} places; bound "
                "its repetitions, or split alternatives that begin alike"
            )
        self.items.append(tuple(items))
        cost, accepting = INFINITE, False
        for node, stack in items:
            cost = min(cost, self._price(node) + self._stack_costs[stack])
            accepting |= node is END
        self.costs.append(cost)
        self.accepting.append(accepting)
        self._rows.append(None)

    def _close(self, raw: list[Item]) -> list[Item]:
        """Everything reachable without a byte: places with arcs, and the end of the text."""
        if len(raw) == 1:  # most states: one place, plain arcs
            node = raw[0][0]
            if node.has_arcs_only:  # no need to fill it
                return raw
            arcs, skips, calls = node.ready().edges
            if arcs and not skips and not calls:
                return raw
        seen: set[Item] = set(raw)
        work = list(seen)
        kept: list[Item] = []
        while work:
            node, stack = work.pop()
            if node is END:
                if stack == 0:
                    kept.append((node, 0))
                    continue
                following = [self._stacks[stack]]
            elif node.has_arcs_only:
                kept.append((node, stack))
                continue
            else:
                arcs, skips, calls = node.ready().edges
                if arcs:
                    kept.append((node, stack))
                following = [(after, stack) for after in skips]
                for rule, after in calls:
                    # A call in tail position keeps the stack: this is also what ends left
                    # recursion.
                    inner = stack if after is END else self._push(after, stack)
                    following.append((rule.start, inner))
            for item in following:
                if item not in seen:
                    seen.add(item)
                    work.append(item)
        return kept
