"""The automaton made deterministic, as far as somebody looks.

A state is the set of places that a prefix of bytes can have reached. States and their rows of next
states are made when first asked for, never all at once, and held in arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DEAD, END, INFINITE, Node, Point
from agentdiff.constraint.places import EMPTY, Item, Places
from agentdiff.constraint.rows import Rows, Run
from agentdiff.errors import SchemaError

NARROW = 24
"""A state with at most this many next bytes is followed byte by byte."""
MAX_STATES = 100_000
"""States an automaton may have; beyond it a schema is refused rather than served slowly."""
MAX_PLACES = 2_000_000
"""Places that all states together may stand for."""


class Automaton:
    """The states of an automaton; grows while it is asked. Not thread-safe: the owner holds a lock."""

    def __init__(self, start: Node, price: Callable[[Node], int]) -> None:
        """Begin with the start state alone.

        Args:
            start: Where a text begins.
            price: Tokens from a node to the end of its frame, or INFINITE.
        """
        self._places = Places(price)
        self._together: dict[bytes, int] = {}
        """Numbers of several places → the state they close to. A closed set closes to itself."""
        self._key_bytes = 0
        self._first, self._members = array("i", [0, 0]), array("i")
        """[states + 1] where the places of a state begin among [members] all of them."""
        self.costs = array("i", [-INFINITE])
        """[states] tokens to the end of the text, or INFINITE; DONE is below every limit."""
        self._may_end = bytearray([False])
        self._rows = Rows()
        self._rows.append()
        self._rows.write(0, ())
        self.start = self._intern([(start, EMPTY)])

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def nbytes(self) -> int:
        """Bytes held, about, with the nodes that were made for these places."""
        own = 9 * len(self) + 4 * len(self._members)
        keys = 100 * len(self._together) + self._key_bytes
        return own + keys + self._places.nbytes + self._rows.nbytes

    def may_end(self, state: int) -> bool:
        """Whether the text may end in a state."""
        return bool(self._may_end[state])

    def items(self, state: int) -> list[Item]:
        """Return the places that a state stands for."""
        numbers = self._members[self._first[state] : self._first[state + 1]]
        return [self._places.item(number) for number in numbers]

    def place(self, items: Iterable[Item]) -> int:
        """Return the state that stands for these places."""
        return self._intern(list(items))

    def is_narrow(self, state: int) -> bool:
        """Whether few bytes may follow a state."""
        self._expand(state)
        return self._rows.width(state) <= NARROW

    def next(self, state: int, byte: int) -> int:
        """Return the state behind one byte more, or DEAD."""
        self._expand(state)
        return self._rows.next(state, byte)

    def steps(self, state: int) -> list[tuple[int, int]]:
        """Return (byte, next state) for every byte that leads on."""
        self._expand(state)
        return self._rows.steps(state)

    def spread(self, state: int, targets: NDArray[np.int32]) -> None:
        """Write the next state of every byte, or DEAD: [256]."""
        self._expand(state)
        self._rows.spread(state, targets)

    def step(self, state: int, data: bytes) -> int:
        """Follow the bytes from a state; DEAD when they lead nowhere."""
        for byte in data:
            state = self.next(state, byte)
            if state == DEAD:
                break
        return state

    def _expand(self, state: int) -> None:
        """See to it that the row of a state is known."""
        if self._rows.is_known(state):
            return
        single: dict[int, list[Item]] = {}
        ranges: list[tuple[int, int, Item]] = []
        for node, stack in self.items(state):
            for low, high, after in node.ready().edges[0]:
                if low == high:
                    single.setdefault(low, []).append((after, stack))
                else:
                    ranges.append((low, high, (after, stack)))
        runs: list[Run]
        if not ranges:
            runs = [(byte, byte, self._intern(items)) for byte, items in sorted(single.items())]
        else:
            cuts = {low for low, _, _ in ranges} | {high + 1 for _, high, _ in ranges}
            cuts.update(single, (byte + 1 for byte in single))
            runs = []
            for first, stop in pairwise(sorted(cuts)):
                items = [item for low, high, item in ranges if low <= first and stop - 1 <= high]
                items += single.get(first, ())
                if items:
                    runs.append((first, stop - 1, self._intern(items)))
        self._rows.write(state, runs)

    def _intern(self, raw: list[Item]) -> int:
        places = self._places
        numbers = [places.number(node, stack) for node, stack in raw]
        if len(numbers) == 1:
            state = places.states[numbers[0]]
            if state < 0:
                state = places.states[numbers[0]] = self._closed(self._close(raw))
            return state
        key = _key(numbers)
        state = self._together.get(key)
        if state is None:
            state = self._together[key] = self._closed(self._close(raw))
            self._key_bytes += len(key)
        return state

    def _closed(self, numbers: list[int]) -> int:
        """The state of a closed set of places."""
        if len(numbers) == 1:
            state = self._places.states[numbers[0]]
            if state < 0:
                state = self._places.states[numbers[0]] = self._append(numbers)
            return state
        key = _key(numbers)
        state = self._together.get(key)
        if state is None:
            state = self._together[key] = self._append(numbers)
            self._key_bytes += len(key)
        return state

    def _append(self, numbers: list[int]) -> int:
        if len(self) >= MAX_STATES or len(self._members) + len(numbers) > MAX_PLACES:
            raise SchemaError(
                f"the schema needs more than {MAX_STATES:,} states of {MAX_PLACES:,} places; bound "
                "its repetitions, or split alternatives that begin alike"
            )
        self._members.extend(numbers)
        self._first.append(len(self._members))
        self._rows.append()
        self.costs.append(min((self._places.cost(n) for n in numbers), default=INFINITE))
        self._may_end.append(any(map(self._places.is_end, numbers)))
        return len(self) - 1

    def _close(self, raw: list[Item]) -> list[int]:
        """Everything reachable without a byte: places with arcs, and the end of the text."""
        places = self._places
        if len(raw) == 1:  # most states: one place, plain arcs
            node = raw[0][0]
            if node.has_arcs_only:  # no need to fill it
                return [places.number(*raw[0])]
            arcs, skips, calls = node.ready().edges
            if arcs and not skips and not calls:
                return [places.number(*raw[0])]
        work = list(raw)
        seen: set[Item | int] = set(map(self._name, work))
        kept: list[int] = []
        while work:
            node, stack = work.pop()
            if node is END:
                if stack == EMPTY:
                    kept.append(places.number(node, stack))
                    continue
                following = [places.item(stack)]
            elif node.has_arcs_only:
                kept.append(places.number(node, stack))
                continue
            else:
                arcs, skips, calls = node.ready().edges
                if arcs:
                    kept.append(places.number(node, stack))
                following = [(after, stack) for after in skips]
                for rule, after in calls:
                    # A call in tail position keeps the stack: this is also what ends left
                    # recursion.
                    inner = stack
                    if after is not END:
                        inner = places.number(after, stack)
                        places.cost(inner)  # those below it are known by now
                    following.append((rule.start, inner))
            for item in following:
                name = self._name(item)
                if name not in seen:
                    seen.add(name)
                    work.append(item)
        return kept

    def _name(self, item: Item) -> Item | int:
        """What tells places apart: points are made anew each time."""
        return self._places.number(*item) if isinstance(item[0], Point) else item


def _key(numbers: list[int]) -> bytes:
    return array("i", sorted(set(numbers))).tobytes()
