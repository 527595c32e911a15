"""The model's log-probabilities of one step, as sums and maxima over token sets.

Small sets are gathered. A set that is a large part of the vocabulary is summed by what is not in
it, and its maximum is looked for only where a table of maxima says it may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.layers import Layer
from agentdiff.constraint.sets import TokenSets

FloatArray = NDArray[np.float64]

FLOOR = -1e4
"""The least log-probability: what the model rules out stays possible when the grammar demands
it."""
MOST = 0.999
"""Above this probability of all other tokens, what is left of 1 is mostly rounding."""
LINE = 512
"""Tokens per line of the table of row maxima."""


class Scores:
    """The log-probabilities of one step, as sums and maxima over token sets."""

    def __init__(
        self, log_probs: NDArray[np.floating], temperature: float, sets: TokenSets
    ) -> None:
        """Take log-probabilities [L, V], normalised per row; they are divided by `temperature`."""
        self._rows = log_probs
        self._sets = sets
        self._temperature = temperature
        self._lines: FloatArray | None = None

    def at(self, position: int, ids: NDArray[np.integer]) -> FloatArray:
        """The scores of some tokens at a position."""
        scores = self._rows[position].take(ids).astype(np.float64)
        np.maximum(scores, FLOOR, out=scores)
        return scores if self._temperature == 1.0 else scores / self._temperature

    def of_sets(self, position: int, layer: Layer) -> FloatArray:
        """Return [2, K]: per set of the layer its log-summed probability and best score."""
        out = np.full((2, len(layer.set_ids)), -np.inf)
        small = len(layer.id_start)
        if small:
            scores = self.at(position, layer.ids)
            highest = out[1, :small]
            np.maximum.reduceat(scores, layer.id_start, out=highest)
            shift = float(highest.max())
            sums = np.add.reduceat(np.exp(scores - shift), layer.id_start)
            np.log(sums, out=out[0, :small], where=sums > 0)
            out[0, :small] += shift
        for k, number in enumerate(layer.inverted, small):
            best = self._best(position, number)
            out[1, k] = self.at(position, np.array([best]))[0]
            out[0, k] = self._log_sum(position, number)
        np.maximum(out[0], out[1], out=out[0])  # sums that were lost to rounding
        return out

    def best_in(self, position: int, number: int) -> int:
        """Return the likeliest token of a set; the first of several."""
        if self._sets.is_inverted(number):
            return self._best(position, number)
        ids = self._sets.written(number)
        return int(ids[0]) if len(ids) == 1 else int(ids[self._rows[position].take(ids).argmax()])

    def _log_sum(self, position: int, number: int) -> float:
        """The log-sum of an inverted set."""
        if self._temperature == 1.0:
            rest = float(np.exp(self.at(position, self._sets.written(number))).sum())
            if rest < MOST:
                return float(np.log1p(-rest))
        scores = self.at(position, self._sets.members(number))
        highest = float(scores.max())
        return highest + float(np.log(np.exp(scores - highest).sum()))

    def _best(self, position: int, number: int) -> int:
        """The likeliest token of a large set, looking only into lines whose maximum may be it."""
        row, mask = self._rows[position], self._sets.mask(number)
        if self._lines is None:
            starts = np.array(range(0, self._rows.shape[1], LINE), np.int64)
            self._lines = np.maximum.reduceat(self._rows, starts, axis=1).astype(np.float64)
        best, best_score = int(mask.argmax()), -np.inf
        lines = self._lines[position]
        for line in np.argsort(-lines, kind="stable").tolist():
            if lines[line] < best_score:
                break
            low = line * LINE
            part = np.where(mask[low : low + LINE], row[low : low + LINE], -np.inf)
            k = int(part.argmax())
            if mask[low + k] and (part[k], -low - k) > (best_score, -best):
                best, best_score = low + k, float(part[k])
        return best
