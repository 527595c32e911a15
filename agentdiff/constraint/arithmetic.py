"""Exponentials, sums and maxima of floats, compiled.

Importing this module needs numba (the `fast` extra). The functions are plain Python that numba
compiles when they are first called and keeps on disk. Floats are compared as integers of the same
order, since those comparisons run on several lanes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.step_scores import FLOOR

FloatArray = NDArray[np.float64]
Rows = NDArray[Any]
"""Log-probabilities, float32 or float64."""
Bits = NDArray[Any]
"""The same taken as integers of that width."""

_F = TypeVar("_F", bound=Callable[..., Any])
_numba: Any = importlib.import_module("numba")

PIECE = 1024
"""Numbers that are summed in their own precision: what they take stays in the nearest cache."""
SMALLEST = -700.0
"""`exp` of less is taken for `exp` of this: nothing, beside any sum that it joins."""


def compiled(function: _F) -> _F:
    """Have a function compiled when it is first called."""
    return _numba.njit(cache=True, nogil=True, error_model="numpy")(function)


def summing(function: _F) -> _F:
    """Have a sum compiled whose order does not matter, so that it runs on several lanes."""
    flags = {"reassoc", "nsz", "contract"}
    return _numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function)


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


def _make_bits_of_float() -> Callable[[Any], int]:
    """A float of 32 bits taken as an integer."""
    types, ir = _numba.types, importlib.import_module("llvmlite.ir")

    def bits_of_float(_: Any, real: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.IntType(32))

        return types.int32(types.float32), generate

    return importlib.import_module("numba.extending").intrinsic(bits_of_float)


_float_of_bits = _make_float_of_bits(64)
_float_of_bits_32 = _make_float_of_bits(32)
_bits_of_float_32 = _make_bits_of_float()


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
_LEAST_32 = np.float32(-87)


@summing
def _exp_32(x: Any) -> Any:
    """e**x for -87 <= x <= 0 in single precision; the same to r**6."""
    whole = np.floor(x * _LOG2_E + _HALF)
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _HALF
    p = p * r + _ONE
    p = p * r + _ONE
    # Times 2**whole: added to the exponent.
    bits: Any = np.int32(_bits_of_float_32(p) + np.int32(np.int32(whole) << np.int32(23)))
    return _float_of_bits_32(bits)


@compiled
def gather(row: Rows, ids: NDArray[np.int32], found: Rows) -> None:
    """Write the log-probabilities of ids side by side."""
    for j in range(len(ids)):
        found[j] = row[np.uint32(ids[j])]  # without a sign there is no test for one


@compiled
def highest_of(bits: Bits, mask: int) -> int:
    """The bits of the largest of some floats; NaN is above all."""
    highest = sortable(bits[0], mask)
    for j in range(len(bits)):
        highest = max(highest, sortable(bits[j], mask))
    return sortable(highest, mask)  # this undoes itself


@summing
def sum_of_few(found: Rows, cool: float, best: float) -> float:
    """The sum of exp(cool * (x - best)) of at most PIECE numbers, none above `best`."""
    if found.itemsize == 4:
        cool_32, best_32, few = np.float32(cool), np.float32(best), np.float32(0)
        for j in range(len(found)):
            few += _exp_32(max((np.float32(found[j]) - best_32) * cool_32, _LEAST_32))
        return np.float64(few)
    total = 0.0
    for j in range(len(found)):
        total += exp(max((max(np.float64(found[j]), FLOOR) - best) * cool, SMALLEST))
    return total


@compiled
def sum_of_all(found: Rows, cool: float, best: float) -> float:
    """The sum of exp(cool * (x - best)), each as precise as the numbers are; none is above `best`."""
    total = 0.0
    for low in range(0, len(found), PIECE):
        total += sum_of_few(found[low : low + PIECE], cool, best)
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
def sortable(bits: Any, mask: int) -> int:
    """The bits of a float as an integer of the same order; mask: the largest of its type."""
    return bits if bits >= 0 else bits ^ mask
