"""What one compiled step reads and writes: scores, token sets, and what is known of them by now.

Legend: L positions, V vocabulary, S states, K token sets.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.arithmetic import (
    Bits,
    FloatArray,
    Rows,
    compiled,
    gather,
    highest_of,
)
from agentdiff.constraint.sets import SetArrays
from agentdiff.constraint.step_scores import FLOOR
from agentdiff.constraint.vocabulary import IntArray


class Table(NamedTuple):
    """The scores of a step: whole rows, or those of columns beside groups (`StepScores`)."""

    rows: Rows
    """[n, V], or [n, C] with groups."""
    bits: Bits
    """The same taken as integers."""
    row_of: IntArray
    """[L] the row of each position."""
    names: NDArray[np.int32]
    """[C] token of each column; empty where rows are whole."""
    total: FloatArray
    """[n, G] this and what follows: see `step_scores.Sums`."""
    best: FloatArray
    token: NDArray[np.int32]
    cooled: FloatArray
    drawn: NDArray[np.int32]
    drawn_score: FloatArray


class Scratch(NamedTuple):
    """What one step writes; used again by the next."""

    stamp: NDArray[np.int32]
    """[L, K] whether sums and maxima of a set at a position have been computed."""
    total: FloatArray
    """[L, K] log-sums of sets under the scores of the step."""
    best: FloatArray
    """[L, K] their best scores."""
    token: NDArray[np.int32]
    """[L, K] their best tokens; ~n where nobody has looked yet: in piece n of the ids that `link`
    has."""
    link: NDArray[np.int32]
    """[L, K] the set among whose written ids the best token is: this one, or one it is written by."""
    plain: FloatArray
    """[L, K] log-sums without the temperature."""
    score: FloatArray
    """[L] the scores of the tokens that were chosen, without the temperature."""
    first: IntArray
    """[L + 2] where the nodes of a position begin."""
    slot: NDArray[np.int32]
    """[S] state → place among the states of a position; -1 between uses."""
    lines: IntArray
    """[lines of a row] maxima, as sortable keys."""
    gathered: Rows
    """[V + 1] the log-probabilities of one set; the last is for a float whose bits are known."""
    gathered_bits: Bits
    """The same taken as integers."""


@compiled
def ids_of(sets: SetArrays, k: int) -> NDArray[np.int32]:
    """The written ids of a set."""
    start = sets.start[k]
    if start >= 0:
        return sets.own[start : start + sets.written[k]]
    return sets.shared[~start : ~start + sets.written[k]]


@compiled
def groups_of(sets: SetArrays, k: int) -> NDArray[np.int32]:
    """The groups of a set, as ~g."""
    start = sets.start[k] + sets.written[k]
    return sets.own[start : start + sets.grouped[k]]


@compiled
def name_of(table: Table, column: int) -> int:
    """The token of a column; columns of whole rows are tokens."""
    return table.names[column] if len(table.names) else column


@compiled
def is_written(ids: NDArray[np.int32], token: int) -> bool:
    """Whether sorted ids hold a token."""
    place = np.searchsorted(ids, token)
    return bool(place < len(ids) and ids[place] == token)


@compiled
def holds(sets: SetArrays, k: int, token: int) -> bool:
    """Whether a set holds a token."""
    here: Any = np.int64(k)
    while here >= 0:
        if is_written(ids_of(sets, here), token) != sets.inverted[here]:
            return True
        here = np.int64(sets.base[here])
    return False


@compiled
def links_of(sets: SetArrays, k: int) -> IntArray:
    """The sets that a set is written by, the innermost first, and itself at the end."""
    count = 1
    here = np.int64(k)
    while sets.base[here] >= 0:
        here = np.int64(sets.base[here])
        count += 1
    links = np.empty(count, np.int64)
    here = np.int64(k)
    for n in range(count - 1, -1, -1):
        links[n] = here
        here = np.int64(sets.base[here])
    return links


@compiled
def at(row: Rows, token: int, cool: float) -> float:
    """The score of a token; `cool` is 1 / temperature."""
    return max(np.float64(row[token]), FLOOR) * cool


@compiled
def best_of(row: Rows, mask: int, ids: NDArray[np.int32], scratch: Scratch) -> int:
    """The likeliest of some ids, the first of several."""
    if len(ids) > 1:
        gather(row, ids, scratch.gathered[: len(ids)])
        bits = scratch.gathered_bits[: len(ids)]
        highest = highest_of(bits, mask)
        for j in range(len(bits)):
            if bits[j] == highest:
                return ids[j]
    return ids[0]
