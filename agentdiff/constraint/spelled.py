"""A string of a language as nodes of the automaton: its characters, its end, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import INFINITE, NOWHERE, Node, Step
from agentdiff.constraint.inside import LEAVES, NO_WAY, InsideTokens, InString, classify
from agentdiff.constraint.language import Language, Place, States
from agentdiff.constraint.spelling import ByteTree
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

_MAX_WALKS = 3
"""Counts at which tokens are found by a walk; beyond, the walk is made once for all counts."""
_MAX_TEMPLATES = 4
"""States of a text for which that is done: it holds up to 4 bytes for each id of the vocabulary."""


class Text:
    """A string of a language as nodes: its characters, its end, and what follows."""

    def __init__(
        self,
        language: Language,
        highest: int | None,
        after: Node,
        *,
        end: int | None = None,
        free: Callable[[int], Node] | None = None,
    ) -> None:
        """Prepare; nodes are made when they are asked for.

        Args:
            language: Which strings.
            highest: Characters at most; None for no limit.
            after: What follows.
            end: The byte behind the last character, which the spelling does not use for characters;
                None when `after` follows at once.
            free: Count of characters → a node that takes any further ones, `end` and `after`;
                taken as a short cut where no pattern matters any more.
        """
        self._language, self._highest, self._after = language, highest, after
        self._end, self._free = end, free
        self._near_end = after.near + (end is not None)
        self._nodes: dict[Place, Node] = {}
        self._inside: dict[tuple[ByteTree, Node], Node] = {}
        self._escapes: dict[Node, Node] = {}
        self._has_counts = end is not None and (highest is not None or language.lowest > 0)
        self._bytes = _Bytes(language, end or 0)
        self._visits: dict[States, int] = {}
        self._tokens: dict[tuple[Vocabulary, States], InsideTokens] = {}

    def start(self) -> Node:
        """Return the place before the first character; NOWHERE when there is no string."""
        return NOWHERE if self._after.is_dead else self.between(*self._language.start)

    @property
    def after(self) -> Node:
        """What follows."""
        return self._after

    def tokens(self, vocabulary: Vocabulary, states: States) -> InsideTokens | None:
        """Return what tokens do between two characters; None at the first few counts."""
        known = self._tokens.get((vocabulary, states))
        if known is None:
            visits = self._visits[states] = self._visits.get(states, 0) + 1
            if visits > _MAX_WALKS and len(self._tokens) < _MAX_TEMPLATES:
                start = self._bytes.number(states, ())
                known = self._tokens[vocabulary, states] = classify(vocabulary, start, self._bytes)
        return known

    def place(self, count: int, byte_state: int) -> Node:
        """Return the place after `count` whole characters, in a state of `_Bytes`."""
        states, tree = self._bytes.at(byte_state)
        if tree is None:  # behind a backslash
            node = self.between(states, count)
            return NOWHERE if node.is_dead else self._escapes.get(node.ready(), NOWHERE)
        if not tree:
            return self.between(states, count)
        target = self.between(states, count + 1)
        return NOWHERE if target.is_dead else self._behind(tree, target)

    def may_end(self, count: int) -> bool:
        """Whether a string of so many characters is neither too short nor too long."""
        return self._language.lowest <= count and (self._highest is None or count <= self._highest)

    def between(self, states: States, count: int) -> Node:
        """Return the place between two characters, after `count` of them."""
        language, highest = self._language, self._highest
        if highest is None:
            count = min(count, language.lowest)
        node = self._nodes.get((states, count))
        if node is None:
            missing, near = language.size((states, min(count, language.lowest)))
            if missing >= INFINITE or (highest is not None and count + missing > highest):
                node = NOWHERE
            elif self._free is not None and language.is_free(states):
                node = self._free(count)
            else:
                near += self._near_end
                if self._has_counts:
                    node = Node(near, _fill, _TextPlace(self, states, count))
                else:
                    node = Node(near, lambda node: self.fill(node, states, count))
            self._nodes[states, count] = node
        return node

    def fill(self, node: Node, states: States, count: int) -> None:
        """Write the edges of the place between two characters."""
        language = self._language
        if count >= language.lowest and language.accepts(states):
            if self._end is None:
                node.skips.append(self._after)
            else:
                node.arcs.append((self._end, self._end, self._after))
        if self._highest is not None and count >= self._highest:
            return
        escaped: list[tuple[int, Node]] = []
        for way in language.ways(states):
            target = self.between(way.target, count + 1)
            if not target.is_dead:
                charset = way.charset
                escaped += [(escape, target) for escape in charset.escapes]
                node.arcs += [
                    (low, high, self._behind(rest, target)) for low, high, rest in charset.tree
                ]
        if escaped:
            letter = self._escapes[node] = Node(1 + min(target.near for _, target in escaped))
            letter.arcs += [(byte, byte, target) for byte, target in escaped]
            node.arcs.append((ord("\\"), ord("\\"), letter))

    def _behind(self, tree: ByteTree, target: Node) -> Node:
        """Inside a character, before the bytes of a tree."""
        if not tree:
            return target
        node = self._inside.get((tree, target))
        if node is None:
            below = [(low, high, self._behind(rest, target)) for low, high, rest in tree]
            node = self._inside[tree, target] = Node(1 + below[0][2].near)
            node.arcs += below
        return node


@dataclass(frozen=True, slots=True)
class _TextPlace(InString):
    """A place between two characters, where counts matter."""

    text: Text
    states: States
    count: int

    def way_out(self) -> Step:
        """The first step of the shortest way to the end of the frame."""
        node = self.text.between(self.states, self.count).ready()
        low, high, following = min(node.arcs, key=lambda arc: arc[2].near)
        return next((byte for byte in b"a10" if low <= byte <= high), low), following, None

    @property
    def after(self) -> Node:
        """What follows the string."""
        return self.text.after

    @property
    def template(self) -> Hashable:
        """What the tokens do depends on the text and its states alone."""
        return self.text, self.states

    @property
    def is_shared(self) -> bool:
        """Only for this grammar."""
        return False

    def tokens(self, vocabulary: Vocabulary) -> InsideTokens | None:
        """Classify the vocabulary, once it pays."""
        return self.text.tokens(vocabulary, self.states)

    def behind(self, characters: int, ends_in: int) -> Node:
        """Return the place after so many more characters."""
        return self.text.place(self.count + characters, ends_in)

    def may_end(self, characters: int) -> bool:
        """Whether the string may end after so many more characters."""
        return self.text.may_end(self.count + characters)


def _fill(node: Node) -> None:
    place = node.place
    assert isinstance(place, _TextPlace)
    place.text.fill(node, place.states, place.count)


class _Bytes:
    """The bytes inside a string as a table, without counts; grows as it is walked.

    A state is (states of the language, what is left of a character that leads there); or, behind a
    backslash, (states of the language before it, None).
    """

    def __init__(self, language: Language, end: int) -> None:
        self._language, self._end = language, end
        self._known: list[tuple[States, ByteTree | None]] = []
        self._numbers: dict[tuple[States, ByteTree | None], int] = {}
        self._rows: dict[int, NDArray[np.int64]] = {}

    def number(self, states: States, tree: ByteTree | None) -> int:
        """Return the number of a state."""
        key = (states, tree)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._known)
            self._known.append(key)
        return number

    def at(self, number: int) -> tuple[States, ByteTree | None]:
        """Return the state of a number."""
        return self._known[number]

    def rows(self, states: IntArray) -> NDArray[np.int64]:
        """Where each byte leads."""
        return np.stack([self._row(number) for number in states.tolist()])

    def are_whole(self, states: IntArray) -> NDArray[np.bool_]:
        """Which states are between two characters."""
        return np.array([self._known[number][1] == () for number in states.tolist()], np.bool_)

    def _row(self, number: int) -> NDArray[np.int64]:
        row = self._rows.get(number)
        if row is None:
            row = self._rows[number] = np.full(256, NO_WAY, np.int64)
            states, tree = self._known[number]
            if tree:
                self._add(row, states, tree)
            else:
                for way in self._language.ways(states):
                    if tree is None:
                        row[list(way.charset.escapes)] = self.number(way.target, ())
                        continue
                    self._add(row, way.target, way.charset.tree)
                    if way.charset.escapes:
                        row[0x5C] = self.number(states, None)
                if tree is not None and self._language.accepts(states):
                    row[self._end] = LEAVES
        return row

    def _add(self, row: NDArray[np.int64], target: States, tree: ByteTree) -> None:
        for low, high, rest in tree:
            row[low : high + 1] = self.number(target, rest)
