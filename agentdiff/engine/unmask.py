"""Which positions are committed in a denoising step: unmask policies.

A policy sees confidences, never logits or tokens; confidence is taken after the constraint and before any truncation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentdiff.errors import ConfigurationError


class UnmaskPolicy(Protocol):
    """Chooses positions to commit."""

    def choose(
        self, confidence: NDArray[np.float64], masked: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Positions to commit now.

        confidence [L]: probability of the token that would be committed. masked [L]: where a commit is possible,
        with at least one true. Returns [L] bool, a non-empty subset of `masked`: every step makes progress.
        """
        ...


@dataclass(frozen=True, slots=True)
class Threshold:
    """Commit every position above `threshold`, and always the surest one (Fast-dLLM, arXiv 2505.22618, section 3.3)."""

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in (0, 1], got {self.threshold!r}")

    def choose(
        self, confidence: NDArray[np.float64], masked: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """See `UnmaskPolicy.choose`."""
        chosen = masked & (confidence > self.threshold)
        if not chosen.any():
            chosen[np.argmax(np.where(masked, confidence, -1.0))] = True
        return chosen
