"""A step, compiled: the same fill as `lattice.py`, the same numbers, in a fraction of the time.

Importing this module needs numba (the `fast` extra).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import END, literal
from agentdiff.constraint.explore import NOT_A_NUMBER, OK, UNKNOWN, Nodes, explore
from agentdiff.constraint.lattice import IMPOSSIBLE, MARGIN, NEVER, WIDTHS, Fill, Infeasible
from agentdiff.constraint.passes import judge, look_ahead, look_back, walk
from agentdiff.constraint.scores import LINE
from agentdiff.constraint.sums import Bits, FloatArray, Rows, Scratch
from agentdiff.constraint.tokens import TokenAutomaton
from agentdiff.constraint.vocabulary import IntArray, Vocabulary


class Kernel:
    """Solves the steps of one grammar. Safe to share between threads."""

    def __init__(self, tokens: TokenAutomaton) -> None:
        self._tokens = tokens
        self._spare = tokens.vocabulary.derive("scratch", dict[Any, list[tuple[Scratch, Nodes]]])
        """What steps write on, by the type of the scores, for all grammars of the vocabulary; as
        many as run at once."""

    @property
    def nbytes(self) -> int:
        """See `Solver.nbytes`; the scratch belongs to the vocabulary."""
        return 0

    def solve(
        self,
        start: int,
        log_probs: NDArray[np.floating],
        pins: Mapping[int, int],
        *,
        budget: int,
        old_path: Sequence[int],
        temperature: float,
        draws: FloatArray | None,
    ) -> Fill:
        """See `step.Solver.solve`."""
        dtype = np.float32 if log_probs.dtype.itemsize <= 4 else np.float64
        rows = np.ascontiguousarray(log_probs, dtype)
        pinned = np.full(len(rows), -1, np.int64)
        for i, token in pins.items():
            pinned[i] = token
        step = _Step(
            self._tokens,
            rows,
            pinned,
            1.0 if draws is None else 1.0 / temperature,
            np.zeros((0, 2)) if draws is None else draws,
        )
        spare = self._spare.setdefault(dtype, [])
        try:
            step.scratch, step.nodes = spare.pop()
        except IndexError:
            step.scratch, step.nodes = _scratch(0, 0, 0, rows[:0]), _nodes(4096)
        path = np.array(old_path, np.int64)
        for width in WIDTHS:
            margin = MARGIN if width == WIDTHS[0] else -NEVER
            try:
                fill = step.solve(start, path, budget, width, margin)
            except Infeasible:
                if width == WIDTHS[-1]:
                    raise
            else:
                spare.append((step.scratch, step.nodes))
                return fill
        raise AssertionError("the widths end with a return or an error")


def prepare(*, is_double: bool) -> None:
    """Compile everything for scores of a width: seconds, but from the second time on from disk."""
    tokens = TokenAutomaton(literal(b"a", END), Vocabulary([b"a", None], [1]))
    for draws in (None, np.zeros((2, 2))):
        Kernel(tokens).solve(
            tokens.start,
            np.zeros((2, 2), np.float64 if is_double else np.float32),
            {},
            budget=1,
            old_path=[],
            temperature=0.5,
            draws=draws,
        )


class _Step:
    """One step under way."""

    scratch: Scratch
    nodes: Nodes

    def __init__(
        self,
        tokens: TokenAutomaton,
        rows: Rows,
        pins: IntArray,
        cool: float,
        draws: FloatArray,
    ) -> None:
        self._tokens, self._rows, self._pins = tokens, rows, pins
        self._cool, self._draws = cool, draws
        self._bits: Bits = rows.view(np.int32 if rows.dtype.itemsize == 4 else np.int64)
        self._mask = int(np.iinfo(self._bits.dtype).max)

    def solve(self, start: int, old_path: IntArray, budget: int, width: int, margin: float) -> Fill:
        """A fill, exploring that much.

        Raises:
            Infeasible: No fill was found.
            ValueError: A score is not a number.
        """
        length = self._explore(start, old_path, budget, width, margin)
        graph, sets, scratch, nodes = self._graph, self._sets, self.scratch, self.nodes
        rows, mask = self._rows, self._mask
        pins, cool = self._pins, self._cool
        tokens = np.empty(len(rows), np.int64)
        path = np.empty(len(rows) + 1, np.int64)
        confidence = np.ones(len(rows))
        forced = np.ones(len(rows), np.bool_)
        is_sample = bool(len(self._draws))
        whole = look_back(scratch.total, graph, length, scratch, nodes, not is_sample)
        if whole < IMPOSSIBLE:
            raise Infeasible(None)
        walk(
            rows, mask, cool, pins, graph, sets, length, self._draws, scratch, nodes, tokens,
            path,
        )  # fmt: skip
        if cool != 1.0:
            look_ahead(scratch.plain, graph, length, scratch, nodes)
            whole = look_back(scratch.plain, graph, length, scratch, nodes, False)
        judge(
            rows, mask, pins, graph, sets, length, whole, self._first_loss, scratch, nodes,
            tokens, confidence, forced,
        )  # fmt: skip
        return Fill(tokens=tokens, confidence=confidence, forced=forced, path=path.tolist())

    def _explore(
        self, start: int, old_path: IntArray, budget: int, width: int, margin: float
    ) -> int:
        """Explore forward; how many positions are not surely behind the end."""
        length = len(self._rows)
        self._graph, self._sets = self._tokens.arrays()
        self._fit(length)
        self.scratch.stamp[:length] = 0
        self.scratch.first[:2] = 0, 1
        self.nodes.state[0], self.nodes.forward[0] = start, 0.0
        self._first_loss = length
        unknown = np.empty(4096, np.int32)
        at = 0
        while True:
            status, at, self._first_loss, missing = explore(
                self._rows, self._bits, self._mask, self._cool, self._pins, self._graph, self._sets,
                old_path, budget, width, margin, at, self._first_loss, self.scratch, self.nodes,
                unknown,
            )  # fmt: skip
            if status == OK:
                break
            if status == NOT_A_NUMBER:
                raise ValueError("`log_probs` holds NaN")
            if status != UNKNOWN:
                raise Infeasible(status)
            for state in unknown[:missing].tolist():
                self._tokens.edges(state)
            if not missing:
                old, self.nodes = self.nodes, _nodes(2 * len(self.nodes.state))
                for ours, theirs in zip(self.nodes, old, strict=True):
                    ours[: len(theirs)] = theirs
            self._graph, self._sets = self._tokens.arrays()
            self._fit(length)
        eos_ids = self._tokens.vocabulary.eos_ids
        for i in range(at, length):
            if self._pins[i] >= 0 and int(self._pins[i]) not in eos_ids:
                raise Infeasible(i)
        return at

    def _fit(self, length: int) -> None:
        """Make room for the states and sets there are now; what was computed stays."""
        old = self.scratch
        states, sets = len(self._graph.cost), len(self._sets.start)
        rows, columns = old.stamp.shape
        if states > len(old.slot) or sets > columns or length > rows:
            new = _scratch(max(length, rows), max(2 * sets, columns), 2 * states, self._rows)
            new.first[: len(old.first)] = old.first
            for ours, theirs in zip(new[:5], old[:5], strict=True):
                ours[:rows, :columns] = theirs
            self.scratch = new


def _scratch(length: int, sets: int, states: int, rows: Rows) -> Scratch:
    width = rows.shape[1]
    gathered = np.empty(width + 1, rows.dtype)
    return Scratch(
        stamp=np.zeros((length, sets), np.int32),
        total=np.empty((length, sets)),
        best=np.empty((length, sets)),
        token=np.empty((length, sets), np.int32),
        plain=np.empty((length, sets)),
        first=np.zeros(length + 2, np.int64),
        slot=np.full(states, -1, np.int32),
        lines=np.empty(-(-width // LINE), np.int64),
        gathered=gathered,
        gathered_bits=gathered.view(np.dtype(f"i{gathered.itemsize}")),
    )


def _nodes(count: int) -> Nodes:
    return Nodes(np.empty(count, np.int32), np.empty(count), np.empty(count), np.empty(count))
