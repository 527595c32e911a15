"""The byte automaton lifted to tokens, one state at a time.

An edge of a state is (next state, token set): all tokens whose bytes lead there. Edges are found by
walking the trie of the vocabulary and the automaton together: in plain Python where few bytes may
follow, a whole level at a time in numpy where many may. Inside a string the walk is skipped: what
tokens do there is known once per vocabulary.

Edges lie side by side in arrays, so that a compiled step can follow them.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import RLock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DEAD, DONE, INFINITE, Automaton, Node, Wide
from agentdiff.constraint.closing import Closing
from agentdiff.constraint.inside import InsideTokens, InString
from agentdiff.constraint.parts import PartSets
from agentdiff.constraint.sets import Column, SetArrays, TokenSets
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

EOS_SET = 0
"""The number of the set of EOS ids."""
_FEW_CHILDREN = 16
"""Trie nodes with at most this many children are followed one by one."""
_DEEP = 8
"""So many bytes into a token, few paths are left: they are followed one by one, too."""
_FEW_PATHS = 48

Edges = tuple[NDArray[np.int32], NDArray[np.int32]]
"""(next states [E], token sets [E])."""
Tokens = list[int]
Bulk = list[tuple[IntArray, NDArray[np.int32]]]
"""(tokens, next states) side by side."""


class Graph(NamedTuple):
    """What is known of a token automaton at one moment, as arrays; later growth leaves it alone.

    S states, E edges.
    """

    first: IntArray
    """[S] where a state's edges begin; -1 while they are not known."""
    last: IntArray
    """[S] where they end."""
    cost: IntArray
    """[S] tokens to the end of the text; far below 0 for DONE."""
    target: NDArray[np.int32]
    """[E]"""
    set: NDArray[np.int32]
    """[E]"""


