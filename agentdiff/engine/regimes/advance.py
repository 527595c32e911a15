"""The seam between the engine and a regime, and what the mask regimes share: a step's logits into updates."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.check import check
from agentdiff.engine.denoise import step
from agentdiff.engine.outcome import Update, after_step, failure, record
from agentdiff.engine.sampling import Answer, Question, answer
from agentdiff.engine.sequence import Sequence
from agentdiff.engine.speculate import LookAhead
from agentdiff.errors import ConfigurationError

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


Window = Callable[[Sequence], NDArray[np.bool_] | None]
"""Where the policy may commit, [L]; None for the first position, alone and at once."""


def check_speculation(params: DecodeParams) -> None:
    """Refuse what `LookAhead` cannot do in any regime.

    Raises:
        ConfigurationError: Tokens are drawn, so that a guess would use up draws.
    """
    if isinstance(params.speculation, LookAhead) and params.temperature > 0:
        raise ConfigurationError(
            f"`LookAhead` needs `temperature` 0, got {params.temperature!r}: it guesses the next steps"
        )


def states(sequence: Sequence, window: Window) -> list[Sequence]:
    """A sequence, and what it would become in its next steps if the last scores did not change: see `LookAhead`."""
    found, scores, rule = [sequence], sequence.scores, sequence.params.speculation
    if not isinstance(rule, LookAhead) or scores is None:
        return found
    for _ in range(rule.steps):
        last = found[-1]
        state = last.guess()
        try:
            step(state, scores, window=window(state))
        except ValueError:  # the grammar: what is guessed stays a guess
            break
        if not (state.block != last.block).any():
            break
        found.append(state)
        if state.is_full:
            break
    return found


def advance(
    logits: Tensor, turns: Many[Many[Question]], *, mask_id: int, window: Window
) -> list[Update]:
    """Let every sequence commit what its scores decide, logits [N, V]; an error ends its own sequence alone.

    A turn is a sequence's question, followed by those of the states that it may come to.
    """
    updates: list[Update] = []
    scored = iter(answer(logits, [q for turn in turns for q in turn], mask_id=mask_id))
    for turn in turns:
        known = {question.sequence.block.tobytes(): next(scored) for question in turn}
        sequence = turn[0].sequence
        try:
            updates.append(_walk(sequence, known, mask_id=mask_id, window=window))
        except Exception as error:
            updates.append(failure(sequence, error))
    return updates


def _walk(
    sequence: Sequence, known: dict[bytes, Answer], *, mask_id: int, window: Window
) -> Update:
    """Step for as long as there are scores of the block as it stands."""
    looks_ahead = isinstance(sequence.params.speculation, LookAhead)
    before: Update | None = None
    while True:
        scores = known[sequence.block.tobytes()]
        if sequence.draft is None:
            step(sequence, scores, window=window(sequence))
        else:
            check(sequence, sequence.draft, scores)
        record(sequence, mask_id)
        update = after_step(sequence)
        if before is not None:
            update = replace(update, final=before.final + update.final)
        if not looks_ahead or update.is_last or sequence.is_settled:
            return update
        sequence.scores, before = scores, update
        if sequence.block.tobytes() not in known:
            return update
