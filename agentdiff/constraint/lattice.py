"""One denoising step as a lattice: position × state, forward, backward, witness.

The model offers a product of independent distributions, one per position. Conditioned on "the block
is a valid piece of text and the rest closes within the budget", that is a Markov chain over
automaton states. A forward pass explores states where the scores (and the old witness) make them
plausible; a backward pass gives exact sums and maxima over what was explored; a walk from left to
right picks or samples the witness.

All sums are in log space. Knows states, costs and token sets; no schema, no budget policy.

Legend: L positions, V vocabulary, E edges of a layer, K token sets of a layer, S source states, T
target states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentdiff.constraint.automaton import DONE
from agentdiff.constraint.draws import CUTS, Draw, draw_of, draw_of_nucleus
from agentdiff.constraint.layers import BoolArray, Layer, Layers
from agentdiff.constraint.scores import Scores, scores_of
from agentdiff.constraint.step_scores import FloatArray, StepScores
from agentdiff.constraint.tokens import EOS_SET, TokenAutomaton
from agentdiff.constraint.vocabulary import IntArray

NEVER = -1e9
"""The score of what the grammar or a pin forbids: far below every real score, and finite, so that
sums work."""
IMPOSSIBLE = NEVER / 2
MARGIN = 25.0
"""States this many nats below the best of their position are not explored."""
WIDTHS = (48, 512, 4096)
"""States kept per position; later ones only when pins that leave the witness find no way with
fewer."""


class Infeasible(Exception):
    """No fill keeps the pins; `position` is the last that mattered, None for the end."""

    def __init__(self, position: int | None) -> None:
        self.position = position
        super().__init__(position)


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
    """The explored part of one step."""

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
            reached = _log_sums(
                at[layer.t_source] + weights[0, layer.t_set], layer.t_start, layer.t_target
            )
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
        """[2, K] sums and maxima of a layer's sets; 0 or NEVER where a token is pinned."""
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
        if best < IMPOSSIBLE:
            raise Infeasible(i)
        limit = max(best - margin, IMPOSSIBLE)
        keep = reached >= limit
        count = int(np.count_nonzero(keep))
        if count > width:
            keep = reached >= max(limit, float(np.partition(reached, -width)[-width]))
        elif count == len(keep):
            return None
        if i + 1 < len(old_path):
            k = int(layer.targets.searchsorted(old_path[i + 1]))
            if k < len(keep) and layer.targets[k] == old_path[i + 1] and reached[k] > IMPOSSIBLE:
                keep[k] = True
        if self.first_loss is None and np.count_nonzero(keep) < np.count_nonzero(
            reached > IMPOSSIBLE
        ):
            self.first_loss = i
        return np.flatnonzero(keep)

    def _backward(self, weights: Sequence[FloatArray], rows: int) -> tuple[list[FloatArray], float]:
        """Per layer [rows, T]: log-sum (row 0) and maximum (row 1) over ways to the end."""
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

    def sample(self, scores: Scores, draw: Draw) -> Fill:
        """Return a sample of the posterior of the (tempered) scores it was explored with.

        The confidence is that of the untempered `scores`.

        Raises:
            Infeasible: The pins leave no way.
        """
        behind, total = self._backward(self._weights, 1)
        self._check(total)
        tokens, path, ends = self._walk(behind, draw)
        weights = [self._weigh(i, layer, scores) for i, layer in enumerate(self._layers)]
        forward: list[FloatArray] = []
        at = np.zeros(1)
        for layer, kept, weight in zip(self._layers, self._kept, weights, strict=True):
            forward.append(at)
            at = _log_sums(
                at[layer.t_source] + weight[0, layer.t_set], layer.t_start, layer.t_target
            )
            at = at if kept is None else at[kept]
        behind, total = self._backward(weights, 1)
        return self._judge(tokens, path, ends, behind, total, forward, scores)

    def _check(self, total: float) -> None:
        if total < IMPOSSIBLE:
            raise Infeasible(None)

    def _walk(
        self, behind: Sequence[FloatArray], draw: Draw | None
    ) -> tuple[IntArray, list[int], list[int]]:
        """Left to right: (tokens, states, per layer the source taken); a sample where one is asked."""
        tokens = np.full(self._length, self._tokens.vocabulary.eos_ids[0], np.int64)
        path, taken = [self._start], [0]
        row = -1 if draw is None else 0
        for i, layer in enumerate(self._layers):
            source, kept = taken[-1], self._kept[i]
            low = int(layer.s_start[source])
            is_last = source + 1 == len(layer.s_start)
            high = len(layer.s_set) if is_last else int(layer.s_start[source + 1])
            edges = np.arange(low, high)
            ahead = behind[i][row, layer.s_target[edges]]
            ways = self._weights[i][row, layer.s_set[edges]] + ahead
            if draw is None:
                edge = low + int(ways.argmax())
                tokens[i] = self._likeliest(i, layer, edge)
            elif draw.top_p < 1 and i not in self._pins:
                edge, tokens[i] = self._draw_of_nucleus(i, layer, edges, ahead, ways, draw)
            else:
                edge = low + draw_of(ways, draw.numbers[i, 0])
                tokens[i] = self._drawn(i, layer, edge, draw.numbers[i, 1])
            target = int(layer.s_target[edge])
            path.append(int(layer.targets[target]))
            taken.append(target if kept is None else int(kept.searchsorted(target)))
        for i in range(len(self._layers), self._length):
            tokens[i] = self._pins.get(i, self._scores.best_in(i, EOS_SET))
            path.append(DONE)
        return tokens, path, taken

    def _likeliest(self, i: int, layer: Layer, edge: int) -> int:
        """The likeliest token of an edge; the pinned one where there is one."""
        pin = self._pins.get(i)
        return self._scores.best_in(i, layer.set_of(edge)) if pin is None else pin

    def _drawn(self, i: int, layer: Layer, edge: int, number: float) -> int:
        """A token drawn from an edge's set; the pinned one where there is one."""
        if i in self._pins:
            return self._pins[i]
        return self._scores.draw_in(i, layer.set_of(edge), number)

    def _draw_of_nucleus(
        self,
        i: int,
        layer: Layer,
        edges: IntArray,
        ahead: FloatArray,
        ways: FloatArray,
        draw: Draw,
    ) -> tuple[int, int]:
        """(edge, token) drawn from the likeliest tokens of all edges of a state.

        ahead, ways: [edges] the sums behind each edge, and those with its set's.
        """
        whole = float(np.logaddexp.reduce(ways))
        edge_of, ids, shares = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        for cut in CUTS:
            found = [
                self._scores.not_below(i, layer.set_of(edge), whole + cut - behind)
                for edge, behind in zip(edges.tolist(), ahead.tolist(), strict=True)
            ]
            counts = [len(part) for part in found]
            ids, edge_of = np.concatenate(found), np.repeat(edges, counts)
            shares = np.exp(self._scores.at(i, ids) + np.repeat(ahead, counts) - whole)
            if float(shares.sum()) >= draw.top_p:
                break
        k = draw_of_nucleus(shares, draw.top_p, draw.numbers[i, 1])
        return int(edge_of[k]), int(ids[k])

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
            share = self._tokens.sets.members(EOS_SET) if token in eos_ids else np.array([token])
            score = float(np.logaddexp.reduce(scores.at(i, share)))
            confidence[i] = min(
                1.0, float(np.exp(ways - highest).sum()) * np.exp(highest + score - total)
            )
            forced[i] = confidence[i] > 1 - 1e-6 and self._has_no_other(
                i, layer, forward[i], behind[i]
            )
        return Fill(tokens=tokens, confidence=confidence, forced=forced, path=path)

    def _has_no_other(self, i: int, layer: Layer, forward: FloatArray, behind: FloatArray) -> bool:
        """Whether only one symbol may stand at a position, explored or not."""
        ways = forward[layer.s_source] + behind[0, layer.s_target]
        if self.first_loss is not None:
            if i > self.first_loss:
                return False
            ways = forward[layer.s_source]
        live = np.unique(layer.s_set[ways > IMPOSSIBLE])
        if len(live) != 1:
            return False
        return bool(layer.set_sizes[live[0]] == 1 or layer.set_ids[live[0]] == EOS_SET)


