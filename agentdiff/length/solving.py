"""One small system of linear equations, solved without a loop.

Ten unknowns are too few for the time that plain Python spends on loops and short lists, and a trend
is solved at every step. So the arithmetic of a Cholesky factorisation is written out once, as one
function without branches, which takes a fifth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

Solve = Callable[[Sequence[float], Sequence[float], Sequence[float]], float]


@cache
def solver(size: int, *, ridge: float) -> Solve:
    """A function that gives x' (A + ridge I)^-1 b for a symmetric A of `size` rows.

    It takes the lower triangle of A row by row, x and b. A + ridge I must be positive definite.
    """
    source = "\n    ".join(["def solve(products, features, moments):", *_statements(size, ridge)])
    made: dict[str, Any] = {"sqrt": math.sqrt}
    exec(source, made)  # of numbers and names made here only
    return cast("Solve", made["solve"])


def _statements(size: int, ridge: float) -> list[str]:
    """L L' = A + ridge I; with x and b as two more rows of A, L gets L^-1 x and L^-1 b."""
    x, b = size, size + 1
    triangle = [f"a{row}_{column}" for row in range(size) for column in range(row + 1)]
    lines = [f"{', '.join(triangle)}, = products"]
    for row, name in ((x, "features"), (b, "moments")):
        lines.append(f"{', '.join(f'a{row}_{column}' for column in range(size))}, = {name}")
    for row in range(size + 2):
        for column in range(min(row, size)):
            known = "".join(f" - l{row}_{k} * l{column}_{k}" for k in range(column))
            lines.append(f"l{row}_{column} = (a{row}_{column}{known}) / d{column}")
        if row < size:
            known = "".join(f" - l{row}_{k} * l{row}_{k}" for k in range(row))
            lines.append(f"d{row} = sqrt(a{row}_{row} + {ridge!r}{known})")
    return [*lines, "return " + " + ".join(f"l{x}_{k} * l{b}_{k}" for k in range(size))]
