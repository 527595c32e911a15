"""A byte automaton with calls: its nodes, and what puts them together.

Nodes are what the schema compiler builds, from right to left: a node is made after what follows it,
so it knows at birth how many bytes lie between it and the end of its frame (`near`). Nodes of
counted or endless things are filled on demand; places that come by the thousand (the bytes of a
word, the characters of a string) share one object, a `Stretch`. A rule is a piece that is called
and returns: that is how recursion stays finite.

Knows bytes; no JSON, no tokens. `states.py` makes it deterministic.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

INFINITE = 1 << 30
"""A distance or cost that no finite path has."""
DONE = 0
"""The state after the end of the text; only EOS follows, for ever."""
DEAD = -1
"""No state: the bytes are not a prefix of any sentence."""


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


class Stretch:
    """Many places in one object, by number. A node of it is made whenever somebody gets there."""

    __slots__ = ("_prices",)

    def __init__(self) -> None:
        self._prices: array[int] | None = None

    def point(self, at: int) -> Point:
        """Return the node of a place."""
        raise NotImplementedError

    def like(self, at: int) -> int:
        """Return the first place whose way out is spelled the same; it has the same price."""
        return at

    def price(self, at: int) -> int:
        """Tokens from a place to the frame's end; -1 until `closing` has computed it."""
        at, prices = self.like(at), self._prices
        return -1 if prices is None or at >= len(prices) else prices[at]

    def keep_price(self, at: int, price: int) -> None:
        """Remember the price of a place."""
        at = self.like(at)
        if self._prices is None:
            self._prices = array("i")
        missing = at + 1 - len(self._prices)
        if missing > 0:
            self._prices.extend(array("i", [-1]) * missing)
        self._prices[at] = price


class Point(Node):
    """A place of a stretch. It has arcs and no other edges, and keeps nothing itself."""

    __slots__ = ("at", "stretch")

    def __init__(self, near: int, stretch: Stretch, at: int) -> None:
        super().__init__(near)
        self.stretch, self.at = stretch, at

    @property
    def has_arcs_only(self) -> bool:
        """It has no others."""
        return True

    @property
    def edges(self) -> Edges:
        """The arcs."""
        return self.ways(), (), ()

    def ways(self) -> Sequence[tuple[int, int, Node]]:
        """Return the arcs: (lowest byte, highest byte, next)."""
        raise NotImplementedError

    def way_out(self) -> Step:
        """Return the first step of the shortest way to the end of the frame."""
        raise NotImplementedError


class Word(Stretch):
    """Bytes to spell, and what follows them."""

    __slots__ = ("after", "data")

    def __init__(self, data: bytes, after: Node) -> None:
        super().__init__()
        self.data, self.after = data, after

    def point(self, at: int) -> Letter:
        """Return the place before a byte."""
        return Letter(self, at)


class Letter(Point):
    """A place before a byte of a word."""

    __slots__ = ("word",)

    def __init__(self, word: Word, at: int) -> None:
        super().__init__(len(word.data) - at + word.after.near, word, at)
        self.word = word

    def ways(self) -> Sequence[tuple[int, int, Node]]:
        """One arc."""
        byte, following, _ = self.way_out()
        return ((byte, byte, following),)

    def way_out(self) -> Step:
        """The byte."""
        word, behind = self.word, self.at + 1
        following = Letter(word, behind) if behind < len(word.data) else word.after
        return word.data[self.at], following, None


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
    if isinstance(node, Point):
        return node.way_out()
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
