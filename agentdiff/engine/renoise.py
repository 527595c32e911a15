"""How a canvas model denoises: the schedule of DiffusionGemma, as a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentdiff.errors import ConfigurationError

NoiseSource = Callable[[int], Sequence[int]]
"""How many random canvases there were before -> the ids of the next one, as many as the canvas has positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renoise:
    """Draw, accept what is clear, put fresh noise everywhere else (the sampler of DiffusionGemma).

    With n of N steps left the logits are divided by `coldest` + (`hottest` - `coldest`) · n / N. Positions are
    accepted from the lowest entropy on while the entropies before them sum to no more than `bound` (arXiv 2505.24857).
    A canvas is done when its likeliest tokens have not changed for `stable_steps` steps and its mean entropy is below
    `sure`, or after N steps; what is written are the likeliest tokens, under a grammar the likeliest valid fill.
    """

    steps: int = 48
    bound: float = 0.1
    """Nats."""
    hottest: float = 0.8
    coldest: float = 0.4
    stable_steps: int = 1
    sure: float = 0.005
    """Nats."""
    noise: NoiseSource | None = None
    """Where random canvases come from; None is the sequence's own seed."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigurationError(f"`steps` must be positive, got {self.steps!r}")
        if not 0 < self.coldest <= self.hottest:
            raise ConfigurationError(
                f"`coldest` must be positive and at most `hottest`, got {self.coldest!r} and {self.hottest!r}"
            )
        if self.bound < 0 or self.stable_steps < 0 or self.sure < 0:
            raise ConfigurationError("`bound`, `stable_steps` and `sure` must not be negative")

    def temperature(self, steps_left: int) -> float:
        """What the logits are divided by, with so many steps left, the one to come included."""
        return self.coldest + (self.hottest - self.coldest) * steps_left / self.steps
