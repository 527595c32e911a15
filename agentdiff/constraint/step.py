"""Who solves the steps of a grammar: compiled code where it is installed and pays, else numpy.

Both give the same fills and the same numbers (`lattice.py` is the reference). The compiled kernel
needs numba (the `fast` extra), and about half a second to load, so vocabularies of a few thousand
tokens, where a step is short, do without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

from agentdiff.constraint.draws import Draw
from agentdiff.constraint.lattice import Fill, Lattices
from agentdiff.constraint.step_scores import StepScores
from agentdiff.constraint.tokens import TokenAutomaton

_PAYS_FROM = 16_384
"""Vocabularies of fewer tokens are left to numpy."""


class Solver(Protocol):
    """Solves the steps of one grammar."""

    @property
    def nbytes(self) -> int:
        """Bytes held between steps, about."""
        ...

    def solve(
        self,
        start: int,
        scores: StepScores,
        pins: Mapping[int, int],
        *,
        begin: int,
        budget: int,
        old_path: Sequence[int],
        draw: Draw | None,
    ) -> Fill:
        """Return a fill of the block: the best one, or a sample where a `draw` is given.

        Args:
            start: The state before the block.
            scores: The scores of the step.
            pins: Position → token that stands there, counted from `begin` on as everything else.
            begin: The first position to fill.
            budget: Tokens left before the block, EOS not counted.
            old_path: States of the last witness, which are always explored.
            draw: How to sample.

        Raises:
            Infeasible: No fill keeps the pins, or none was found among the states that one step may
                explore.
            ValueError: A log-probability is not a number.
        """
        ...


class StepSolver:
    """Solves with the fastest solver there is for the scores it is given."""

    def __init__(self, tokens: TokenAutomaton) -> None:
        self._tokens = tokens
        self._solvers: dict[bool, Solver] = {}
        """Whether scores are of double width → who solves them."""

    @property
    def nbytes(self) -> int:
        """See `Solver.nbytes`."""
        return sum(solver.nbytes for solver in self._solvers.values())

    def solve(
        self,
        start: int,
        scores: StepScores,
        pins: Mapping[int, int],
        *,
        begin: int,
        budget: int,
        old_path: Sequence[int],
        draw: Draw | None,
    ) -> Fill:
        """See `Solver.solve`."""
        is_double = scores.rows.dtype.itemsize > 4
        solver = self._solvers.get(is_double)
        if solver is None:
            solver = self._solvers[is_double] = self._solver(is_double)
        return solver.solve(
            start,
            scores,
            pins,
            begin=begin,
            budget=budget,
            old_path=old_path,
            draw=draw,
        )

    def _solver(self, is_double: bool) -> Solver:
        vocabulary = self._tokens.vocabulary
        pays = len(vocabulary) >= _PAYS_FROM
        if pays and vocabulary.derive(("kernel", is_double), lambda: _works(is_double)):
            from agentdiff.constraint.kernel import Kernel

            return Kernel(self._tokens)
        return Lattices(self._tokens)


def _works(is_double: bool) -> bool:
    """Whether numba is installed and compiles the kernel; tried once per vocabulary."""
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        kernel = importlib.import_module("agentdiff.constraint.kernel")
        kernel.prepare(is_double=is_double)
    except Exception as error:  # whatever numba, llvmlite or the disk of its cache come up with
        warnings.warn(
            f"numba is installed but cannot compile the constraint kernel, so steps are slower: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
