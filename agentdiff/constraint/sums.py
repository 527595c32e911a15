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

from agentdiff.constraint.scores import FLOOR, LINE, MOST
from agentdiff.constraint.sets import SetArrays
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


class Scratch(NamedTuple):
    """What one step writes; used again by the next."""

    stamp: NDArray[np.int32]
    """[L, K] whether sums and maxima of a set at a position have been computed."""
    total: FloatArray
    """[L, K] log-sums of sets under the scores of the step."""
    best: FloatArray
    """[L, K] their best scores."""
    token: NDArray[np.int32]
    """[L, K] their best tokens."""
    plain: FloatArray
    """[L, K] log-sums without the temperature."""
    first: IntArray
    """[L + 2] where the nodes of a position begin."""
    slot: NDArray[np.int32]
    """[S] state → place among the states of a position; -1 between uses."""
    lines: IntArray
    """[lines of a row] maxima, as sortable keys."""
    gathered: FloatArray
    """[V] the log-probabilities of one set."""


def _make_float_of_bits() -> Callable[[int], float]:
    """64 bits taken as a float, which numba has no word for."""
    types, ir = _numba.types, importlib.import_module("llvmlite.ir")

    def float_of_bits(_: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.DoubleType())

        return types.float64(types.int64), generate

    return importlib.import_module("numba.extending").intrinsic(float_of_bits)


_float_of_bits = _make_float_of_bits()


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


@compiled
def ids_of(sets: SetArrays, k: int) -> NDArray[np.int32]:
    """The written ids of a set."""
    start = sets.start[k]
    if start >= 0:
        return sets.own[start : start + sets.written[k]]
    return sets.shared[~start : ~start + sets.written[k]]


@compiled
def is_written(ids: NDArray[np.int32], token: int) -> bool:
    """Whether sorted ids hold a token."""
    place = np.searchsorted(ids, token)
    return bool(place < len(ids) and ids[place] == token)


@compiled
def at(row: Rows, token: int, cool: float) -> float:
    """The score of a token; `cool` is 1 / temperature."""
    return max(np.float64(row[token]), FLOOR) * cool


@summing
def _gather(row: Rows, ids: NDArray[np.int32], found: FloatArray) -> None:
    """Write the log-probabilities of ids side by side."""
    for j in range(len(ids)):
        found[j] = max(np.float64(row[ids[j]]), FLOOR)


@compiled
def _place_of_best(found: Bits) -> int:
    """The first place of the largest float, whose bits these are; one that is NaN counts as it."""
    most: Any = np.int64(0x7FFFFFFFFFFFFFFF)
    highest = _sortable(found[0], most)
    for j in range(len(found)):
        highest = max(highest, _sortable(found[j], most))
    for j in range(len(found)):
        if _sortable(found[j], most) == highest:
            return j
    return 0


@summing
def _sum_of_all(found: FloatArray, cool: float, shift: float) -> float:
    """The sum of exp(cool * x - shift)."""
    total = 0.0
    for j in range(len(found)):
        x = max(np.float64(found[j]), FLOOR) * cool - shift
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


@compiled
def _sortable(bits: Any, mask: int) -> int:
    """The bits of a float as an integer of the same order; mask: the largest of its type."""
    return bits if bits >= 0 else bits ^ mask


@compiled
def best_of(bits: Bits, mask: int, ids: NDArray[np.int32]) -> int:
    """The likeliest of some ids, the first of several."""
    highest = _sortable(bits[ids[0]], mask)
    if len(ids) > 1:
        for j in range(len(ids)):
            highest = max(highest, _sortable(bits[ids[j]], mask))
        for j in range(len(ids)):
            if _sortable(bits[ids[j]], mask) == highest:
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
    mask: int,
    ids: NDArray[np.int32],
    is_inverted: bool,
    cool: float,
    scratch: Scratch,
    i: int,
    k: int,
) -> bool:
    """Write log-sum, best score and best token of a set at a position; False for no number."""
    if is_inverted:
        token = _best_of_inverted(bits, mask, scratch.lines, ids)
        best = at(row, token, 1.0)
        scratch.plain[i, k] = _log_sum_of_inverted(row, ids, 1.0, best)
        scratch.total[i, k] = scratch.plain[i, k]
        if cool != 1.0:
            scratch.total[i, k] = _log_sum_of_inverted(row, ids, cool, best * cool)
    elif len(ids) == 1:
        token = ids[0]
        best = at(row, token, 1.0)
        scratch.plain[i, k] = best
        scratch.total[i, k] = best * cool
    else:
        found = scratch.gathered[: len(ids)]
        _gather(row, ids, found)
        place = _place_of_best(found.view(np.int64))
        token = ids[place]
        best = found[place]
        scratch.plain[i, k] = best + math.log(_sum_of_all(found, 1.0, best))
        scratch.total[i, k] = scratch.plain[i, k]
        if cool != 1.0:
            scratch.total[i, k] = best * cool + math.log(_sum_of_all(found, cool, best * cool))
    scratch.token[i, k] = token
    scratch.best[i, k] = best * cool
    # A sum over what is no number is none either.
    return scratch.plain[i, k] == scratch.plain[i, k] and row[token] == row[token]


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
    return best + math.log(max(1.0, total))
