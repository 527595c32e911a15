"""The byte automaton lifted to tokens, one state at a time.

An edge of a state is (next state, token set): all tokens whose bytes lead there. Edges are found by
walking the trie of the vocabulary and the automaton together: in plain Python where few bytes may
follow, a whole level at a time in numpy where many may. Inside a string the walk is skipped: what
tokens do there is known once per vocabulary.

Token sets are interned: the same set has the same number in every state.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DEAD, DONE, INFINITE, Automaton, Node
from agentdiff.constraint.closing import Closing
from agentdiff.constraint.strings import StringBody, StringPlace, string_tokens
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

EOS_SET = 0
"""The number of the set of EOS ids."""
_FEW_CHILDREN = 16
"""Trie nodes with at most this many children are followed one by one."""

Edges = tuple[IntArray, IntArray]
"""(next states [E], token sets [E])."""
Tokens = list[int]


@dataclass(frozen=True, slots=True)
class BigSet:
    """A token set that is a large part of the vocabulary."""

    ids: IntArray
    others: IntArray
    """The ids that are not in it."""
    mask: NDArray[np.bool_]
    """[V] whether an id is in it."""


class TokenAutomaton:
    """States, token edges and token sets of a grammar; shared, grows under a lock."""

    def __init__(self, start: Node, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.lock = RLock()
        self.automaton = Automaton(start, Closing(vocabulary).price)
        self.sets: list[IntArray] = []
        """[sets] the token ids of each set, sorted."""
        self.set_sizes: list[int] = []
        self._set_ids: dict[bytes, int] = {}
        self._big_sets: dict[int, BigSet] = {}
        self._edges: dict[int, Edges] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._group_sets: dict[tuple[int, tuple[int, ...]], int] = {}
        eos = self._intern_set(np.array(vocabulary.eos_ids, np.int64), twins=False)
        assert eos == EOS_SET
        self._edges[DONE] = (np.array([DONE]), np.array([EOS_SET]))

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
                known = self._edges[state] = self._find_edges(state)
        return known

    def big_set(self, number: int) -> BigSet:
        """Return a token set with its complement, computed once."""
        known = self._big_sets.get(number)
        if known is None:
            mask = np.zeros(len(self.vocabulary), np.bool_)
            mask[self.sets[number]] = True
            known = BigSet(ids=self.sets[number], others=np.flatnonzero(~mask), mask=mask)
            self._big_sets[number] = known
        return known

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
        if isinstance(place, StringPlace):
            found = self._string_edges(place, items[0][1])
        else:
            self._add_sets(found, *self._walk([(0, state)]))
        if self.automaton.accepting[state]:
            found[DONE] = EOS_SET
        targets = np.fromiter(found.keys(), np.int64, len(found))
        return targets, np.fromiter(found.values(), np.int64, len(found))

    # -- the walk -----------------------------------------------------------------------------

    def _walk(
        self, seeds: list[tuple[int, int]]
    ) -> tuple[dict[int, Tokens], list[tuple[IntArray, IntArray]]]:
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
            arcs = automaton.expand(state)
            if last - first <= _FEW_CHILDREN and (arcs is None or len(arcs) > last - first):
                row = automaton.table[state]
                steps = [(child, int(row[node_bytes[child]])) for child in range(first, last)]
            elif arcs is not None:
                steps = [(find(byte, first, last), target) for byte, target in arcs]
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

    def _walk_levels(self, seeds: list[tuple[int, int]]) -> list[tuple[IntArray, IntArray]]:
        """The same for many paths at once, level by level."""
        vocabulary, automaton = self.vocabulary, self.automaton
        nodes = np.array([node for node, _ in seeds])
        states = np.array([state for _, state in seeds])
        found: list[tuple[IntArray, IntArray]] = []
        while len(nodes):
            first, widths = vocabulary.child_start[nodes], vocabulary.child_end[nodes]
            widths = widths - first
            has_children = widths > 0
            first, widths, states = first[has_children], widths[has_children], states[has_children]
            for state in np.unique(states).tolist():
                automaton.expand(state)
            parent = np.repeat(np.arange(len(states)), widths)
            nodes = np.arange(len(parent)) + (first - (np.cumsum(widths) - widths))[parent]
            states = automaton.table[states[parent], vocabulary.trie_byte[nodes]].astype(np.int64)
            live = states >= 0
            nodes, states = nodes[live], states[live]
            tokens = vocabulary.trie_token[nodes]
            ends = tokens >= 0
            if ends.any():
                found.append((tokens[ends], states[ends]))
        return found

    def _add_sets(
        self, edges: dict[int, int], found: dict[int, Tokens], bulk: list[tuple[IntArray, IntArray]]
    ) -> None:
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
                edges[state] = self._intern_set(np.array(sorted(few), np.int64))
        for state, arrays in parts.items():
            if costs[state] >= INFINITE:
                continue
            if state in edges:
                arrays.append(self.sets[edges[state]])
            tokens = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            edges[state] = self._intern_set(np.sort(tokens))

    # -- inside strings -----------------------------------------------------------------------

    def _string_edges(self, place: StringPlace, stack: int) -> dict[int, int]:
        """The edges of a state that is one place inside one string."""
        automaton = self.automaton
        body, count, character = place.body, place.count, place.character
        known = string_tokens(self.vocabulary, character)
        groups: dict[Node, list[int]] = {}
        for k, (characters, ends_in, _) in enumerate(known.inside):
            total = count + characters
            if body.highest is not None and total + (ends_in != 0) > body.highest:
                continue
            groups.setdefault(body.node(body.counted(count, characters), ends_in), []).append(k)
        edges: dict[int, int] = {}
        for target, members in groups.items():
            state = automaton.place([(target, stack)])
            if automaton.costs[state] < INFINITE:
                edges[state] = self._group_set(character, tuple(members))
        self._add_sets(edges, *self._leave(body, count, known.leaving, stack))
        return edges

    def _leave(
        self, body: StringBody, count: int, leaving: tuple[tuple[int, int], ...], stack: int
    ) -> tuple[dict[int, Tokens], list[tuple[IntArray, IntArray]]]:
        """Tokens that close the string, with whatever they hold behind the quote."""
        outside = self.automaton.place([(body.after, stack)])
        closing: Tokens = []
        seeds: list[tuple[int, int]] = []
        for characters, trie_node in leaving:
            if body.may_end(body.counted(count, characters)):
                token = self.vocabulary.node_token[trie_node]
                if token >= 0:
                    closing.append(token)
                seeds.append((trie_node, outside))
        found, bulk = self._walk(seeds)
        if closing:
            found.setdefault(outside, []).extend(closing)
        return found, bulk

    def _group_set(self, character: int, members: tuple[int, ...]) -> int:
        """The union of some groups of `string_tokens`."""
        known = self._group_sets.get((character, members))
        if known is None:
            inside = string_tokens(self.vocabulary, character).inside
            tokens = np.sort(np.concatenate([inside[k][2] for k in members]))
            known = self._group_sets[character, members] = self._intern_set(tokens)
        return known

    def _intern_set(self, tokens: NDArray[np.int64], *, twins: bool = True) -> int:
        """The number of a sorted set; ids that spell the same as a member join it."""
        vocabulary = self.vocabulary
        if twins and vocabulary.twins:
            more = [i for token in tokens.tolist() for i in vocabulary.twins.get(token, ())]
            # Interned sets already hold their twins, so a union of them may hold one twice.
            tokens = np.unique(np.concatenate([tokens, np.array(more, np.int64)]))
        key = tokens.tobytes()
        number = self._set_ids.get(key)
        if number is None:
            number = self._set_ids[key] = len(self.sets)
            self.sets.append(tokens)
            self.set_sizes.append(len(tokens))
        return number
