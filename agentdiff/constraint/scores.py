"""The model's log-probabilities of one step, as sums and maxima over token sets.

Small sets are gathered. A set that is a large part of the vocabulary is summed by what is not in
it, and its maximum is looked for only where a table of maxima says it may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.layers import Layer
from agentdiff.constraint.tokens import BigSet
from agentdiff.constraint.vocabulary import IntArray

FloatArray = NDArray[np.float64]

_FLOOR = -1e4
"""The least log-probability: what the model rules out stays possible when the grammar demands
it."""
_MOST = 0.999
"""Above this probability of all other tokens, what is left of 1 is mostly rounding."""
_LINE = 512
"""Tokens per line of the table of row maxima."""


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
            if rest < _MOST:
                return float(np.log1p(-rest))
        scores = self.at(position, big.ids)
        highest = float(scores.max())
        return highest + float(np.log(np.exp(scores - highest).sum()))

    def _best(self, position: int, big: BigSet) -> int:
        """The likeliest token of a big set, looking only into lines whose maximum may be it."""
        row = self._rows[position]
        if self._lines is None:
            starts = np.array(range(0, self._rows.shape[1], _LINE), np.int64)
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
