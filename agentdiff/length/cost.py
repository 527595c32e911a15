"""What a budget costs, by backend family. A wrong budget hurts each of them in another way.

| family | too large | too small |
|---|---|---|
| canvas: laid out at once (LLaDA, Dream) | all of it is computed | written again, twice as large |
| blocks: stops early (SDAR, LLaDA2.x) | only a reservation | another block is appended |
| cap: billed as generated (hosted) | only a reservation | paid for and thrown away |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.generation import Capabilities
    from agentdiff.length.histogram import Tail

LARGEST = 8192
"""Tokens beyond which no retry goes."""


class CostModel(Protocol):
    """Turns a budget and a length distribution into a price."""

    @property
    def quantum(self) -> int:
        """Budgets are multiples of this many tokens."""
        ...

    def expected(self, budget: int, tail: Tail) -> tuple[float, float]:
        """Positions spent because of `budget`, and calls beyond the first, both in expectation.

        What no budget changes may be left out. At least `budget` positions are spent.
        """
        ...


@dataclass(frozen=True, slots=True)
class CanvasCost:
    """All of the canvas is computed; what does not fit is written again on twice the canvas."""

    quantum: int

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail) -> tuple[float, float]:
        positions, calls = float(budget), 0.0
        while budget < LARGEST and (missed := tail(budget)) > 0:
            budget *= 2
            positions += missed * budget
            calls += missed
        return positions, calls


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Blocks are computed as far as the output goes; what does not fit gets another block."""

    quantum: int

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail) -> tuple[float, float]:
        return float(budget), tail(budget)


@dataclass(frozen=True, slots=True)
class CapCost:
    """The budget is only a cap; what does not fit is paid for and asked for again."""

    quantum: int = 1

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail) -> tuple[float, float]:
        positions, calls = float(budget), 0.0
        while budget < LARGEST and (missed := tail(budget)) > 0:
            positions += missed * budget
            calls += missed
            budget *= 2
        return positions, calls


def cost_of(capabilities: Capabilities) -> CostModel:
    """The family of a backend, from what it does.

    One that extends computes blocks; one that has a quantum and cannot extend, a canvas.
    """
    if capabilities.extends:
        return BlockCost(capabilities.quantum)
    if capabilities.quantum > 1:
        return CanvasCost(capabilities.quantum)
    return CapCost()


def _check(quantum: int) -> None:
    if quantum < 1:
        raise ConfigurationError(f"`quantum` must be at least 1, got {quantum!r}")
