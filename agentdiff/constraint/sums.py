"""Sums and maxima over token sets, compiled.

Importing this module needs numba (the `fast` extra). The functions are plain Python that numba
compiles when they are first called and keeps on disk. Floats are compared as integers of the same
order, since those comparisons run on several lanes.

Legend: L positions, V vocabulary, S states, K token sets.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.scores import LINE, MOST
from agentdiff.constraint.sets import SetArrays
from agentdiff.constraint.step_scores import FLOOR
from agentdiff.constraint.vocabulary import IntArray

FloatArray = NDArray[np.float64]
Rows = NDArray[Any]
"""Log-probabilities, float32 or float64."""
Bits = NDArray[Any]
"""The same taken as integers of that width."""

_F = TypeVar("_F", bound=Callable[..., Any])
_numba: Any = importlib.import_module("numba")

SMALLEST = -700.0
"""`exp` of less is taken for `exp` of this: nothing, beside any sum that it joins."""


def compiled(function: _F) -> _F:
    """Have a function compiled when it is first called."""
    return _numba.njit(cache=True, nogil=True, error_model="numpy")(function)


def summing(function: _F) -> _F:
    """Have a sum compiled whose order does not matter, so that it runs on several lanes."""
    flags = {"reassoc", "nsz", "contract"}
    return _numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function)


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
    """[L, K] their best tokens; -1 where nobody has looked yet."""
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


def _make_float_of_bits(width: int) -> Callable[[int], float]:
    """Bits taken as a float, which numba has no word for."""
    types, ir = _numba.types, importlib.import_module("llvmlite.ir")
    whole, real = (types.int32, types.float32) if width == 32 else (types.int64, types.float64)
    target = ir.FloatType() if width == 32 else ir.DoubleType()

    def float_of_bits(_: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], target)

        return real(whole), generate

    return importlib.import_module("numba.extending").intrinsic(float_of_bits)


_float_of_bits = _make_float_of_bits(64)
_float_of_bits_32 = _make_float_of_bits(32)


@summing
def exp(x: float) -> float:
    """e**x for -700 <= x <= 700 to 13 digits, without a branch or a table.

    Cody and Waite's reduction to |r| <= log(2) / 2, Taylor's series to r**11.
    """
    whole = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - whole * 6.93147180369123816490e-01) - whole * 1.90821492927058770002e-10
    p = 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _float_of_bits((int(whole) + 1023) << 52)


_LOG2_E, _LN2_HIGH, _LN2_LOW = map(np.float32, (1.4426950408889634, 0.693359375, -2.12194440e-4))
_C6, _C5, _C4, _C3 = map(np.float32, (1 / 720, 1 / 120, 1 / 24, 1 / 6))
_HALF, _ONE = np.float32(0.5), np.float32(1)
_LEAST_32, _MOST_32 = np.float32(-87), np.float32(87)


@summing
def _exp_32(x: Any) -> Any:
    """e**x for -87 <= x <= 87 in single precision; the same to r**6."""
    whole = np.floor(x * _LOG2_E + _HALF)
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _HALF
    p = p * r + _ONE
    p = p * r + _ONE
    bits: Any = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return p * _float_of_bits_32(bits)


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
def at(row: Rows, token: int, cool: float) -> float:
    """The score of a token; `cool` is 1 / temperature."""
    return max(np.float64(row[token]), FLOOR) * cool


@compiled
def _gather(row: Rows, ids: NDArray[np.int32], found: Rows) -> None:
    """Write the log-probabilities of ids side by side."""
    for j in range(len(ids)):
        found[j] = row[np.uint32(ids[j])]  # without a sign there is no test for one


@compiled
def _highest(bits: Bits, mask: int) -> int:
    """The bits of the largest of some floats; NaN is above all."""
    highest = _sortable(bits[0], mask)
    for j in range(len(bits)):
        highest = max(highest, _sortable(bits[j], mask))
    return _sortable(highest, mask)  # this undoes itself


@summing
def _sum_of_all(found: Rows, cool: float, best: float) -> float:
    """The sum of exp(cool * (x - best)), each as precise as the numbers are."""
    total = 0.0
    if found.itemsize == 4:
        cool_32, best_32 = np.float32(cool), np.float32(best)
        for j in range(len(found)):
            y = (np.float32(found[j]) - best_32) * cool_32
            total += np.float64(_exp_32(max(min(y, _MOST_32), _LEAST_32)))
    else:
        for j in range(len(found)):
            x = (max(np.float64(found[j]), FLOOR) - best) * cool
            total += exp(max(min(x, 700.0), SMALLEST))
    return total


@summing
def sum_of(row: Rows, ids: NDArray[np.int32], cool: float, shift: float) -> float:
    """The sum of exp(score - shift) over ids."""
    total = 0.0
    for j in range(len(ids)):
        x = max(np.float64(row[ids[j]]), FLOOR) * cool - shift
        total += exp(max(x, SMALLEST))
    return total


@summing
def relate(ways: FloatArray, to: NDArray[np.int32], highest: FloatArray) -> None:
    """Turn the score of each way into its probability relative to the highest to the same place."""
    for w in range(len(ways)):
        ways[w] = exp(max(ways[w] - highest[np.uint32(to[w])], SMALLEST))


@compiled
def _sortable(bits: Any, mask: int) -> int:
    """The bits of a float as an integer of the same order; mask: the largest of its type."""
    return bits if bits >= 0 else bits ^ mask


@compiled
def best_of(row: Rows, mask: int, ids: NDArray[np.int32], scratch: Scratch) -> int:
    """The likeliest of some ids, the first of several."""
    if len(ids) > 1:
        _gather(row, ids, scratch.gathered[: len(ids)])
        bits = scratch.gathered_bits[: len(ids)]
        highest = _highest(bits, mask)
        for j in range(len(bits)):
            if bits[j] == highest:
                return ids[j]
    return ids[0]


@compiled
def find_lines(bits: Bits, mask: int, lines: IntArray) -> None:
    """Write the maximum of every line of a row, as sortable integers: they are quick to compare."""
    for n in range(len(lines)):
        part = bits[n * LINE : min(n * LINE + LINE, len(bits))]
        highest = _sortable(part[0], mask)
        for j in range(len(part)):
            highest = max(highest, _sortable(part[j], mask))
        lines[n] = highest


@compiled
def _best_of_inverted(bits: Bits, mask: int, lines: IntArray, others: NDArray[np.int32]) -> int:
    """The likeliest id that is not among `others`, the first of several.

    Looks only into lines whose maximum may be it, at the best of them first.
    """
    top = np.argmax(lines)
    best = -1
    highest = np.int64(0)
    for n in range(-1, len(lines)):
        line = top if n < 0 else n
        if best >= 0 and (n == top or lines[line] < highest):
            continue
        low = line * LINE
        j = np.searchsorted(others, low)
        for token in range(low, min(low + LINE, len(bits))):
            if j < len(others) and others[j] == token:
                j += 1
                continue
            x = np.int64(_sortable(bits[token], mask))
            if best < 0 or x > highest or (x == highest and token < best):
                highest = x
                best = token
    return best


@compiled
def weigh(
    row: Rows,
    bits: Bits,
    names: NDArray[np.int32],
    mask: int,
    ids: NDArray[np.int32],
    is_inverted: bool,
    cool: float,
    scratch: Scratch,
    i: int,
    k: int,
) -> bool:
    """Write log-sum, best score and best token of a set's ids at a position; False for no number."""
    token = -1
    if is_inverted:
        token = _best_of_inverted(bits, mask, scratch.lines, ids)
        best = at(row, token, 1.0)
        scratch.plain[i, k] = _log_sum_of_inverted(row, ids, 1.0, best)
        scratch.total[i, k] = scratch.plain[i, k]
        if cool != 1.0:
            scratch.total[i, k] = _log_sum_of_inverted(row, ids, cool, best)
    elif len(ids) == 1:
        token = names[ids[0]] if len(names) else ids[0]
        best = at(row, ids[0], 1.0)
        scratch.plain[i, k] = best
        scratch.total[i, k] = best * cool
    elif len(ids) == 0:
        best = -np.inf
        scratch.plain[i, k] = best
        scratch.total[i, k] = best
    else:
        found = scratch.gathered[: len(ids)]
        _gather(row, ids, found)
        scratch.gathered_bits[-1] = _highest(scratch.gathered_bits[: len(ids)], mask)
        best = max(np.float64(scratch.gathered[-1]), FLOOR)
        scratch.plain[i, k] = best + math.log(_sum_of_all(found, 1.0, best))
        scratch.total[i, k] = scratch.plain[i, k]
        if cool != 1.0:
            scratch.total[i, k] = best * cool + math.log(_sum_of_all(found, cool, best))
    scratch.token[i, k] = token
    scratch.best[i, k] = best * cool
    # A sum over what is no number is none either.
    return scratch.plain[i, k] == scratch.plain[i, k] and best == best


