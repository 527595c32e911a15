"""Fewer passes than steps: guesses that a later pass confirms, as values.

`LookAhead` changes what a decode costs and nothing else. `SelfVerify` changes what is written: tokens that the model
would also write one at a time, from left to right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentdiff.errors import ConfigurationError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """Score the states that the next steps would lead to beside the present one (FreeDave, arXiv 2510.00294).

    They are what the policy makes of the last scores, as if those did not change. Where a step then leads to one of
    them, its scores are there already and the step after it needs no pass. Every step is the one that would have been
    made anyway: the same tokens after the same steps, in at most as many passes, each of them with up to `steps` + 1
    times the positions. A guess that completes the block spares the pass that stores it, too. Needs temperature 0,
    and of a bidirectional model `cache` 'none'.
    """

    steps: int = 3
    """States guessed beyond the present one."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigurationError(f"`steps` must be positive, got {self.steps!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfVerify:
    """Let a block-causal model check its own drafts from left to right (S2D2, arXiv 2603.25702).

    With blocks of one position such a model is autoregressive. A denoising pass drafts every masked position of the
    block; the next pass scores the first masked run as that autoregressive model does, each position seeing the draft
    before it. At temperature 0 the run is kept up to the first token that the check would not have written, which is
    replaced by the one it would: what is verified is the greedy autoregressive text, whatever was drafted. Above 0 a
    drafted token x stays with probability min(1, q(x) / p(x)), p being the draft's distribution and q the check's, and
    the first that falls is drawn anew from max(0, q - p): each token has distribution q.

    A check costs a pass, so it is made where it is expected to keep enough; elsewhere the policy commits as usual. The
    estimate is the authors': a drafted token stays with probability exp(-H / ln V), H being its entropy in nats.
    """

    expected: float = 1.0
    """Tokens that a check must be expected to keep; 0 checks every draft. In the authors' terms the score threshold
    plus the static penalty: 1 and 0 for SDAR with blocks of 4 and 16, 4 for LLaDA2.1."""
    span: int = 1
    """Masked positions in a row that it takes."""

    def __post_init__(self) -> None:
        if not 0 <= self.expected < math.inf:
            raise ConfigurationError(
                f"`expected` must be a number from 0 on, got {self.expected!r}"
            )
        if self.span < 1:
            raise ConfigurationError(f"`span` must be positive, got {self.span!r}")

    def is_worth(self, entropies: Floats, *, vocab_size: int) -> bool:
        """Whether to check a run whose positions [n] have these entropies."""
        if len(entropies) < self.span:
            return False
        stays = np.exp(-entropies / math.log(vocab_size))
        return float(np.cumprod(stays).sum()) >= self.expected


Speculation = LookAhead | SelfVerify
