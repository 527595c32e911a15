"""The byte automaton lifted to tokens, one state at a time.

An edge of a state is (next state, token set): all tokens whose bytes lead there. Edges are found by
walking the trie of the vocabulary and the automaton together (`walks.py`). Inside a string the walk
is skipped: what tokens do there is known once per vocabulary.

Edges lie side by side in arrays, so that a compiled step can follow them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterable
from threading import RLock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DEAD, DONE, INFINITE, Node
from agentdiff.constraint.closing import Closing
from agentdiff.constraint.inside import InsideTokens, InString
from agentdiff.constraint.parts import PartSets
from agentdiff.constraint.sets import Column, SetArrays, TokenSets
from agentdiff.constraint.states import Automaton
from agentdiff.constraint.vocabulary import IntArray, Vocabulary
from agentdiff.constraint.walks import Bulk, Tokens, Walks

EOS_SET = 0
"""The number of the set of EOS ids."""
_AHEAD = 128
"""States whose edges are found when somebody looks ahead."""
_NEAR = 4
"""Characters in a token before the end of a string: few tokens have more."""
Edges = tuple[NDArray[np.int32], NDArray[np.int32]]
"""(next states [E], token sets [E])."""


class Graph(NamedTuple):
    """What is known of a token automaton at one moment, as arrays; later growth leaves it alone.

    S states, E edges.
    """

    first: NDArray[np.int32]
    """[S] where a state's edges begin; -1 while they are not known."""
    last: NDArray[np.int32]
    """[S] where they end."""
    cost: NDArray[np.int32]
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
        self._walks = Walks(self.automaton, vocabulary)
        self._first, self._last = array("i"), array("i")
        """[states] where the edges of a state begin and end; -1 while they are not known."""
        self._target, self._set = Column(np.int32), Column(np.int32)
        """[edges]"""
        self._graph: tuple[Graph, SetArrays] | None = None
        self._looked: set[int] = set()
        """States from which somebody has looked ahead."""
        self._steps: dict[int, int] = {}
        """State and token in one number → next state."""
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
        name = state * len(self.vocabulary) + token
        known = self._steps.get(name)
        if known is None:
            with self.lock:
                known = self._steps[name] = self._step(state, token)
        return known

    def edges(self, state: int) -> Edges:
        """Return the edges of a state, EOS among them; those that cannot be closed are left out."""
        if not self._has_edges(state):
            with self.lock:
                if not self._has_edges(state):
                    self._find_edges(state)
        first, last = self._first[state], self._last[state]
        return self._target.values[first:last], self._set.values[first:last]

    def look_ahead(self, states: Iterable[int]) -> None:
        """Find the edges of what may follow some states, nearest first, so that their sets are known.

        Of the places of a string that differ in a count, one is enough: they have the same tokens.
        """
        with self.lock:
            work = deque(state for state in states if state not in self._looked)
            self._looked.update(work)
            seen, alike = set(work), set[Hashable]()
            left = _AHEAD
            while work and left:
                state = work.popleft()
                name = self._likeness(state)
                if name in alike:
                    continue
                alike.add(name)
                left -= not self._has_edges(state)
                for target in self.edges(state)[0].tolist():
                    if target not in seen:
                        seen.add(target)
                        work.append(target)

    def arrays(self) -> tuple[Graph, SetArrays]:
        """Return all that is known so far as arrays."""
        with self.lock:
            if self._graph is None or len(self._graph[0].cost) < len(self.automaton):
                self._list_states()
                graph = Graph(
                    np.array(self._first, np.int32),
                    np.array(self._last, np.int32),
                    np.array(self.automaton.costs, np.int32),
                    self._target.values,
                    self._set.values,
                )
                self._graph = graph, self.sets.arrays()
            return self._graph

    @property
    def nbytes(self) -> int:
        """Bytes held beyond what the vocabulary shares, about."""
        return (
            self.automaton.nbytes
            + self.sets.nbytes
            + self.part_sets.nbytes
            + self._target.nbytes
            + self._set.nbytes
            + 20 * len(self._first)  # once here, and in the arrays of the last step
            + sum(self._templates.values())
            + 150 * len(self._steps)
        )

    def cheapest(self, state: int) -> int:
        """Return the next state on the shortest way to the end; DONE once there."""
        if self.automaton.may_end(state) or state == DONE:
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
            return DONE if state == DONE or self.automaton.may_end(state) else DEAD
        data = self.vocabulary.spelled[token]
        if data is None or state == DONE:
            return DEAD
        target = self.automaton.step(state, data)
        return DEAD if target != DEAD and self.automaton.costs[target] >= INFINITE else target

    def _has_edges(self, state: int) -> bool:
        return state < len(self._first) and self._first[state] >= 0

    def _in_string(self, state: int) -> tuple[InString, int] | None:
        """(place, stack) where a state is one place inside one string."""
        items = self.automaton.items(state)
        if len(items) != 1:
            return None
        node, stack = items[0]
        place = node if isinstance(node, InString) else node.place
        return (place, stack) if isinstance(place, InString) else None

    def _likeness(self, state: int) -> Hashable:
        """The same for states from which the same tokens lead on, but for those that are too long."""
        found = self._in_string(state)
        if found is None:
            return state
        place, stack = found
        ends = tuple(place.may_end(characters) for characters in range(_NEAR))
        return place.template, ends, stack, id(place.after)

    def _find_edges(self, state: int) -> None:
        found: dict[int, int] = {}
        inside = self._in_string(state)
        known = inside[0].tokens(self.vocabulary) if inside else None
        if inside and known is not None:
            place, stack = inside
            if not place.is_shared:
                self._templates[place.template] = known.nbytes
            found = self._string_edges(place, known, stack)
        else:
            self._add_sets(found, *self._walks.follow([(0, state)]))
        if self.automaton.may_end(state):
            found[DONE] = EOS_SET
        self._keep_edges(state, list(found.keys()), list(found.values()))

    def _keep_edges(self, state: int, targets: list[int], sets: list[int]) -> None:
        start = self._target.extend(targets)
        self._set.extend(sets)
        self._list_states()
        self._last[state] = start + len(targets)
        self._first[state] = start  # who sees it does not ask for more
        self._graph = None

    def _list_states(self) -> None:
        """Give the states that are new their places in the arrays."""
        unknown = array("i", [-1]) * (len(self.automaton) - len(self._first))
        self._first.extend(unknown)
        self._last.extend(unknown)

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
        groups: dict[int, list[int]] = {}
        for k, (characters, ends_in, _) in enumerate(known.inside):
            target = place.behind(characters, ends_in)
            if not target.is_dead:
                groups.setdefault(automaton.place([(target, stack)]), []).append(k)
        edges: dict[int, int] = {}
        for state, members in groups.items():
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
        found, bulk = self._walks.follow(seeds)
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
