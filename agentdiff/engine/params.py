"""What a decode is asked for, what it gives and what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agentdiff.engine.unmask import Threshold, UnmaskPolicy
from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeParams:
    """How one sequence is decoded."""

    target: int
    """Tokens expected; blocks beyond them count as extensions."""
    ceiling: int
    """Tokens after which decoding ends, the end token not counted."""
    policy: UnmaskPolicy = field(default_factory=Threshold)
    temperature: float = 0.0
    """0 takes the most probable token; above it, tokens are drawn (float64 Gumbel, arXiv 2409.02908)."""
    seed: int = 0
    """Seeds this sequence alone: its output does not depend on its neighbours in the batch."""

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.ceiling:
            raise ConfigurationError(
                f"`target` must be in 1..ceiling, got target={self.target!r}, ceiling={self.ceiling!r}"
            )
        if not 0 <= self.temperature < math.inf:
            raise ConfigurationError(
                f"`temperature` must be a number from 0 on, got {self.temperature!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStats:
    """What one sequence cost."""

    forwards: int = 0
    """Forward passes that this sequence took part in: prefill, denoising steps, block stores."""
    positions: int = 0
    """Token positions pushed through the model for this sequence."""
    blocks: int = 0
    forced_tokens: int = 0
    """Tokens that the grammar left no choice about, the end token not counted."""
    constraint_s: float = 0.0
    """Seconds spent in the matcher."""
    decode_s: float = 0.0
    """Seconds from the start of the prefill to the last commit."""
    extensions: int = 0
    """Blocks decoded beyond `target`."""
    confidence: float = 1.0
    """The lowest probability at which a token was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutput:
    """A finished sequence."""

    tokens: tuple[int, ...]
    """Generated ids, without the end token."""
    reason: Literal["stop", "length"]
    """`stop`: the end token, or a complete grammar; `length`: the ceiling."""
    stats: DecodeStats
