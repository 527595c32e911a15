"""The trie of the vocabulary and the byte automaton walked together: which token leads where.

In plain Python where few bytes may follow, a whole level at a time in numpy where many may.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.states import Automaton
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

_FEW_CHILDREN = 16
"""Trie nodes with at most this many children are followed one by one."""
_DEEP = 8
"""So many bytes into a token, few paths are left: they are followed one by one, too."""
_FEW_PATHS = 48

Tokens = list[int]
Bulk = list[tuple[IntArray, NDArray[np.int32]]]
"""(tokens, next states) side by side."""


class Walks:
    """Walks of one automaton."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        self._automaton, self._vocabulary = automaton, vocabulary

    def follow(self, seeds: list[tuple[int, int]]) -> tuple[dict[int, Tokens], Bulk]:
        """Follow (trie node, state) pairs: next state → tokens, and (tokens, states) in bulk."""
        vocabulary, automaton = self._vocabulary, self._automaton
        find, first_child, last_child = (
            vocabulary.node_bytes.find,
            vocabulary.first_child,
            vocabulary.last_child,
        )
        node_bytes, node_token = vocabulary.node_bytes, vocabulary.node_token
        found: dict[int, Tokens] = {}
        wide: list[tuple[int, int]] = []
        while seeds:
            node, state = seeds.pop()
            first, last = first_child[node], last_child[node]
            if first == last:
                continue
            if automaton.is_narrow(state):
                steps = [(find(byte, first, last), q) for byte, q in automaton.steps(state)]
            elif last - first <= _FEW_CHILDREN:
                steps = [
                    (child, automaton.next(state, node_bytes[child]))
                    for child in range(first, last)
                ]
            else:
                wide.append((node, state))
                continue
            for child, target in steps:
                if child >= 0 and target >= 0:
                    token = node_token[child]
                    if token >= 0:
                        found.setdefault(target, []).append(token)
                    seeds.append((child, target))
        return found, self._levels(wide) if wide else []

    def _levels(self, seeds: list[tuple[int, int]]) -> Bulk:
        """The same for many paths at once, level by level."""
        vocabulary, table = self._vocabulary, _Table(self._automaton)
        nodes = np.array([node for node, _ in seeds])
        states = np.array([state for _, state in seeds], np.int32)
        found: Bulk = []
        depth = 0
        while len(states):
            if depth >= _DEEP and len(states) <= _FEW_PATHS:
                return [*found, *self._chains(nodes.tolist(), states.tolist())]
            depth += 1
            first = vocabulary.child_start[nodes]
            widths = vocabulary.child_end[nodes] - first
            nodes = np.repeat(first - (np.cumsum(widths) - widths), widths)
            nodes += np.arange(len(nodes))
            rows = np.repeat(table.rows(states), widths)
            states = table.follow(rows, vocabulary.trie_byte[nodes])
            live = np.flatnonzero(states >= 0)
            nodes, states = nodes[live], states[live]
            tokens = vocabulary.trie_token[nodes]
            ends = np.flatnonzero(tokens >= 0)
            if len(ends):
                found.append((tokens[ends], states[ends]))
        return found

    def _chains(self, nodes: list[int], states: list[int]) -> Bulk:
        """The same for the ends of long tokens, where a trie hardly branches."""
        vocabulary, automaton = self._vocabulary, self._automaton
        first_child, last_child = vocabulary.first_child, vocabulary.last_child
        seeds = list(zip(nodes, states, strict=True))
        tokens: Tokens = []
        ends: list[int] = []
        while seeds:
            node, state = seeds.pop()
            for child in range(first_child[node], last_child[node]):
                target = automaton.next(state, vocabulary.node_bytes[child])
                if target >= 0:
                    seeds.append((child, target))
                    token = vocabulary.node_token[child]
                    if token >= 0:
                        tokens.append(token)
                        ends.append(target)
        return [(np.array(tokens, np.int64), np.array(ends, np.int32))] if tokens else []


class _Table:
    """Where every byte leads, for the states that one walk meets."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._row = np.full(64, -1, np.int64)
        """[states] the row of each, or -1."""
        self._targets = np.zeros((16, 256), np.int32)
        self._count = 0

    def rows(self, states: NDArray[np.int32]) -> IntArray:
        """Return the row of each state."""
        most = int(states.max()) + 1
        if most > len(self._row):
            more = np.full(2 * most - len(self._row), -1, np.int64)
            self._row = np.concatenate([self._row, more])
        rows = self._row[states]
        unknown = states[rows < 0]
        if len(unknown):
            is_new = np.zeros(most, np.bool_)
            is_new[unknown] = True
            for state in np.flatnonzero(is_new).tolist():
                self._add(state)
            rows = self._row[states]
        return rows

    def follow(self, rows: IntArray, byte: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the next state of each row along each byte, or DEAD."""
        return self._targets.ravel().take(256 * rows + byte)

    def _add(self, state: int) -> None:
        if self._count == len(self._targets):
            self._targets = np.concatenate([self._targets, np.zeros_like(self._targets)])
        targets = self._targets[self._count]
        self._automaton.spread(state, targets)
        self._row[state] = self._count
        self._count += 1
