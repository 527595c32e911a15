"""The model's log-probabilities of one step, as sums and maxima over token sets.

Small sets are gathered. A set that is a large part of the vocabulary is summed by what is not in
it, and its maximum is looked for only where a table of maxima says it may be.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.draws import draw_of
from agentdiff.constraint.layers import Layer
from agentdiff.constraint.sets import TokenSets
from agentdiff.constraint.step_scores import FLOOR, FloatArray, StepScores
from agentdiff.constraint.tokens import TokenAutomaton
from agentdiff.constraint.vocabulary import IntArray

MOST = 0.999
"""Above this probability of all other tokens, what is left of 1 is mostly rounding."""
LINE = 512
"""Tokens per line of the table of row maxima."""


class Scores(Protocol):
    """The scores of one step, as sums and maxima over token sets; all divided by a temperature."""

    def at(self, position: int, ids: NDArray[np.integer]) -> FloatArray:
        """The scores of some tokens at a position."""
        ...

    def of_sets(self, position: int, layer: Layer) -> FloatArray:
        """Return [2, K]: per set of the layer its log-summed probability and best score."""
        ...

    def best_in(self, position: int, number: int) -> int:
        """Return the likeliest token of a set; the first of several."""
        ...

    def draw_in(self, position: int, number: int, draw: float) -> int:
        """Return a token of a set with probability proportional to exp(score)."""
        ...

    def not_below(self, position: int, number: int, least: float) -> IntArray:
        """Return the ids of a set that score at least that, in the order of the set."""
        ...


def scores_of(
    scores: StepScores, begin: int, temperatures: tuple[float, ...], tokens: TokenAutomaton
) -> list[Scores]:
    """The scores of the positions from `begin` on, at some temperatures."""
    row_of = scores.row_of()[begin:]
    if scores.parts is None:
        return [RowScores(scores.rows, row_of, t, tokens.sets) for t in temperatures]
    table = _Table(scores, tokens)
    return [PartScores(table, row_of, t) for t in temperatures]


class RowScores:
    """Scores by whole rows."""

    def __init__(
        self,
        log_probs: NDArray[np.floating],
        row_of: IntArray,
        temperature: float,
        sets: TokenSets,
    ) -> None:
        """Take log-probabilities [n, V], normalised per row, and the row of each position."""
        self._rows, self._row_of = log_probs, row_of
        self._sets = sets
        self._temperature = temperature
        self._lines: FloatArray | None = None

    def at(self, position: int, ids: NDArray[np.integer]) -> FloatArray:
        """See `Scores.at`."""
        scores = self._row(position).take(ids).astype(np.float64)
        np.maximum(scores, FLOOR, out=scores)
        return scores if self._temperature == 1.0 else scores / self._temperature

    def of_sets(self, position: int, layer: Layer) -> FloatArray:
        """See `Scores.of_sets`."""
        out = np.full((2, len(layer.set_ids)), -np.inf)
        small = len(layer.id_start)
        if small:
            scores = self.at(position, layer.ids)
            highest = out[1, :small]
            np.maximum.reduceat(scores, layer.id_start, out=highest)
            shifts = np.repeat(highest, layer.set_sizes[:small])
            sums = np.add.reduceat(np.exp(scores - shifts), layer.id_start)
            np.add(highest, np.log(sums), out=out[0, :small])
        for k, number in enumerate(layer.inverted, small):
            best = self._best(position, number)
            out[1, k] = self.at(position, np.array([best]))[0]
            out[0, k] = self._log_sum(position, number)
        np.maximum(out[0], out[1], out=out[0])  # sums that were lost to rounding
        return out

    def best_in(self, position: int, number: int) -> int:
        """See `Scores.best_in`."""
        if self._sets.is_inverted(number):
            return self._best(position, number)
        ids = self._sets.written(number)
        return int(ids[0]) if len(ids) == 1 else int(ids[self._row(position).take(ids).argmax()])

    def draw_in(self, position: int, number: int, draw: float) -> int:
        """See `Scores.draw_in`."""
        is_inverted = self._sets.is_inverted(number)
        ids = self._sets.members(number) if is_inverted else self._sets.in_order(number)
        return int(ids[draw_of(self.at(position, ids), draw)])

    def not_below(self, position: int, number: int, least: float) -> IntArray:
        """See `Scores.not_below`."""
        if not self._sets.is_inverted(number):
            ids = self._sets.in_order(number).astype(np.int64)
            return ids[self.at(position, ids) >= least]
        least *= self._temperature
        if least <= FLOOR:
            return self._sets.members(number)
        return np.flatnonzero((self._row(position) >= least) & self._sets.mask(number))

    def _row(self, position: int) -> NDArray[np.floating]:
        return self._rows[self._row_of[position]]

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
        row, mask = self._row(position), self._sets.mask(number)
        if self._lines is None:
            starts = np.array(range(0, self._rows.shape[1], LINE), np.int64)
            self._lines = np.maximum.reduceat(self._rows, starts, axis=1).astype(np.float64)
        best, best_score = int(mask.argmax()), -np.inf
        lines = self._lines[self._row_of[position]]
        for line in np.argsort(-lines, kind="stable").tolist():
            if lines[line] < best_score:
                break
            low = line * LINE
            part = np.where(mask[low : low + LINE], row[low : low + LINE], -np.inf)
            k = int(part.argmax())
            if mask[low + k] and (part[k], -low - k) > (best_score, -best):
                best, best_score = low + k, float(part[k])
        return best


class _Table:
    """The scores of parts, by symbol; grows with its grammar."""

    def __init__(self, scores: StepScores, tokens: TokenAutomaton) -> None:
        self._tokens, self._part_sets = tokens, tokens.part_sets
        self.set(scores)

    def set(self, scores: StepScores) -> None:
        """Take the scores of as many parts as there are now."""
        assert scores.parts is not None
        assert scores.sums is not None
        self.scores, self.parts, self.sums = scores, scores.parts, scores.sums
        rows = np.maximum(scores.rows.astype(np.float64), FLOOR)
        # ~g counts from the end.
        self.total, self.cooled, self.best = (
            np.concatenate([rows * scale, groups[:, ::-1]], 1)
            for groups, scale in (
                (self.sums.total, 1.0),
                (self.sums.cooled, 1.0 / (scores.temperature or 1.0)),
                (self.sums.best, 1.0),
            )
        )

    def cover(self, symbols: NDArray[np.int32], ahead: IntArray) -> None:
        """See to it that there are scores of these symbols; `ahead`: the states that come next."""
        columns, groups = self.parts.size
        if symbols.max() >= columns or ~symbols.min() >= groups:
            assert self.scores.renew is not None
            self._tokens.look_ahead(ahead.tolist())  # so that nobody has to ask again so soon
            self.set(self.scores.renew(self._part_sets.parts()))

    def symbols(self, number: int) -> NDArray[np.int32]:
        """How a set is put together."""
        return self._part_sets.symbols(number)


class PartScores:
    """Scores by parts; a nucleus needs whole rows."""

    def __init__(self, table: _Table, row_of: IntArray, temperature: float) -> None:
        """Take the scores and the row of each position; `temperature` is 1 or that of the table."""
        self._table, self._row_of, self._temperature = table, row_of, temperature

    def at(self, position: int, ids: NDArray[np.integer]) -> FloatArray:
        """See `Scores.at`; of columns, and of the best and the drawn token of a group."""
        row, sums = self._row_of[position], self._table.sums
        found: list[float] = []
        for token in ids.tolist():
            for known, scores in (
                (self._table.parts.columns, self._table.best[row]),
                (sums.token[row], sums.best[row]),
                (sums.drawn[row], sums.drawn_score[row]),
            ):
                places = np.flatnonzero(known == token)
                if len(places):
                    found.append(float(scores[places[0]]))
                    break
        return np.array(found) / self._temperature

    def of_sets(self, position: int, layer: Layer) -> FloatArray:
        """See `Scores.of_sets`."""
        symbols, starts = layer.terms()
        self._table.cover(symbols, layer.targets)
        row = self._row_of[position]
        best = np.maximum.reduceat(self._table.best[row][symbols], starts) / self._temperature
        totals = self._totals(position)[symbols]
        highest = np.maximum.reduceat(totals, starts)
        shifts = np.repeat(highest, np.diff(starts, append=len(symbols)))
        sums = np.log(np.add.reduceat(np.exp(totals - shifts), starts)) + highest
        return np.stack([np.maximum(sums, best), best])

    def best_in(self, position: int, number: int) -> int:
        """See `Scores.best_in`."""
        symbols = self._table.symbols(number)
        scores = self._table.best[self._row_of[position]][symbols]
        best = symbols[scores == scores.max()].tolist()
        return min(self._token(position, symbol, self._table.sums.token) for symbol in best)

    def draw_in(self, position: int, number: int, draw: float) -> int:
        """See `Scores.draw_in`: a part of the set first, then what was drawn from it."""
        symbols = self._table.symbols(number)
        symbol = int(symbols[draw_of(self._totals(position)[symbols], draw)])
        return self._token(position, symbol, self._table.sums.drawn)

    def not_below(self, position: int, number: int, least: float) -> IntArray:
        """See `Scores.not_below`; nobody asks for it, see `Matcher.propose`."""
        raise AssertionError("a nucleus needs whole rows")

    def _totals(self, position: int) -> FloatArray:
        table = self._table
        return (table.total if self._temperature == 1.0 else table.cooled)[self._row_of[position]]

    def _token(self, position: int, symbol: int, tokens: NDArray[np.int32]) -> int:
        if symbol >= 0:
            return int(self._table.parts.columns[symbol])
        return int(tokens[self._row_of[position], ~symbol])
