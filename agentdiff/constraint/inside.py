"""What tokens do inside strings, known once for all places that differ only in their count.

A string of at most 255 characters has 255 places that behave alike, but for where they must end. So
the vocabulary is walked once from a *character state* (between two characters, or within one), and
every token is kept with the characters it completes and the character state it ends in. From a
place with a count, that gives the edges without a walk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import Node
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

NO_WAY = -1
"""In a row: the byte leads nowhere."""
LEAVES = -2
"""In a row: the byte ends the string."""


@dataclass(frozen=True, slots=True)
class InsideTokens:
    """What every token of a vocabulary does from one character state."""

    inside: tuple[tuple[int, int, NDArray[np.int32]], ...]
    """(characters completed, character state at the end, token ids, sorted) of tokens that stay
    inside."""
    leaving: tuple[tuple[int, int], ...]
    """(characters completed before the end, trie node of the byte that ends the string)."""

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return sum(ids.nbytes + 200 for _, _, ids in self.inside) + 100 * len(self.leaving)


class InString(ABC):
    """A place inside a string, in a character state and after some characters."""

    __slots__ = ()

    @property
    @abstractmethod
    def after(self) -> Node:
        """What follows the string."""

    @property
    @abstractmethod
    def template(self) -> Hashable:
        """Names the character state: places of the same template have the same `tokens`."""

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """Whether the template is the same for all grammars of a vocabulary."""

    @abstractmethod
    def tokens(self, vocabulary: Vocabulary) -> InsideTokens | None:
        """Return what the tokens do; None where a walk is better."""

    @abstractmethod
    def behind(self, characters: int, ends_in: int) -> Node:
        """Return the place after so many more characters; NOWHERE when they are too many."""

    @abstractmethod
    def may_end(self, characters: int) -> bool:
        """Whether the string may end after so many more characters, as far as counts go."""


class CharacterStates(Protocol):
    """The bytes inside a string as a table."""

    def rows(self, states: IntArray) -> NDArray[np.int64]:
        """[S] distinct states → [S, 256] next states, `NO_WAY` or `LEAVES`."""
        ...

    def are_whole(self, states: IntArray) -> NDArray[np.bool_]:
        """[S] whether each is between two characters."""
        ...


def classify(vocabulary: Vocabulary, start: int, character_states: CharacterStates) -> InsideTokens:
    """Walk the whole vocabulary from one character state."""
    nodes = np.zeros(1, np.int64)
    states = np.array([start])
    counts = np.zeros(1, np.int64)
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    leaving: list[tuple[int, int]] = []
    while len(nodes):
        first, widths = vocabulary.child_start[nodes], vocabulary.child_end[nodes]
        widths = widths - first
        parent = np.repeat(np.arange(len(nodes)), widths)
        nodes = np.arange(len(parent)) + (first - (np.cumsum(widths) - widths))[parent]
        distinct, row = np.unique(states, return_inverse=True)
        table = character_states.rows(distinct)
        states, counts = table[row[parent], vocabulary.trie_byte[nodes]], counts[parent]
        leaves = states == LEAVES
        leaving += zip(counts[leaves].tolist(), nodes[leaves].tolist(), strict=True)
        live = states >= 0
        nodes, states, counts = nodes[live], states[live], counts[live]
        distinct, row = np.unique(states, return_inverse=True)
        counts = counts + character_states.are_whole(distinct)[row]
        tokens = vocabulary.trie_token[nodes]
        ends = tokens >= 0
        found.append((tokens[ends], counts[ends], states[ends]))
    groups: list[tuple[int, int, NDArray[np.int32]]] = []
    if found:
        token, count, state = (np.concatenate(part) for part in zip(*found, strict=True))
        width = int(state.max(initial=0)) + 1
        key = count * width + state
        order = np.lexsort((token, key))
        key, token = key[order], token[order].astype(np.int32)
        cuts = np.flatnonzero(np.diff(key, prepend=-1)).tolist()
        for low, high in zip(cuts, [*cuts[1:], len(key)], strict=True):
            value = int(key[low])
            groups.append((value // width, value % width, token[low:high]))
    return InsideTokens(inside=tuple(groups), leaving=tuple(leaving))
