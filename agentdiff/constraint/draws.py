"""How a fill is sampled: temperature, nucleus, and the random numbers that decide.

A fill is drawn from left to right, every token given those before it, from the model's tempered
distribution over what the grammar still allows; a token counts with all the valid ways that lead on
from it. So nothing that is drawn is a dead end. A nucleus cuts that distribution in the order that
engines which write one token at a time keep: the grammar's mask, the temperature, then the
likeliest tokens that together have probability `top_p`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CUTS = (-5.0, -9.0, -14.0, -80.0)
"""A nucleus is looked for among the tokens of at least this log-probability; if they do not hold
it, among more. With the last, all that matter."""


class Draw(NamedTuple):
    """A fill is to be drawn, and how."""

    temperature: float
    """What the scores are divided by."""
    top_p: float
    """Probability of the nucleus; 1 cuts nothing."""
    numbers: FloatArray
    """[L, 2] random numbers in 0..1, for the state and the token of each position."""


def draw_of(scores: FloatArray, number: float) -> int:
    """Draw an index with probability proportional to exp(score)."""
    return _at(np.cumsum(np.exp(scores - scores.max())), number)


def draw_of_nucleus(shares: FloatArray, top_p: float, number: float) -> int:
    """Draw an index from the nucleus; of equal shares the first ones are in it."""
    order = np.argsort(-shares, kind="stable")
    sums: FloatArray = np.cumsum(shares[order])
    count = min(int(sums.searchsorted(top_p)) + 1, len(sums))
    return int(order[_at(sums[:count], number)])


def _at(sums: FloatArray, number: float) -> int:
    return min(int(sums.searchsorted(number * float(sums[-1]), side="right")), len(sums) - 1)
