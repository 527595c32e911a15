"""What a budget costs, by backend family, and which one costs least.

A wrong budget hurts each of them in another way:

| family | too large | too small | then |
|---|---|---|---|
| full canvas, no cache (LLaDA, Dream) | every position, in more passes | written again | retry |
| canvas with a prefix or dual cache (Fast-dLLM) | cheap empty blocks | blocks are appended | extend |
| blocks with early stop (SDAR, LLaDA2.x) | only a reservation | another block | extend |
| big canvases (DiffusionGemma) | only a reservation | another canvas | continue |
| hosted (Mercury) | only a reservation | paid for and thrown away | retry |

All prices are in positions: what one more position of output costs that family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from agentdiff.errors import ConfigurationError
from agentdiff.length.histogram import BINS, EDGES, Lengths, Tail

if TYPE_CHECKING:
    from agentdiff.generation import Capabilities

LARGEST = 8192
"""Tokens beyond which no retry goes."""
RARE = 1e-4
"""A probability of misses that no longer matters: all that follows costs less than a position."""
BIG_CANVAS = 128
"""A quantum from which on a block is a canvas of its own."""
HALF, LIKELY = 0.5, 0.03
"""Misses that no budget should have, and that it is likely to have."""

Recovery = Literal["extend", "continue", "retry"]
"""What a backend can do for an output that does not fit.

`extend`: append blocks and keep what is decoded. `continue`: be asked again with the output so far
as a prefix. `retry`: be asked again from the start.
"""


class CostModel(Protocol):
    """Turns a budget and a length distribution into a price."""

    @property
    def quantum(self) -> int:
        """Budgets are multiples of this many tokens."""
        ...

    @property
    def recovery(self) -> Recovery:
        """What the backend can do for an output that does not fit."""
        ...

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        """Positions spent because of `budget`, and calls beyond the first, both in expectation.

        What no budget changes may be left out. At least `budget` positions are spent.
        """
        ...


@dataclass(frozen=True, slots=True)
class CanvasCost:
    """All of the canvas is computed; what does not fit is written again on twice the canvas.

    Counts positions of output only, as the replay's `lin` does.
    """

    quantum: int
    recovery: Recovery = "retry"

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        positions, calls = float(budget), 0.0
        while budget < LARGEST and (missed := tail(budget)) > RARE:
            budget *= 2
            positions += missed * budget
            calls += missed
        return positions, calls


@dataclass(frozen=True, slots=True)
class FullCanvasCost:
    """A full-attention canvas without a cache: passes and their width both grow with the budget.

    A pass over a prompt of P and a canvas of B costs P + B positions, and there are B of them over
    a constant; so a budget costs B (P + B), here in units of what the first quantum costs a token.
    """

    quantum: int
    recovery: Recovery = "retry"

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        unit = prompt + self.quantum
        positions, calls = budget * (prompt + budget) / unit, 0.0
        while budget < LARGEST and (missed := tail(budget)) > RARE:
            budget *= 2
            positions += missed * budget * (prompt + budget) / unit
            calls += missed
        return positions, calls


@dataclass(frozen=True, slots=True)
class CachedCanvasCost:
    """A canvas decoded block by block over a cached prefix, without stopping early.

    Each block begins with a pass over everything and then has few of its own: many where there is
    text, few where nothing is left to say. What does not fit gets half as many blocks again.
    """

    quantum: int
    passes: float = 8.0
    """Passes over a block that holds text."""
    idle_passes: float = 1.5
    """Passes over a block that holds none."""
    recovery: Recovery = "extend"

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        # The blocks with text are the same for every budget; their price is the unit, and as long
        # as the output is not over, an appended block is one of them.
        unit = self.passes + (prompt + self.quantum) / self.quantum
        refresh = (prompt + budget) / self.quantum
        positions = max(float(budget), budget * (self.idle_passes + refresh) / unit)
        calls = 0.0
        grown = budget
        while grown < LARGEST and (missed := tail(grown)) > RARE:
            more = max(self.quantum, grown // 2 // self.quantum * self.quantum)
            positions += missed * more * (self.idle_passes + (prompt + grown) / self.quantum) / unit
            grown += more
            calls += missed
        return positions, calls


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Blocks are computed as far as the output goes; what does not fit gets more of them.

    So a budget costs what is reserved and not used, and being extended costs no position that would
    not have been computed anyway.
    """

    quantum: int
    recovery: Recovery = "extend"

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        calls = missed = tail(budget)
        positions, at = float(budget), budget
        while at < LARGEST and missed > RARE:
            beyond = tail(2 * at)
            positions += at * (missed + beyond) / 2
            missed, at = beyond, 2 * at
        return positions, calls


