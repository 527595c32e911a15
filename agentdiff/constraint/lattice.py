"""One denoising step as a lattice: position × state, forward, backward, witness.

The model offers a product of independent distributions, one per position. Conditioned on "the block is a valid piece of
text and the rest closes within the budget", that is a Markov chain over automaton states. A forward pass explores
states where the scores (and the old witness) make them plausible; a backward pass gives exact sums and maxima over what
was explored; a walk from left to right picks or samples the witness.

All sums are in log space. Knows states, costs and token sets; no schema, no budget policy.

Legend: L positions, V vocabulary, E edges of a layer, K token sets of a layer, S source states, T target states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DONE
from agentdiff.constraint.tokens import EOS_SET, BigSet, TokenAutomaton
from agentdiff.constraint.vocabulary import IntArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

NEVER = -1e9
"""The score of what the grammar or a pin forbids: far below every real score, and finite, so that sums work."""
_FLOOR = -1e4
"""The least log-probability: what the model rules out stays possible when the grammar demands it."""
_IMPOSSIBLE = NEVER / 2
_MARGIN = 25.0
"""States this many nats below the best of their position are not explored."""
_WIDTHS = (48, 512, 4096)
"""States kept per position; later ones only when pins that leave the witness find no way with fewer."""
_BIG = 8192
"""Sets with more tokens than this are not gathered."""
_LINE = 512
"""Tokens per line of the table of row maxima."""
_CACHE_IDS = 4_000_000
"""Token ids that cached layers may hold together; then the cache starts anew."""


class Infeasible(Exception):
    """No fill keeps the pins; `position` is the last one that mattered, or None when the end is at fault."""

    def __init__(self, position: int | None) -> None:
        self.position = position
        super().__init__(position)


class Layer:
    """All edges out of a tuple of states, in two orders: by source and by target."""

    def __init__(self, tokens: TokenAutomaton, states: IntArray) -> None:
        edges = [tokens.edges(state) for state in states.tolist()]
        counts = np.array([len(targets) for targets, _ in edges])
        target = np.concatenate([targets for targets, _ in edges])
        sets = np.concatenate([s for _, s in edges])
        costs = tokens.automaton.costs

        self.targets, s_target = np.unique(target, return_inverse=True)
        self.targets_key = self.targets.tobytes()
        self.costs: IntArray = np.array([costs[q] for q in self.targets.tolist()], np.int64)
        self.highest_cost = int(self.costs.max())
        # Big sets come last: they are not gathered.
        set_ids, s_set = np.unique(sets, return_inverse=True)
        sizes = np.array([tokens.set_sizes[k] for k in set_ids.tolist()])
        big = sizes > _BIG
        if big.any():
            order = np.argsort(big, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            set_ids, sizes, s_set = set_ids[order], sizes[order], rank[s_set]
        small = len(set_ids) - int(big.sum())
        self.set_ids = set_ids
        """[K] numbers of the token sets."""
        self.set_sizes = sizes
        self.big = [tokens.big_set(k) for k in set_ids[small:].tolist()]
        self.ids: IntArray = (
            np.concatenate([tokens.sets[k] for k in set_ids[:small].tolist()]) if small else sizes[:0]
        )
        """The ids of all small sets, one after another."""
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
        self._holds: dict[int, BoolArray] = {}

    def holds(self, token: int) -> BoolArray:
        """Return which of the layer's sets hold a token: [K]."""
        known = self._holds.get(token)
        if known is None:
            known = np.zeros(len(self.set_ids), np.bool_)
            if len(self.id_start):
                known[: len(self.id_start)] = np.logical_or.reduceat(self.ids == token, self.id_start)
            for k, big in enumerate(self.big, len(self.id_start)):
                known[k] = big.mask[token]
            self._holds[token] = known
        return known


