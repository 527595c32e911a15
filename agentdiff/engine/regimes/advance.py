"""The seam between the engine and a regime, and what the mask regimes share: a step's logits into updates."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.denoise import step
from agentdiff.engine.outcome import Update, after_step, failure, record
from agentdiff.engine.sampling import Question, answer
from agentdiff.engine.sequence import Sequence

if TYPE_CHECKING:
    from agentdiff.engine.cache import KVBuffer
    from agentdiff.engine.params import DecodeParams
    from agentdiff.engine.prefix_cache import PrefixCache


class Regime(Protocol):
    """How one kind of model is decoded. Owns the cache and the rows of the sequences in it."""

    @property
    def buffer(self) -> KVBuffer:
        """The cache of the sequences that have joined."""
        ...

    @property
    def prefixes(self) -> PrefixCache:
        """What is kept for later requests."""
        ...

    def check(self, prompt: Many[int], params: DecodeParams) -> None:
        """Refuse what this regime cannot do, by a `ConfigurationError`."""
        ...

    def columns(self, sequence: Sequence) -> int:
        """Columns of the cache that a sequence may come to need; 0 where it needs none."""
        ...

    def join(self, sequences: Many[Sequence]) -> None:
        """Encode prompts and open the first blocks. After an error, `leave` takes back what was done."""
        ...

    def leave(self, sequence: Sequence) -> None:
        """Free what a sequence holds; one that holds nothing is left alone."""
        ...

    def step(self, active: Many[Sequence]) -> list[Update]:
        """Denoise every active block once; an update for each sequence, in order.

        An error in a pass over several sequences is raised and leaves all of them able to go on.
        """
        ...


def advance(
    logits: Tensor,
    questions: Many[Question],
    *,
    mask_id: int,
    window: Callable[[Sequence], NDArray[np.bool_] | None],
) -> list[Update]:
    """Let every sequence commit what its scores decide, logits [N, V]; an error ends its own sequence alone.

    `window` is where the policy may commit, [L]; None for the first position, alone and at once.
    """
    updates: list[Update] = []
    scored = answer(logits, questions, mask_id=mask_id)
    for question, scores in zip(questions, scored, strict=True):
        sequence = question.sequence
        try:
            step(sequence, scores, window=window(sequence))
            record(sequence, mask_id)
            updates.append(after_step(sequence))
        except Exception as error:
            updates.append(failure(sequence, error))
    return updates
