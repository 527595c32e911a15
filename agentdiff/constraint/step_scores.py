"""What a model says of a block in one step, as much of it as a grammar needs.

Either whole rows of log-probabilities, or what `Parts` asks of them: the scores of some tokens, and
sums and best tokens of groups. The second is for models on another device, from which whole rows
would be megabytes in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.parts import Parts
from agentdiff.constraint.vocabulary import IntArray

FloatArray = NDArray[np.float64]

FLOOR = -1e4
"""The least log-probability: what the model rules out stays possible when the grammar demands
it."""

RULED_OUT = -100.0
"""Less than any model says, and far above FLOOR, so that many of them still add up."""


class Sums(NamedTuple):
    """What groups of tokens come to, in n rows: [n, G] each, scores not below FLOOR."""

    total: FloatArray
    """Log of the summed probability."""
    best: FloatArray
    """The highest score."""
    token: NDArray[np.int32]
    """Who has it; the first of several."""
    cooled: FloatArray
    """Log-sum of the scores over the temperature."""
    drawn: NDArray[np.int32]
    """A token drawn from the group with probability proportional to exp(score / temperature)."""
    drawn_score: FloatArray
    """Its score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """The scores of one step for a block of `length` positions."""

    length: int
    places: IntArray
    """[n] the positions that are scored, in order; all others must be pinned."""
    rows: NDArray[np.floating]
    """[n, V] log-probabilities, normalised per row; with `parts` [n, C], those of its columns."""
    parts: Parts | None = None
    """What was asked of the rows; None where they are whole."""
    sums: Sums | None = None
    """With `parts`: its groups, the shared ones first."""
    temperature: float = 0.0
    """With `parts`: what `cooled` and `drawn` hold for; 0 where nothing can be drawn."""
    renew: Callable[[Parts], StepScores] | None = None
    """With `parts`: gives the same scores for more of them, since a grammar may grow in a step. What
    is drawn for a group must not change."""

    @classmethod
    def whole(
        cls,
        log_probs: NDArray[np.floating],
        *,
        places: IntArray | None = None,
        length: int | None = None,
    ) -> StepScores:
        """Take whole rows [n, V]: of every position, or of some `places` of a block."""
        return cls(
            length=len(log_probs) if length is None else length,
            places=np.arange(len(log_probs)) if places is None else places,
            rows=log_probs,
        )

    @classmethod
    def reduced(
        cls,
        log_probs: NDArray[np.floating],
        parts: Parts,
        *,
        temperature: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> StepScores:
        """Reduce whole rows [L, V] in numpy: what an engine does on its device.

        Args:
            log_probs: Whole rows.
            parts: What is asked of them.
            temperature: What fills will be drawn at; 0 for none.
            rng: Where noise comes from; required for a temperature above 0.
        """
        scores = np.maximum(log_probs.astype(np.float64), FLOOR)
        noisy = scores
        if temperature > 0:
            assert rng is not None
            noisy = scores / temperature + rng.gumbel(size=scores.shape)
        return cls._reduced(log_probs, scores, noisy, parts, temperature)

    @classmethod
    def _reduced(
        cls,
        log_probs: NDArray[np.floating],
        scores: FloatArray,
        noisy: FloatArray,
        parts: Parts,
        temperature: float,
    ) -> StepScores:
        groups = (*parts.shared.ids, *parts.own.ids)
        shape = len(scores), len(groups)
        sums = Sums(
            *(np.empty(shape, kind) for kind in (float, float, np.int32, float, np.int32, float))
        )
        rows = np.arange(len(scores))
        for g, ids in enumerate(groups):
            part = scores[:, ids]
            best, drawn = ids[part.argmax(1)], ids[noisy[:, ids].argmax(1)]
            with np.errstate(invalid="ignore"):  # what is no number stays none, and is found later
                sums.total[:, g] = np.logaddexp.reduce(part, axis=1)
                sums.cooled[:, g] = np.logaddexp.reduce(part / (temperature or 1.0), axis=1)
            sums.token[:, g], sums.best[:, g] = best, scores[rows, best]
            sums.drawn[:, g], sums.drawn_score[:, g] = drawn, scores[rows, drawn]
        return cls(
            length=len(scores),
            places=rows,
            rows=log_probs[:, parts.columns],
            parts=parts,
            sums=sums,
            temperature=temperature,
            renew=lambda more: cls._reduced(log_probs, scores, noisy, more, temperature),
        )

    def row_of(self) -> IntArray:
        """[L] the row of each position; -1 where there is none."""
        rows = np.full(self.length, -1, np.int64)
        rows[self.places] = np.arange(len(self.places))
        return rows

    def at(self, position: int, tokens: Sequence[int]) -> FloatArray:
        """Return the log-probabilities of some tokens at a scored position.

        Of a group only the best token and the one that was drawn are known, so any token of a
        proposal is.

        Raises:
            ValueError: Nobody has asked for a token's score.
        """
        place = int(self.row_of()[position])
        if self.sums is None:
            return self.rows[place, self._columns_of(tokens)].astype(np.float64)
        return np.array([self._of_part(place, token) for token in tokens])

    def _of_part(self, place: int, token: int) -> float:
        """The score of a token in a row by parts."""
        assert self.parts is not None
        assert self.sums is not None
        for known, scores in (
            (self.parts.columns, self.rows[place]),
            (self.sums.token[place], self.sums.best[place]),
            (self.sums.drawn[place], self.sums.drawn_score[place]),
        ):
            found = np.flatnonzero(known == token)
            if len(found):
                return float(scores[found[0]])
        raise ValueError(f"token {token} is not among what the grammar asks for")

    def without(self, position: int, token: int) -> StepScores:
        """Return the same scores with a token ruled out at a scored position, as far as anything is.

        Raises:
            ValueError: The token is no column of `parts`.
        """
        rows = self.rows.copy()
        rows[int(self.row_of()[position]), self._columns_of([token])] = RULED_OUT
        renew = self.renew

        def renewed(more: Parts) -> StepScores:
            assert renew is not None
            return renew(more).without(position, token)

        return replace(self, rows=rows, renew=renewed if renew else None)

    def _columns_of(self, tokens: Sequence[int]) -> IntArray:
        """Where tokens stand in a row."""
        if self.parts is None:
            return np.array(tokens, np.int64)
        columns = self.parts.columns
        order = np.argsort(columns)
        found = order[np.minimum(np.searchsorted(columns, tokens, sorter=order), len(order) - 1)]
        if (columns[found] != tokens).any():
            raise ValueError(f"tokens {list(tokens)} are not all among what the grammar asks for")
        return found