class Scores:
    """The log-probabilities of one step, as sums and maxima over token sets."""

    def __init__(self, log_probs: NDArray[np.floating], temperature: float) -> None:
        """Take log-probabilities [L, V], normalised per row; they are divided by `temperature`."""
        self._rows = log_probs
        self._temperature = temperature
        self._lines: FloatArray | None = None

    def at(self, position: int, ids: IntArray) -> FloatArray:
        """The scores of some tokens at a position."""
        scores = self._rows[position].take(ids).astype(np.float64)
        np.maximum(scores, _FLOOR, out=scores)
        return scores if self._temperature == 1.0 else scores / self._temperature

    def of_sets(self, position: int, layer: Layer) -> FloatArray:
        """Return [2, K]: per token set of the layer the log of its summed probability, and its best score."""
        out = np.empty((2, len(layer.set_ids)))
        small = len(layer.id_start)
        if small:
            scores = self.at(position, layer.ids)
            highest = out[1, :small]
            np.maximum.reduceat(scores, layer.id_start, out=highest)
            shift = float(highest.max())
            sums = np.add.reduceat(np.exp(scores - shift), layer.id_start)
            out[0, :small] = np.log(np.maximum(sums, 1e-300)) + shift
        for k, big in enumerate(layer.big, small):
            best = self._best(position, big)
            out[1, k] = self.at(position, np.array([best]))[0]
            out[0, k] = self._log_sum(position, big)
        np.maximum(out[0], out[1], out=out[0])  # sums that were lost to rounding
        return out

    def best_in(self, position: int, ids: IntArray, big: BigSet | None) -> int:
        """Return the likeliest token of a set."""
        if big is not None:
            return self._best(position, big)
        return int(ids[0]) if len(ids) == 1 else int(ids[self._rows[position].take(ids).argmax()])

    def _log_sum(self, position: int, big: BigSet) -> float:
        if self._temperature == 1.0 and len(big.others) < len(big.ids):
            rest = float(np.exp(self.at(position, big.others)).sum())
            return float(np.log(max(1.0 - rest, 1e-300)))
        scores = self.at(position, big.ids)
        highest = float(scores.max())
        return highest + float(np.log(np.exp(scores - highest).sum()))

    def _best(self, position: int, big: BigSet) -> int:
        """The likeliest token of a big set, looking only into lines whose maximum may be it."""
        row = self._rows[position]
        if self._lines is None:
            starts = np.arange(0, self._rows.shape[1], _LINE)
            self._lines = np.maximum.reduceat(self._rows, starts, axis=1).astype(np.float64)
        best, best_score = int(big.ids[0]), -np.inf
        lines = self._lines[position]
        for line in np.argsort(-lines).tolist():
            if lines[line] <= best_score:
                break
            low = line * _LINE
            part = np.where(big.mask[low : low + _LINE], row[low : low + _LINE], -np.inf)
            k = int(part.argmax())
            if part[k] > best_score:
                best, best_score = low + k, float(part[k])
        return best


