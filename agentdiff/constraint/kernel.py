"""A step, compiled: the same fill as `lattice.py`, the same numbers, in a fraction of the time.

Importing this module needs numba (the `fast` extra).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentdiff.constraint.arithmetic import Bits, Rows
from agentdiff.constraint.automaton import END, literal
from agentdiff.constraint.draws import Draw
from agentdiff.constraint.explore import NOT_A_NUMBER, OK, UNKNOWN, Nodes, explore
from agentdiff.constraint.lattice import IMPOSSIBLE, MARGIN, NEVER, WIDTHS, Fill, Infeasible
from agentdiff.constraint.passes import judge, look_ahead, look_back, walk
from agentdiff.constraint.scores import LINE
from agentdiff.constraint.scratch import Scratch, Table
from agentdiff.constraint.step_scores import StepScores, Sums
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
        scores: StepScores,
        pins: Mapping[int, int],
        *,
        begin: int,
        budget: int,
        old_path: Sequence[int],
        draw: Draw | None,
    ) -> Fill:
        """See `step.Solver.solve`."""
        dtype = np.float32 if scores.rows.dtype.itemsize <= 4 else np.float64
        pinned = np.full(scores.length - begin, -1, np.int64)
        for i, token in pins.items():
            pinned[i] = token
        step = _Step(self._tokens, scores, begin, dtype, pinned, draw)
        spare = self._spare.setdefault(dtype, [])
        try:
            step.scratch, step.nodes = spare.pop()
        except IndexError:
            step.scratch, step.nodes = (
                _scratch(0, 0, 0, len(self._tokens.vocabulary), dtype),
                _nodes(4096),
            )
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
    for draw in (None, Draw(0.5, 0.5, np.zeros((2, 2)))):
        Kernel(tokens).solve(
            tokens.start,
            StepScores.whole(np.zeros((2, 2), np.float64 if is_double else np.float32)),
            {},
            begin=0,
            budget=1,
            old_path=[],
            draw=draw,
        )


class _Step:
    """One step under way."""

    scratch: Scratch
    nodes: Nodes

    def __init__(
        self,
        tokens: TokenAutomaton,
        scores: StepScores,
        begin: int,
        dtype: Any,
        pins: IntArray,
        draw: Draw | None,
    ) -> None:
        self._tokens, self._scores, self._pins, self._draw = tokens, scores, pins, draw
        self._dtype = dtype
        self._row_of = scores.row_of()[begin:]
        self._mask = int(np.iinfo(f"i{np.dtype(dtype).itemsize}").max)
        self._cool = 1.0 if draw is None else 1.0 / draw.temperature
        self._table = self._make_table()

    def _make_table(self) -> Table:
        scores, parts, sums = self._scores, self._scores.parts, self._scores.sums
        rows: Rows = np.ascontiguousarray(scores.rows, self._dtype)
        bits: Bits = rows.view(f"i{rows.itemsize}")
        if parts is None or sums is None:
            none, nobody = np.zeros((len(rows), 0)), np.zeros((len(rows), 0), np.int32)
            names, sums = nobody[0], Sums(none, none, nobody, none, nobody, none)
        else:
            names = parts.columns.astype(np.int32)
        return Table(rows, bits, self._row_of, names, *sums)

    def _take_arrays(self, new: Sequence[int] = ()) -> None:
        """Take what is known of the grammar by now, and scores of all of it.

        new: States that became known since the last time.
        """
        part_sets, asked = self._tokens.part_sets, self._scores.parts
        if asked is not None and part_sets.parts().size != asked.size:
            assert self._scores.renew is not None
            self._tokens.look_ahead(new)  # so that nobody has to ask again so soon
            self._scores = self._scores.renew(part_sets.parts())
            self._table = self._make_table()
        self._graph, self._sets = self._tokens.arrays()
        self._terms = self._sets if asked is None else part_sets.arrays()
        self._fit(len(self._pins))

    def solve(self, start: int, old_path: IntArray, budget: int, width: int, margin: float) -> Fill:
        """A fill, exploring that much.

        Raises:
            Infeasible: No fill was found.
            ValueError: A score is not a number.
        """
        length = self._explore(start, old_path, budget, width, margin)
        graph, sets, scratch, nodes = self._graph, self._sets, self.scratch, self.nodes
        table, terms, mask = self._table, self._terms, self._mask
        pins, cool = self._pins, self._cool
        tokens = np.empty(len(pins), np.int64)
        path = np.empty(len(pins) + 1, np.int64)
        confidence = np.ones(len(pins))
        forced = np.ones(len(pins), np.bool_)
        draw = self._draw or Draw(1.0, 1.0, np.zeros((0, 2)))
        whole = look_back(scratch.total, length, scratch, nodes, self._draw is None)
        if whole < IMPOSSIBLE:
            raise Infeasible(None)
        walk(
            table, mask, cool, pins, terms, length, draw.top_p, draw.numbers, scratch, nodes, tokens,
            path,
        )  # fmt: skip
        if cool != 1.0:
            look_ahead(scratch.plain, length, scratch, nodes)
            whole = look_back(scratch.plain, length, scratch, nodes, False)
        judge(
            table, mask, pins, graph, sets, terms, length, whole, self._first_loss, scratch,
            nodes, tokens, confidence, forced,
        )  # fmt: skip
        return Fill(tokens=tokens, confidence=confidence, forced=forced, path=path.tolist())

    def _explore(
        self, start: int, old_path: IntArray, budget: int, width: int, margin: float
    ) -> int:
        """Explore forward; how many positions are not surely behind the end."""
        length = len(self._pins)
        self._take_arrays()
        self.scratch.stamp[:length] = 0
        self.scratch.first[:2] = 0, 1
        self.nodes.state[0], self.nodes.forward[0] = start, 0.0
        self.nodes.first_link[0] = 0
        self._first_loss = length
        unknown = np.empty(4096, np.int32)
        at = 0
        while True:
            status, at, self._first_loss, missing = explore(
                self._table, self._mask, self._cool, self._pins, self._graph, self._sets,
                self._terms, old_path, budget, width, margin, at, self._first_loss, self.scratch, self.nodes,
                unknown,
            )  # fmt: skip
            if status == OK:
                break
            if status == NOT_A_NUMBER:
                raise ValueError("`log_probs` holds NaN")
            if status != UNKNOWN:
                raise Infeasible(status)
            new: list[int] = unknown[:missing].tolist()
            for state in new:
                self._tokens.edges(state)
            if not missing:
                old, self.nodes = self.nodes, _nodes(2 * len(self.nodes.state))
                for ours, theirs in zip(self.nodes, old, strict=True):
                    ours[: len(theirs)] = theirs
            self._take_arrays(new)
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
            new = _scratch(
                max(length, rows),
                max(2 * sets, columns),
                2 * states,
                len(self._tokens.vocabulary),
                self._dtype,
            )
            new.first[: len(old.first)] = old.first
            for ours, theirs in zip(new[:6], old[:6], strict=True):
                ours[:rows, :columns] = theirs
            self.scratch = new


def _scratch(length: int, sets: int, states: int, width: int, dtype: Any) -> Scratch:
    gathered = np.empty(width + 1, dtype)
    return Scratch(
        stamp=np.zeros((length, sets), np.int32),
        total=np.empty((length, sets)),
        best=np.empty((length, sets)),
        token=np.empty((length, sets), np.int32),
        link=np.empty((length, sets), np.int32),
        plain=np.empty((length, sets)),
        score=np.zeros(length),
        first=np.zeros(length + 2, np.int64),
        slot=np.full(states, -1, np.int32),
        lines=np.empty(-(-width // LINE), np.int64),
        gathered=gathered,
        gathered_bits=gathered.view(np.dtype(f"i{gathered.itemsize}")),
    )


def _nodes(count: int) -> Nodes:
    links = 16 * count
    return Nodes(
        state=np.empty(count, np.int32),
        forward=np.empty(count),
        total=np.empty(count),
        best=np.empty(count),
        first_link=np.empty(count + 1, np.int64),
        link_target=np.empty(links, np.int32),
        link_set=np.empty(links, np.int32),
    )