@compiled
def add_groups(
    table: Table, mask: int, terms: SetArrays, cool: float, scratch: Scratch, i: int, k: int
) -> bool:
    """Join the groups of a set to what `weigh` wrote of its ids; False for no number."""
    r = table.row_of[i]
    groups = groups_of(terms, k)
    plain = _joined(scratch.plain[i, k], table.total[r], groups)
    total = plain if cool == 1.0 else _joined(scratch.total[i, k], table.cooled[r], groups)
    scratch.plain[i, k] = plain
    scratch.total[i, k] = total
    token = np.int64(scratch.token[i, k])
    best = scratch.best[i, k] / cool
    for n in range(len(groups)):
        g = ~groups[n]
        other = table.best[r, g]
        if other > best:
            best, token = other, np.int64(table.token[r, g])
        elif other == best:
            if token < 0:
                token = name_of(table, best_of(table.rows[r], mask, ids_of(terms, k), scratch))
            token = min(token, np.int64(table.token[r, g]))
    scratch.token[i, k] = token
    scratch.best[i, k] = best * cool
    return plain == plain and best == best


@compiled
def _joined(whole: float, sums: FloatArray, groups: NDArray[np.int32]) -> float:
    """A log-sum and those of some groups together."""
    highest = whole
    for n in range(len(groups)):
        highest = max(highest, float(sums[~groups[n]]))
    total = math.exp(max(whole - highest, SMALLEST))
    for n in range(len(groups)):
        other = float(sums[~groups[n]])
        if other != other:
            return other
        total += math.exp(max(other - highest, SMALLEST))
    return highest + math.log(total)


@compiled
def _log_sum_of_inverted(row: Rows, others: NDArray[np.int32], cool: float, best: float) -> float:
    """The log-sum of what is not among `others`, whose best score is known."""
    if cool == 1.0:
        rest = sum_of(row, others, 1.0, 0.0)
        if rest < MOST:
            return max(best, math.log1p(-rest))
    # The members are the stretches between the others.
    total = 0.0
    low = 0
    for j in range(len(others) + 1):
        high = others[j] if j < len(others) else len(row)
        if high > low:
            total += _sum_of_all(row[low:high], cool, best)
        low = high + 1
    return best * cool + math.log(max(1.0, total))