class Layers:
    """Layers by their source states, kept while there is room; shared by all matchers of a grammar."""

    def __init__(self, tokens: TokenAutomaton) -> None:
        self.tokens = tokens
        self._known: dict[bytes, Layer] = {}
        self._held = 0

    def after(self, states: IntArray, key: bytes) -> Layer:
        """Return the layer of these states; `key` is their bytes."""
        layer = self._known.get(key)
        if layer is None:
            with self.tokens.lock:
                layer = Layer(self.tokens, states)
                self._held += len(layer.ids) + 8 * len(layer.s_set)
                if self._held > _CACHE_IDS:
                    self._known = {}
                    self._held = len(layer.ids)
                self._known[key] = layer
        return layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A valid fill of the block and what is known of it."""

    tokens: IntArray
    """[L]"""
    confidence: FloatArray
    """[L] the posterior probability of each token."""
    forced: BoolArray
    """[L] whether the grammar and the pins leave no other token."""
    path: list[int]
    """L + 1 states, from the first to the last."""


class Lattice:
    """The explored part of one step; built by `solve`."""

    def __init__(
        self,
        layers: Layers,
        start: int,
        *,
        budget: int,
        scores: Scores,
        length: int,
        pins: Mapping[int, int],
        old_path: Sequence[int],
        width: int,
        margin: float,
    ) -> None:
        """Explore forward.

        Args:
            layers: The grammar's layers.
            start: The state before the block.
            budget: Tokens left before the block, EOS not counted.
            scores: The step's scores.
            length: Positions of the block.
            pins: Position → token that must stand there.
            old_path: States of the last witness, which are always kept; at most `length` + 1.
            width: States kept per position.
            margin: Nats below the best that are still explored.

        Raises:
            Infeasible: The pins leave no way.
        """
        self._pins = pins
        self._scores = scores
        self._tokens = layers.tokens
        self._layers: list[Layer] = []
        self._kept: list[IntArray | None] = []
        self._weights: list[FloatArray] = []
        self._forward: list[FloatArray] = []
        self._length = length
        self._start = start
        self.first_loss: int | None = None
        """The first position where something plausible to the grammar was left out."""
        states, key = np.array([start]), np.array([start]).tobytes()
        at = np.zeros(1)
        for i in range(length):
            if len(states) == 1 and states[0] == DONE:
                break  # nothing but EOS from here on
            layer = layers.after(states, key)
            weights = self._weigh(i, layer, scores)
            reached = _log_sums(at[layer.t_source] + weights[0, layer.t_set], layer.t_start, layer.t_target)
            kept = self._choose(i, layer, reached, budget - i - 1, old_path, width, margin)
            self._layers.append(layer)
            self._weights.append(weights)
            self._forward.append(at)
            self._kept.append(kept)
            if kept is None:
                states, key, at = layer.targets, layer.targets_key, reached
            else:
                states, at = layer.targets[kept], reached[kept]
                key = states.tobytes()
        for i in range(len(self._layers), length):
            if i in pins and pins[i] not in self._tokens.vocabulary.eos_ids:
                raise Infeasible(i)

    def _weigh(self, i: int, layer: Layer, scores: Scores) -> FloatArray:
        """[2, K] sums and maxima of the layer's sets at a position; 0 or NEVER where a token is pinned."""
        pin = self._pins.get(i)
        if pin is None:
            return scores.of_sets(i, layer)
        return np.broadcast_to(np.where(layer.holds(pin), 0.0, NEVER), (2, len(layer.set_ids)))

    def _choose(
        self,
        i: int,
        layer: Layer,
        reached: FloatArray,
        tokens_left: int,
        old_path: Sequence[int],
        width: int,
        margin: float,
    ) -> IntArray | None:
        """Which targets of a layer to keep (indices; None for all)."""
        affordable = None
        if layer.highest_cost > tokens_left:
            affordable = layer.costs <= tokens_left
            reached = np.where(affordable, reached, NEVER)
        best = float(reached.max())
        if np.isnan(best):
            raise ValueError("`log_probs` holds NaN")
        if best < _IMPOSSIBLE:
            raise Infeasible(i)
        limit = max(best - margin, _IMPOSSIBLE)
        keep = reached >= limit
        count = int(np.count_nonzero(keep))
        if count > width:
            keep = reached >= max(limit, float(np.partition(reached, -width)[-width]))
        elif count == len(keep):
            return None
        if i + 1 < len(old_path):
            k = int(layer.targets.searchsorted(old_path[i + 1]))
            if k < len(keep) and layer.targets[k] == old_path[i + 1] and reached[k] > _IMPOSSIBLE:
                keep[k] = True
        if self.first_loss is None and np.count_nonzero(keep) < np.count_nonzero(reached > _IMPOSSIBLE):
            self.first_loss = i
        return np.flatnonzero(keep)

    def _backward(self, weights: Sequence[FloatArray], rows: int) -> tuple[list[FloatArray], float]:
        """Per layer [rows, T] the log-sum (row 0) and maximum (row 1) over ways from a target to the end."""
        found: list[FloatArray] = []
        ahead = np.zeros((rows, 1))
        if self._layers:
            last = self._kept[-1]
            ahead = np.zeros((rows, len(self._layers[-1].targets) if last is None else len(last)))
        for layer, kept, weight in zip(
            reversed(self._layers), reversed(self._kept), reversed(weights), strict=True
        ):
            if kept is not None:
                full = np.full((rows, len(layer.targets)), NEVER)
                full[:, kept] = ahead
                ahead = full
            found.append(ahead)
            ways = ahead[:, layer.s_target] + weight[:rows, layer.s_set]
            highest = np.maximum.reduceat(ways, layer.s_start, axis=1)
            shifted = ways[0] - highest[0, layer.s_source]
            highest[0] += np.log(np.add.reduceat(np.exp(shifted), layer.s_start))
            ahead = np.maximum(highest, 2 * NEVER)
        return found[::-1], float(ahead[0, 0])

    def solve(self) -> Fill:
        """Return the best fill, with exact marginals.

        Raises:
            Infeasible: The pins leave no way.
        """
        behind, total = self._backward(self._weights, 2)
        self._check(total)
        tokens, path, ends = self._walk(behind, None)
        return self._judge(tokens, path, ends, behind, total, self._forward, self._scores)

    def sample(self, scores: Scores, rng: np.random.Generator) -> Fill:
        """Return a sample of the posterior of the (tempered) scores it was explored with.

        The confidence is that of the untempered `scores`.

        Raises:
            Infeasible: The pins leave no way.
        """
        behind, total = self._backward(self._weights, 1)
        self._check(total)
        tokens, path, ends = self._walk(behind, rng)
        weights = [self._weigh(i, layer, scores) for i, layer in enumerate(self._layers)]
        forward: list[FloatArray] = []
        at = np.zeros(1)
        for layer, kept, weight in zip(self._layers, self._kept, weights, strict=True):
            forward.append(at)
            at = _log_sums(at[layer.t_source] + weight[0, layer.t_set], layer.t_start, layer.t_target)
            at = at if kept is None else at[kept]
        behind, total = self._backward(weights, 1)
        return self._judge(tokens, path, ends, behind, total, forward, scores)

    def _check(self, total: float) -> None:
        if total < _IMPOSSIBLE:
            raise Infeasible(None)

    def _walk(
        self, behind: Sequence[FloatArray], rng: np.random.Generator | None
    ) -> tuple[IntArray, list[int], list[int]]:
        """Left to right: (tokens, states, per layer the source taken); greedy without `rng`, else a sample."""
        tokens = np.full(self._length, self._tokens.vocabulary.eos_ids[0], np.int64)
        path, taken = [self._start], [0]
        for i, layer in enumerate(self._layers):
            source, kept = taken[-1], self._kept[i]
            low = layer.s_start[source]
            high = layer.s_start[source + 1] if source + 1 < len(layer.s_start) else len(layer.s_set)
            ways = self._weights[i][-1 if rng is None else 0, layer.s_set[low:high]]
            ways = ways + behind[i][-1 if rng is None else 0, layer.s_target[low:high]]
            edge = low + (int(ways.argmax()) if rng is None else _draw(ways, rng))
            target = int(layer.s_target[edge])
            tokens[i] = self._token(i, layer, int(layer.s_set[edge]), rng)
            path.append(int(layer.targets[target]))
            taken.append(target if kept is None else int(kept.searchsorted(target)))
        for i in range(len(self._layers), self._length):
            eos = self._tokens.sets[EOS_SET]
            tokens[i] = self._pins.get(i, self._scores.best_in(i, eos, None))
            path.append(DONE)
        return tokens, path, taken

    def _token(self, i: int, layer: Layer, k: int, rng: np.random.Generator | None) -> int:
        """The token of an edge's set: the pinned one, the likeliest, or a sample."""
        if i in self._pins:
            return self._pins[i]
        ids = self._tokens.sets[layer.set_ids[k]]
        if rng is None:
            small = len(layer.id_start)
            return self._scores.best_in(i, ids, layer.big[k - small] if k >= small else None)
        return int(ids[_draw(self._scores.at(i, ids), rng)])

    def _judge(
        self,
        tokens: IntArray,
        path: list[int],
        taken: Sequence[int],
        behind: Sequence[FloatArray],
        total: float,
        forward: Sequence[FloatArray],
        scores: Scores,
    ) -> Fill:
        """Posterior probability of each token of a fill, and whether it has no alternative."""
        confidence = np.ones(self._length)
        forced = np.ones(self._length, np.bool_)
        eos_ids = self._tokens.vocabulary.eos_ids
        for i, layer in enumerate(self._layers):
            if i in self._pins:
                continue
            token = int(tokens[i])
            edges = np.flatnonzero(layer.holds(token)[layer.s_set])
            ways = forward[i][layer.s_source[edges]] + behind[i][0, layer.s_target[edges]]
            highest = float(ways.max())
            share = self._tokens.sets[EOS_SET] if token in eos_ids else np.array([token])
            score = float(np.log(np.exp(scores.at(i, share)).sum())) if len(share) > 1 else float(scores.at(i, share)[0])
            confidence[i] = min(1.0, float(np.exp(ways - highest).sum()) * np.exp(highest + score - total))
            forced[i] = confidence[i] > 1 - 1e-6 and self._has_no_other(i, layer, forward[i], behind[i])
        return Fill(tokens=tokens, confidence=confidence, forced=forced, path=path)

    def _has_no_other(self, i: int, layer: Layer, forward: FloatArray, behind: FloatArray) -> bool:
        """Whether one set of one symbol is all that may stand at a position, even where nothing was explored."""
        ways = forward[layer.s_source] + behind[0, layer.s_target]
        if self.first_loss is not None:
            if i > self.first_loss:
                return False
            ways = forward[layer.s_source]
        live = np.unique(layer.s_set[ways > _IMPOSSIBLE])
        if len(live) != 1:
            return False
        return bool(layer.set_sizes[live[0]] == 1 or layer.set_ids[live[0]] == EOS_SET)


