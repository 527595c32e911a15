"""Taking tokens back: what may happen to a committed token while its block is active, as values."""

from __future__ import annotations

from dataclasses import dataclass

from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace a token in place when the model is surer of another one (T2T editing, LLaDA2.1).

    Edits run in every step, beside the commits. A block is complete when a step that found no mask edits nothing, or
    after `post_steps` steps without a mask. Quality mode is 0.5 beside `Threshold(0.7)`, speed mode 0 beside
    `Threshold(0.5)`.
    """

    threshold: float = 0.9
    """The other token's probability must exceed it."""
    post_steps: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in [0, 1], got {self.threshold!r}")
        if self.post_steps < 0:
            raise ConfigurationError(f"`post_steps` must not be negative, got {self.post_steps!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Mask a token again when the rest of the block no longer supports it (WINO).

    Each pass carries a shadow of the block: a mask for every position, which sees everything but that position. A
    token whose probability there falls below the threshold is masked again, the worst first, always fewer than the
    step commits: so every step makes progress. Doubles the block's positions.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in [0, 1], got {self.threshold!r}")


Revision = Edit | Revoke
