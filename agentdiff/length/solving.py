"""Least squares of a few unknowns, kept as sums and solved without a loop.

Ten unknowns are too few for the time that plain Python spends on loops and short lists, and a trend
is solved at every step. So the arithmetic is written out once, as functions without branches, which
take a third to a fifth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, cast

Row = Sequence[float]
Solve = Callable[[Row, Row, Row], float]
Take = Callable[[Row, Row, Row, float], tuple[list[float], list[float]]]


@cache
def solver(size: int, *, ridge: float) -> Solve:
    """A function that gives x' (A + ridge I)^-1 b for a symmetric A of `size` rows.

    It takes the lower triangle of A row by row, x and b. A + ridge I must be positive definite.
    """
    # L L' = A + ridge I (Cholesky); with x and b as two more rows of A, L gets L^-1 x and L^-1 b.
    x, b = size, size + 1
    lines = [_unpacked(_triangle(size), "triangle")]
    for row, name in ((x, "x"), (b, "b")):
        lines.append(_unpacked([f"a{row}_{k}" for k in range(size)], name))
    for row in range(size + 2):
        for column in range(min(row, size)):
            known = "".join(f" - l{row}_{k} * l{column}_{k}" for k in range(column))
            lines.append(f"l{row}_{column} = (a{row}_{column}{known}) / d{column}")
        if row < size:
            known = "".join(f" - l{row}_{k} * l{row}_{k}" for k in range(row))
            lines.append(f"d{row} = sqrt(a{row}_{row} + {ridge!r}{known})")
    lines.append("return " + " + ".join(f"l{x}_{k} * l{b}_{k}" for k in range(size)))
    return cast("Solve", _function("triangle, x, b", lines))


@cache
def taker(size: int, *, kept: float) -> Take:
    """A function that gives `kept` A + x x' and `kept` b + y x for a symmetric A of `size` rows.

    It takes the lower triangle of A row by row, b, x and y.
    """
    pairs = [(row, column) for row in range(size) for column in range(row + 1)]
    lines = [
        _unpacked(_triangle(size), "triangle"),
        _unpacked([f"b{k}" for k in range(size)], "b"),
        _unpacked([f"x{k}" for k in range(size)], "x"),
        "return "
        f"[{', '.join(f'{kept!r} * a{i}_{k} + x{i} * x{k}' for i, k in pairs)}], "
        f"[{', '.join(f'{kept!r} * b{k} + x{k} * y' for k in range(size))}]",
    ]
    return cast("Take", _function("triangle, b, x, y", lines))


def _triangle(size: int) -> list[str]:
    return [f"a{row}_{column}" for row in range(size) for column in range(row + 1)]


def _unpacked(names: Iterable[str], sequence: str) -> str:
    return f"[{', '.join(names)}] = {sequence}"


def _function(parameters: str, lines: Iterable[str]) -> object:
    """A function with these lines, which are made of numbers and names of this module only."""
    made: dict[str, Any] = {"sqrt": math.sqrt}
    exec("\n    ".join([f"def written({parameters}):", *lines]), made)
    return made["written"]