class TokenAutomaton:
    """States, token edges and token sets of a grammar; shared, grows under a lock."""

    def __init__(self, start: Node, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.lock = RLock()
        self.automaton = Automaton(start, Closing(vocabulary).price)
        self.sets = TokenSets(vocabulary)
        self._edges: dict[int, Edges] = {}
        self._target, self._set = Column(np.int32), Column(np.int32)
        self._first, self._last, self._cost = (Column(np.int64) for _ in range(3))
        self._graph: tuple[Graph, SetArrays] | None = None
        self._steps: dict[tuple[int, int], int] = {}
        self._group_sets: dict[Hashable, int] = {}
        self._templates: dict[Hashable, int] = {}
        """Bytes of what tokens do inside strings of this grammar."""
        self.part_sets = PartSets(vocabulary, self.sets, self.lock)
        eos = self.sets.number(np.array(vocabulary.eos_ids, np.int64))
        assert eos == EOS_SET
        self._keep_edges(DONE, [DONE], [EOS_SET])

    @property
    def start(self) -> int:
        """The state before the first token."""
        return self.automaton.start

    def cost(self, state: int) -> int:
        """Tokens from a state to the end of the text, EOS not counted; 0 for DONE."""
        return max(self.automaton.costs[state], 0)

    def step(self, state: int, token: int) -> int:
        """Return the state after a token, or DEAD."""
        known = self._steps.get((state, token))
        if known is None:
            with self.lock:
                known = self._steps[state, token] = self._step(state, token)
        return known

    def edges(self, state: int) -> Edges:
        """Return the edges of a state, EOS among them; those that cannot be closed are left out."""
        known = self._edges.get(state)
        if known is None:
            with self.lock:
                known = self._edges.get(state) or self._find_edges(state)
        return known

    def arrays(self) -> tuple[Graph, SetArrays]:
        """Return all that is known so far as arrays."""
        with self.lock:
            known = self._graph
            if known is None or len(known[0].cost) < len(self.automaton):
                self._list_states()
                graph = Graph(
                    self._first.values.copy(),
                    self._last.values.copy(),
                    self._cost.values,
                    self._target.values,
                    self._set.values,
                )
                known = self._graph = graph, self.sets.arrays()
            return known

    @property
    def nbytes(self) -> int:
        """Bytes held beyond what the vocabulary shares, about."""
        automaton = self.automaton
        columns = (self._target, self._set, self._first, self._last, self._cost)
        return (
            automaton.nbytes
            + self.sets.nbytes
            + self.part_sets.nbytes
            + sum(column.nbytes for column in columns)
            + sum(self._templates.values())
            + 300 * len(self._edges)
            + 200 * len(self._steps)
        )

    def cheapest(self, state: int) -> int:
        """Return the next state on the shortest way to the end; DONE once there."""
        if self.automaton.accepting[state] or state == DONE:
            return DONE
        targets: list[int] = self.edges(state)[0].tolist()
        costs = self.automaton.costs
        best = min(targets, key=lambda target: costs[target])
        assert costs[best] < costs[state], "each state has a token that brings it closer to the end"
        return best

    def _step(self, state: int, token: int) -> int:
        if not 0 <= token < len(self.vocabulary):
            return DEAD
        if token in self.vocabulary.eos_ids:
            return DONE if state == DONE or self.automaton.accepting[state] else DEAD
        data = self.vocabulary.spelled[token]
        if data is None or state == DONE:
            return DEAD
        target = self.automaton.step(state, data)
        return DEAD if target != DEAD and self.automaton.costs[target] >= INFINITE else target

    def _find_edges(self, state: int) -> Edges:
        items = self.automaton.items[state]
        found: dict[int, int] = {}
        place = items[0][0].place if len(items) == 1 else None
        known = place.tokens(self.vocabulary) if isinstance(place, InString) else None
        if isinstance(place, InString) and known is not None:
            if not place.is_shared:
                self._templates[place.template] = known.nbytes
            found = self._string_edges(place, known, items[0][1])
        else:
            self._add_sets(found, *self._walk([(0, state)]))
        if self.automaton.accepting[state]:
            found[DONE] = EOS_SET
        return self._keep_edges(state, list(found.keys()), list(found.values()))

    def _keep_edges(self, state: int, targets: list[int], sets: list[int]) -> Edges:
        start = self._target.extend(targets)
        self._set.extend(sets)
        self._list_states()
        self._first.values[state], self._last.values[state] = start, start + len(targets)
        self._graph = None
        known = self._target.values[start:], self._set.values[start:]
        self._edges[state] = known
        return known

    def _list_states(self) -> None:
        """Give the states that are new their places in the arrays."""
        new = self.automaton.costs[self._cost.size :]
        if new:
            self._cost.extend(new)
            self._first.extend(np.full(len(new), -1, np.int64))
            self._last.extend(np.full(len(new), -1, np.int64))

    # -- the walk -----------------------------------------------------------------------------

    def _walk(self, seeds: list[tuple[int, int]]) -> tuple[dict[int, Tokens], Bulk]:
        """Follow (trie node, state) pairs: next state → tokens, and (tokens, states) in bulk."""
        vocabulary, automaton = self.vocabulary, self.automaton
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
            row = automaton.expand(state)
            if not isinstance(row, Wide):
                steps = [(find(byte, first, last), target) for byte, target in row]
            elif last - first <= _FEW_CHILDREN:
                steps = [(child, row.next(node_bytes[child])) for child in range(first, last)]
            else:
                wide.append((node, state))
                continue
            for child, target in steps:
                if child >= 0 and target >= 0:
                    token = node_token[child]
                    if token >= 0:
                        found.setdefault(target, []).append(token)
                    seeds.append((child, target))
        return found, self._walk_levels(wide) if wide else []

    def _walk_levels(self, seeds: list[tuple[int, int]]) -> Bulk:
        """The same for many paths at once, level by level."""
        vocabulary, table = self.vocabulary, _Table(self.automaton)
        nodes = np.array([node for node, _ in seeds])
        states = np.array([state for _, state in seeds], np.int32)
        found: Bulk = []
        depth = 0
        while len(states):
            if depth >= _DEEP and len(states) <= _FEW_PATHS:
                return [*found, *self._walk_chains(nodes.tolist(), states.tolist())]
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

    def _walk_chains(self, nodes: list[int], states: list[int]) -> Bulk:
        """The same for the ends of long tokens, where a trie hardly branches."""
        vocabulary, automaton = self.vocabulary, self.automaton
        first_child, last_child = vocabulary.first_child, vocabulary.last_child
        seeds = list(zip(nodes, states, strict=True))
        tokens: Tokens = []
        ends: list[int] = []
        while seeds:
            node, state = seeds.pop()
            for child in range(first_child[node], last_child[node]):
                target = automaton.step(state, vocabulary.node_bytes[child : child + 1])
                if target >= 0:
                    seeds.append((child, target))
                    token = vocabulary.node_token[child]
                    if token >= 0:
                        tokens.append(token)
                        ends.append(target)
        return [(np.array(tokens, np.int64), np.array(ends, np.int32))] if tokens else []

    def _add_sets(self, edges: dict[int, int], found: dict[int, Tokens], bulk: Bulk) -> None:
        """Turn what a walk found into edges: next state → token set."""
        costs = self.automaton.costs
        parts: dict[int, list[IntArray]] = {}
        if bulk:
            tokens = np.concatenate([t for t, _ in bulk])
            states = np.concatenate([s for _, s in bulk])
            order = np.argsort(states, kind="stable")
            tokens, states = tokens[order], states[order]
            cuts = np.flatnonzero(np.diff(states, prepend=-1)).tolist()
            for low, high in zip(cuts, [*cuts[1:], len(tokens)], strict=True):
                parts[int(states[low])] = [tokens[low:high]]
        for state, few in found.items():
            if state in parts or state in edges:
                parts.setdefault(state, []).append(np.array(few, np.int64))
            elif costs[state] < INFINITE:
                edges[state] = self._number(np.array(sorted(few), np.int64))
        for state, arrays in parts.items():
            if costs[state] >= INFINITE:
                continue
            if state in edges:
                arrays.append(self.sets.members(edges[state]))
            tokens = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            edges[state] = self._number(np.sort(tokens))

    # -- inside strings -----------------------------------------------------------------------

    def _string_edges(self, place: InString, known: InsideTokens, stack: int) -> dict[int, int]:
        """The edges of a state that is one place inside one string."""
        automaton = self.automaton
        groups: dict[Node, list[int]] = {}
        for k, (characters, ends_in, _) in enumerate(known.inside):
            target = place.behind(characters, ends_in)
            if not target.is_dead:
                groups.setdefault(target, []).append(k)
        edges: dict[int, int] = {}
        for target, members in groups.items():
            state = automaton.place([(target, stack)])
            if automaton.costs[state] < INFINITE:
                edges[state] = self._group_set(place, known, tuple(members))
        self._add_sets(edges, *self._leave(place, known.leaving, stack))
        return edges

    def _leave(
        self, place: InString, leaving: tuple[tuple[int, int], ...], stack: int
    ) -> tuple[dict[int, Tokens], Bulk]:
        """Tokens that close the string, with whatever they hold behind the quote."""
        outside = self.automaton.place([(place.after, stack)])
        closing: Tokens = []
        seeds: list[tuple[int, int]] = []
        for characters, trie_node in leaving:
            if place.may_end(characters):
                token = self.vocabulary.node_token[trie_node]
                if token >= 0:
                    closing.append(token)
                seeds.append((trie_node, outside))
        found, bulk = self._walk(seeds)
        if closing:
            found.setdefault(outside, []).extend(closing)
        return found, bulk

    def _group_set(self, place: InString, known: InsideTokens, members: tuple[int, ...]) -> int:
        """The union of some groups of tokens that stay inside a string."""

        def build() -> IntArray:
            union = np.concatenate([known.inside[k][2] for k in members])
            return self.vocabulary.with_twins(np.sort(union).astype(np.int64))

        name = (place.template, members)
        if place.is_shared:
            return self.sets.shared_number(name, build)
        number = self._group_sets.get(name)
        if number is None:
            number = self._group_sets[name] = self.sets.number(build())
        return number

    def _number(self, tokens: IntArray) -> int:
        """The number of a sorted set; ids that spell the same as a member join it."""
        return self.sets.number(self.vocabulary.with_twins(tokens))


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
        row = self._automaton.expand(state)
        if isinstance(row, Wide):
            row.write_targets(targets)
        else:
            targets[:] = DEAD
            for byte, target in row:
                targets[byte] = target
        self._row[state] = self._count
        self._count += 1
