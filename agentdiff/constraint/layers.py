"""The edges of several states at once, in the order that the lattice sums them.

A layer is what one position of the lattice needs: all edges out of a tuple of states, by source and
by target, and the token sets they use. The same tuples come back at every step and in every
request, so layers are kept.

Legend: V vocabulary, E edges of a layer, K token sets of a layer, S source states, T target states.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.tokens import TokenAutomaton
from agentdiff.constraint.vocabulary import IntArray

BoolArray = NDArray[np.bool_]

_CACHE_BYTES = 1_500_000
"""Bytes that the layers of a grammar may hold together; then the cache starts anew."""


class Layer:
    """All edges out of a tuple of states, in two orders: by source and by target."""

    def __init__(self, tokens: TokenAutomaton, states: IntArray) -> None:
        edges = [tokens.edges(state) for state in states.tolist()]
        counts = np.array([len(targets) for targets, _ in edges])
        target = np.concatenate([targets for targets, _ in edges])
        sets = np.concatenate([s for _, s in edges])
        costs = tokens.automaton.costs

        self.targets, s_target = np.unique(target.astype(np.int64), return_inverse=True)
        self.targets_key = self.targets.tobytes()
        self.costs: IntArray = np.array([costs[q] for q in self.targets.tolist()], np.int64)
        self.highest_cost = int(self.costs.max())
        # Inverted sets come last: they are not gathered.
        set_ids, s_set = np.unique(sets, return_inverse=True)
        inverted = np.array([tokens.sets.is_inverted(k) for k in set_ids.tolist()])
        if inverted.any():
            order = np.argsort(inverted, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            set_ids, s_set = set_ids[order], rank[s_set]
        small = len(set_ids) - int(inverted.sum())
        numbers: list[int] = set_ids.tolist()
        self.set_ids = set_ids
        """[K] numbers of the token sets."""
        sizes = np.array([tokens.sets.sizes[k] for k in numbers], np.int64)
        self.set_sizes = sizes
        self.inverted = numbers[small:]
        """Numbers of the sets that are summed by what is not in them."""
        gathered = [tokens.sets.written(k) for k in numbers[:small]]
        self.ids: NDArray[np.int32] = np.concatenate(gathered) if small else np.zeros(0, np.int32)
        """The ids of all other sets, one after another."""
        self.id_start: IntArray = np.cumsum(sizes[:small]) - sizes[:small]
        self.s_source: IntArray = np.repeat(np.arange(len(states)), counts)
        self.s_target: IntArray = s_target
        self.s_set: IntArray = s_set
        self.s_start: IntArray = np.cumsum(counts) - counts
        by_target = np.argsort(s_target, kind="stable")
        self.t_source: IntArray = self.s_source[by_target]
        self.t_set: IntArray = s_set[by_target]
        self.t_target: IntArray = s_target[by_target]
        self.t_start: IntArray = np.flatnonzero(np.diff(self.t_target, prepend=-1))
        self._sets, self._part_sets = tokens.sets, tokens.part_sets
        self._terms: tuple[NDArray[np.int32], IntArray] | None = None
        self._holds: dict[int, BoolArray] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return 4 * len(self.ids) + 48 * len(self.s_set) + 40 * len(self.targets)

    def terms(self) -> tuple[NDArray[np.int32], IntArray]:
        """Return (symbols of all sets, one after another, and where those of each begin)."""
        if self._terms is None:
            self._part_sets.parts()
            found = [self._part_sets.symbols(k) for k in self.set_ids.tolist()]
            counts = np.array([len(symbols) for symbols in found])
            self._terms = np.concatenate(found), np.cumsum(counts) - counts
        return self._terms

    def set_of(self, edge: int) -> int:
        """Return the number of an edge's set."""
        return int(self.set_ids[self.s_set[edge]])

    def holds(self, token: int) -> BoolArray:
        """Return which of the layer's sets hold a token: [K]."""
        known = self._holds.get(token)
        if known is None:
            known = np.zeros(len(self.set_ids), np.bool_)
            if len(self.id_start):
                known[: len(self.id_start)] = np.logical_or.reduceat(
                    self.ids == token, self.id_start
                )
            for k, number in enumerate(self.inverted, len(self.id_start)):
                known[k] = self._sets.mask(number)[token]
            self._holds[token] = known
        return known


class Layers:
    """Layers by their source states; shared by all matchers of a grammar."""

    def __init__(self, tokens: TokenAutomaton) -> None:
        self.tokens = tokens
        self._known: dict[bytes, Layer] = {}
        self._held = 0

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return self._held

    def after(self, states: IntArray, key: bytes) -> Layer:
        """Return the layer of these states; `key` is their bytes."""
        layer = self._known.get(key)
        if layer is None:
            with self.tokens.lock:
                layer = Layer(self.tokens, states)
                self._held += layer.nbytes
                if self._held > _CACHE_BYTES:
                    self._known = {}
                    self._held = layer.nbytes
                self._known[key] = layer
        return layer