class Lattices:
    """Solves the steps of one grammar in numpy: the reference. Safe to share between threads."""

    def __init__(self, tokens: TokenAutomaton) -> None:
        self._layers = Layers(tokens)

    @property
    def nbytes(self) -> int:
        """Bytes held between steps, about."""
        return self._layers.nbytes

    def solve(
        self,
        start: int,
        scores: StepScores,
        pins: Mapping[int, int],
        *,
        begin: int,
        budget: int,
        old_path: Sequence[int],
        draw: Draw | None,
    ) -> Fill:
        """See `step.Solver.solve`."""
        temperatures = (1.0,) if draw is None else (1.0, draw.temperature)
        found = scores_of(scores, begin, temperatures, self._layers.tokens)
        for width in WIDTHS:
            try:
                lattice = Lattice(
                    self._layers,
                    start,
                    budget=budget,
                    scores=found[-1],
                    length=scores.length - begin,
                    pins=pins,
                    old_path=old_path,
                    width=width,
                    margin=MARGIN if width == WIDTHS[0] else -NEVER,
                )
                return lattice.solve() if draw is None else lattice.sample(found[0], draw)
            except Infeasible:
                if width == WIDTHS[-1]:
                    raise
        raise AssertionError("the widths end with a return or an error")


def _log_sums(ways: FloatArray, starts: IntArray, segment: IntArray) -> FloatArray:
    """Log-sum-exp of each segment of `ways`; `segment` says to which one each entry belongs."""
    highest = np.maximum.reduceat(ways, starts)
    sums = np.add.reduceat(np.exp(ways - highest[segment]), starts)
    return np.maximum(highest + np.log(sums), 2 * NEVER)
