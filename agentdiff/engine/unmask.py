"""Which positions are committed in a denoising step: unmask policies, as values.

A policy sees how sure the step is of each position, never logits or tokens. Confidence is taken after the constraint
and before any truncation or temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from agentdiff.errors import ConfigurationError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Score = Literal["confidence", "margin", "entropy", "position"]
Schedule = Literal["even", "linear", "linear_rounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a policy sees of the generated part of one active block: [L] each."""

    masked: Bools
    """Where a commit is possible; at least one is true."""
    confidence: Floats
    """Probability of the token that would be committed."""
    margin: Floats
    """That probability less the runner-up's; under a constraint the least that it can be."""
    entropy: Floats
    """Of the position's distribution, in nats; under a constraint the least that it can be."""
    gap: Floats
    """log of the best probability over the second; under a constraint the least that it can be."""
    step: int
    """Denoising steps that this block has had."""
    block_len: int
    """Positions of the block, a prompt's tail included."""
    opened: int
    """Masks that the block began with."""

    def ranked(self, score: Score) -> NDArray[np.intp]:
        """The masked positions, best first; equal ones from left to right."""
        places = np.flatnonzero(self.masked)
        match score:
            case "confidence":
                worth = -self.confidence[places]
            case "margin":
                worth = -self.margin[places]
            case "entropy":
                worth = self.entropy[places]
            case "position":
                return places
        return places[np.argsort(worth, kind="stable")]


class UnmaskPolicy(Protocol):
    """Chooses positions to commit."""

    def choose(self, view: View) -> Bools:
        """Positions to commit now: [L], a subset of `view.masked`.

        Whatever the scores are, a block is complete after finitely many steps.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Commit the best of each block in so many steps.

    LLaDA and SDAR share a block evenly (`even`: n // steps in each step, one more in the first n % steps). Dream
    (`linear`) and the A2D samplers (`linear_rounded`) follow the noise level t down from 1: a step from t to s reveals
    1 - s / t of the masks, rounded down (so that some steps commit nothing), or to the nearest even with empty steps
    left out; the last takes all. Both are float32, as in the references.
    """

    steps: int | None = None
    """Steps for one block; None is one for each position."""
    score: Score = "confidence"
    """What is best: probability, distance to the runner-up (top-k margin), low entropy, or leftmost."""
    schedule: Schedule = "even"
    eps: float = 1e-3
    """Where the noise level of `linear` ends; that of `linear_rounded` ends at 0."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigurationError(f"`steps` must be positive, got {self.steps!r}")
        if not 0 <= self.eps < 1:
            raise ConfigurationError(f"`eps` must be in [0, 1), got {self.eps!r}")

    def count(self, view: View) -> int:
        """How many positions this step commits at most."""
        steps = self.steps or view.block_len
        left = int(np.count_nonzero(view.masked))
        match self.schedule:
            case "even":
                place = min(view.step, steps - 1)
                share = view.block_len // steps + (place < view.block_len % steps)
                return min(left, max(share, 1))
            case "linear":
                if view.step >= steps - 1:
                    return left
                return int(np.float32(left) * _reveal(steps, self.eps)[view.step])
            case "linear_rounded":
                counts = _rounded_counts(view.opened, steps)
                return min(left, counts[view.step]) if view.step < len(counts) else left

    def choose(self, view: View) -> Bools:
        """See `UnmaskPolicy.choose`."""
        return _only(view.ranked(self.score)[: self.count(view)], view)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Commit every position above `threshold`, and always the surest one (Fast-dLLM, arXiv 2505.22618, section 3.3).

    With a quota: where fewer than its share pass, its share is committed instead (SDAR's dynamic rule, LLaDA2.0).
    """

    threshold: float = 0.9
    quota: Quota | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in (0, 1], got {self.threshold!r}")

    def choose(self, view: View) -> Bools:
        """See `UnmaskPolicy.choose`."""
        chosen = view.masked & (view.confidence > self.threshold)
        least = 1 if self.quota is None else self.quota.count(view)
        if np.count_nonzero(chosen) >= least:
            return chosen
        return _only(view.ranked("confidence")[:least], view)


@dataclass(frozen=True, slots=True)
class Factor:
    """Commit the best while rank r has a confidence of at least 1 - factor / (r + 1) (Fast-dLLM, section 3.3)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ConfigurationError(f"`factor` must be positive, got {self.factor!r}")

    def choose(self, view: View) -> Bools:
        """See `UnmaskPolicy.choose`."""
        ranked = view.ranked("confidence")
        fails = view.confidence[ranked] < 1 - self.factor / np.arange(2, len(ranked) + 2)
        fails[0] = False
        return _only(ranked[: int(fails.argmax()) if fails.any() else len(ranked)], view)


@dataclass(frozen=True, slots=True)
class EntropyBound:
    """Commit the lowest entropies while the sum of those before stays within `bound` nats (arXiv 2505.24857)."""

    bound: float = 0.1

    def __post_init__(self) -> None:
        if self.bound < 0:
            raise ConfigurationError(f"`bound` must not be negative, got {self.bound!r}")

    def choose(self, view: View) -> Bools:
        """See `UnmaskPolicy.choose`."""
        ranked = view.ranked("entropy")
        entropies = view.entropy[ranked]
        return _only(ranked[np.cumsum(entropies) - entropies <= self.bound], view)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyCommit:
    """Another policy, until the block is clear enough to be committed whole (Prophet, arXiv 2508.19982).

    That is when the mean log gap between best and second token over the masks exceeds a bound that falls in thirds of
    the block's steps.
    """

    policy: Quota | Threshold | Factor | EntropyBound
    gaps: tuple[float, float, float] = (7.5, 5.0, 2.5)
    steps: int | None = None
    """Steps that a block is expected to take; None is one for each position."""

    def choose(self, view: View) -> Bools:
        """See `UnmaskPolicy.choose`."""
        third = min(2, 3 * view.step // (self.steps or view.block_len))
        if float(view.gap[view.masked].mean()) > self.gaps[third]:
            return view.masked.copy()
        return self.policy.choose(view)


def _only(places: NDArray[np.intp], view: View) -> Bools:
    chosen = np.zeros(len(view.masked), np.bool_)
    chosen[places] = True
    return chosen


@lru_cache(maxsize=64)
def _reveal(steps: int, eps: float) -> NDArray[np.float32]:
    """[steps] share of the masks that each step of a linear schedule reveals."""
    levels = torch.linspace(1, eps, steps + 1)
    return (1 - levels[1:] / levels[:-1]).numpy()


@lru_cache(maxsize=256)
def _rounded_counts(masks: int, steps: int) -> tuple[int, ...]:
    counts: list[int] = []
    for share in _reveal(steps, 0.0):
        counts.append(int(np.rint(np.float32(masks - sum(counts)) * share)))
    return tuple(count for count in counts if count)
