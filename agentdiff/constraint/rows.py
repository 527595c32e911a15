"""Where the bytes lead from each state, in arrays: a few bytes for each run of bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DEAD

Run = tuple[int, int, int]
"""(first byte, last byte, next state)."""


class Rows:
    """The next states of every state whose row is known."""

    def __init__(self) -> None:
        self._start = array("i")
        """[states] where the runs of a state begin; -1 while they are not known."""
        self._count = array("h")
        """[states] how many there are."""
        self._width = array("h")
        """[states] how many bytes lead on."""
        self._low, self._high = bytearray(), bytearray()
        """[runs] first and last byte."""
        self._target = array("i")
        """[runs] next state."""

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return 8 * len(self._start) + 6 * len(self._target)

    def append(self) -> None:
        """Make room for one state more."""
        self._start.append(-1)
        self._count.append(0)
        self._width.append(0)

    def is_known(self, state: int) -> bool:
        """Whether a state has its row."""
        return self._start[state] >= 0

    def write(self, state: int, runs: Sequence[Run]) -> None:
        """Give a state its row: runs in order, apart from each other."""
        self._start[state] = len(self._target)
        self._count[state] = len(runs)
        self._width[state] = sum(last + 1 - first for first, last, _ in runs)
        for first, last, target in runs:
            self._low.append(first)
            self._high.append(last)
            self._target.append(target)

    def width(self, state: int) -> int:
        """How many bytes lead on from a state."""
        return self._width[state]

    def next(self, state: int, byte: int) -> int:
        """Return the next state, or DEAD."""
        start = self._start[state]
        k = bisect_right(self._low, byte, start, start + self._count[state]) - 1
        return self._target[k] if k >= start and byte <= self._high[k] else DEAD

    def steps(self, state: int) -> list[tuple[int, int]]:
        """Return (byte, next state) for every byte that leads on."""
        return [
            (byte, self._target[k])
            for k in self._runs(state)
            for byte in range(self._low[k], self._high[k] + 1)
        ]

    def spread(self, state: int, targets: NDArray[np.int32]) -> None:
        """Write the next state of every byte, or DEAD: [256]."""
        targets[:] = DEAD
        for k in self._runs(state):
            targets[self._low[k] : self._high[k] + 1] = self._target[k]

    def _runs(self, state: int) -> range:
        start = self._start[state]
        return range(start, start + self._count[state])