@dataclass(frozen=True, slots=True)
class BigCanvasCost:
    """Canvases so large that nearly everything fits one; a server that stops after the last.

    The output decides how many are computed, the budget how many are allowed. What does not fit is
    asked for again with the output so far, which costs a call and the prompt once more.
    """

    quantum: int = 256
    recovery: Recovery = "continue"

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        positions, calls = float(budget), 0.0
        grown = budget
        while grown < LARGEST and (missed := tail(grown)) > RARE:
            positions += missed * self.quantum
            grown += self.quantum
            calls += missed
        return positions, calls


@dataclass(frozen=True, slots=True)
class CapCost:
    """The budget is only a cap; what does not fit is paid for and asked for again.

    Args:
        quantum: Budgets are multiples of this many tokens.
        round_trip: What another call costs in latency, in output tokens of the same time.
        prompt_price: What a token of the prompt costs, in tokens of output.
    """

    quantum: int = 1
    round_trip: int = 0
    prompt_price: float = 0.0
    recovery: Recovery = "retry"

    def __post_init__(self) -> None:
        _check(self.quantum)

    def expected(self, budget: int, tail: Tail, *, prompt: int = 0) -> tuple[float, float]:
        again = self.round_trip + self.prompt_price * prompt
        positions, calls = float(budget), 0.0
        while budget < LARGEST and (missed := tail(budget)) > RARE:
            positions += missed * (budget + again)
            calls += missed
            budget *= 2
        return positions, calls


def cost_of(capabilities: Capabilities) -> CostModel:
    """The family of a backend, from what it does.

    One that extends computes blocks; one that has a quantum and cannot extend, a canvas, or several
    where they are big.
    """
    if capabilities.extends:
        return BlockCost(capabilities.quantum)
    if capabilities.quantum >= BIG_CANVAS:
        return BigCanvasCost(capabilities.quantum)
    if capabilities.quantum > 1:
        return CanvasCost(capabilities.quantum)
    return CapCost()


def cheapest(
    cost: CostModel, lengths: Lengths, *, least: int, most: int, price: float, prompt: int = 0
) -> int:
    """The smallest budget in `least..most` that costs least, a multiple of the quantum.

    What fits rises at the edges of bins only, so those are compared; none that most outputs exceed.
    A budget costs at least itself and a call for each miss, which rules out nearly all others once
    a likely one is known.

    Args:
        cost: The backend's cost model.
        lengths: Of the output.
        least: A multiple of the quantum.
        most: A multiple of the quantum, no less than `least`.
        price: Positions that a call beyond the first is worth.
        prompt: Tokens of the prompt.
    """
    quantum, offset, tail = cost.quantum, lengths.offset, lengths.tail

    def price_of(budget: int) -> float:
        positions, calls = cost.expected(budget, tail, prompt=prompt)
        return positions + price * calls

    likely = offset + EDGES[min(BINS - 1, lengths.exceeded_by(LIKELY))]
    best = min(most, max(least, rounded_up(likely, quantum)))
    lowest, budget = price_of(best), 0
    start = lengths.exceeded_by(HALF)
    if quantum == 1:  # Where nothing is rounded, calls alone rule out all before a bin.
        start = max(start, lengths.exceeded_by((lowest - least) / price))
    for place in range(start, BINS):
        before = budget
        budget = -(-(offset + EDGES[place]) // quantum) * quantum
        budget = least if budget < least else most if budget > most else budget
        if budget > lowest:
            break
        if budget in (before, best) or budget + price * tail(budget) > lowest:
            continue
        found = price_of(budget)
        if found < lowest or (found == lowest and budget < best):
            best, lowest = budget, found
    return best


def rounded_up(tokens: int, quantum: int) -> int:
    """The next multiple of the quantum."""
    return -(-tokens // quantum) * quantum


def _check(quantum: int) -> None:
    if quantum < 1:
        raise ConfigurationError(f"`quantum` must be at least 1, got {quantum!r}")