def solve(
    layers: Layers,
    start: int,
    log_probs: NDArray[np.floating],
    pins: Mapping[int, int],
    *,
    budget: int,
    old_path: Sequence[int],
    temperature: float,
    rng: np.random.Generator | None,
) -> Fill:
    """Return a fill of the block: the best one, or a sample when `temperature` > 0.

    Raises:
        Infeasible: No fill keeps the pins, or none was found among the states that one step may explore.
    """
    plain = Scores(log_probs, 1.0)
    scores = plain if temperature == 0.0 else Scores(log_probs, temperature)
    for width in _WIDTHS:
        try:
            lattice = Lattice(
                layers,
                start,
                budget=budget,
                scores=scores,
                length=len(log_probs),
                pins=pins,
                old_path=old_path,
                width=width,
                margin=_MARGIN if width == _WIDTHS[0] else -NEVER,
            )
            return lattice.solve() if rng is None else lattice.sample(plain, rng)
        except Infeasible:
            if width == _WIDTHS[-1]:
                raise
    raise AssertionError("the widths end with a return or an error")


def _log_sums(ways: FloatArray, starts: IntArray, segment: IntArray) -> FloatArray:
    """Log-sum-exp of each segment of `ways`; `segment` says to which one each entry belongs."""
    highest = np.maximum.reduceat(ways, starts)
    sums = np.add.reduceat(np.exp(ways - highest[segment]), starts)
    return np.maximum(highest + np.log(sums), 2 * NEVER)


def _draw(scores: FloatArray, rng: np.random.Generator) -> int:
    """Draw an index with probability proportional to exp(score)."""
    if len(scores) == 1:
        return 0
    sums = np.cumsum(np.exp(scores - scores.max()))
    return min(int(sums.searchsorted(rng.random() * sums[-1], side="right")), len(scores) - 1)
