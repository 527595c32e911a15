"""One denoising step of one block: from log-probabilities to committed tokens.

With a matcher the step takes the witness (one valid fill of the whole block) and commits a subset of it, so whatever
the policy chooses stays valid. Without one, every position decides for itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentdiff.engine.unmask import View

if TYPE_CHECKING:
    from agentdiff.engine.families.base import FamilyTraits
    from agentdiff.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a step would write, position by position: [L] each."""

    tokens: NDArray[np.int64]
    confidence: NDArray[np.float64]
    forced: NDArray[np.bool_]


COLDEST = 1e-3
"""Temperatures below it are 0: scores divided by less would leave the range that sums work in."""


def propose(sequence: Sequence, log_probs: NDArray[np.float64]) -> Proposal:
    """The fill that this step proposes for the generated part of the block; log_probs [L, V], mask id excluded."""
    pinned = {n: token for n, token in enumerate(sequence.generated) if token is not None}
    temperature = sequence.params.temperature
    if temperature < COLDEST:
        temperature = 0.0
    if sequence.matcher is not None:
        before = time.perf_counter()
        fill = sequence.matcher.propose(
            log_probs, pinned, temperature=temperature, rng=sequence.rng
        )
        sequence.constraint_s += time.perf_counter() - before
        return Proposal(fill.tokens, fill.confidence, fill.forced)
    tokens = sample(log_probs, temperature=temperature, rng=sequence.rng)
    for place, token in pinned.items():
        tokens[place] = token
    confidence = np.exp(log_probs[np.arange(len(tokens)), tokens])
    return Proposal(tokens, confidence, np.zeros(len(tokens), dtype=bool))


def sample(
    log_probs: NDArray[np.float64], *, temperature: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """One token for each row of [L, V]: the most probable at temperature 0, else a Gumbel draw in float64."""
    if temperature == 0:
        return log_probs.argmax(-1)
    noise = -np.log(-np.log(rng.random(log_probs.shape).clip(1e-300)))
    return (log_probs / temperature + noise).argmax(-1)


def commit(sequence: Sequence, proposal: Proposal, traits: FamilyTraits) -> None:
    """Write forced positions and those the policy chooses into the block; committed positions keep their tokens.

    An end token is committed only when everything before it is, or when the model is as sure of it as of any other
    commit: an early end would cut the reply for good.
    """
    masked = np.array([token is None for token in sequence.generated])
    forced = masked & proposal.forced
    free = masked & ~forced
    is_end = np.isin(proposal.tokens, traits.eos_ids)
    chosen = forced.copy()
    if free.any():
        confidence = proposal.confidence.astype(np.float64, copy=True)
        waiting = is_end & free & (np.cumsum(free) > 1)
        confidence[waiting] -= 1e-6
        spread = np.zeros_like(confidence)
        chosen |= sequence.params.policy.choose(
            View(
                masked=free,
                confidence=confidence,
                margin=2 * confidence - 1,
                entropy=spread,
                gap=spread,
                step=0,
                block_len=len(sequence.block),
                opened=len(confidence),
            )
        )
        sequence.confidence = min(
            sequence.confidence, float(proposal.confidence[chosen & free].min())
        )
    for place in np.flatnonzero(chosen):
        sequence.block[sequence.tail_len + int(place)] = int(proposal.tokens[place])
    sequence.forced_tokens += int((forced & ~is_end).sum())
