"""One denoising step of one sequence, on the host: what it proposes, what is committed, what is taken back.

With a matcher the step takes the witness (one valid fill of the whole block) and commits a subset of it, so whatever
the policy chooses stays valid, and so does whatever is masked again. Without one, every position decides for itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.insert_delete import move
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import Edit, Revoke
from agentdiff.engine.sampling import Answer, Question, answer, may_move
from agentdiff.engine.sequence import MASKED, Draft, Sequence
from agentdiff.engine.speculate import SelfVerify
from agentdiff.engine.unmask import View

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
T = TypeVar("T", np.float64, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a step would write, position by position of the block: [L] each."""

    tokens: NDArray[np.int64]
    confidence: Floats
    margin: Floats
    gap: Floats
    entropy: Floats
    forced: Bools
    """Where the grammar leaves no other token."""


def wanted(sequence: Sequence) -> NDArray[np.intp]:
    """The positions of the block that the step needs scores of."""
    if isinstance(sequence.params.revision, Edit):
        return np.arange(len(sequence.block))
    return np.flatnonzero(sequence.block == MASKED)


def step(sequence: Sequence, scores: Answer, *, window: Bools | None) -> None:
    """Commit and revise; or draft the block, for the next pass to check.

    Positions outside `window` [L] are committed only where the grammar forces them. Without a window the first
    position is committed, whatever the policy says, and no other.
    """
    masked = sequence.block == MASKED
    proposal = propose(sequence, scores)
    if may_move(sequence):
        move(sequence, scores, _view(sequence, proposal, masked))
        return
    is_edited = False
    if isinstance(sequence.params.revision, Edit):
        is_edited, proposal = _edit(sequence, sequence.params.revision, scores, proposal)
    sequence.draft = _draft(sequence, proposal, scores, masked, window)
    if sequence.draft is not None:
        sequence.steps += 1
        return
    newly = _commit(sequence, proposal, masked, window)
    if isinstance(sequence.params.revision, Revoke):
        _revoke(sequence, sequence.params.revision, scores, ~masked, newly)
    sequence.step += 1
    sequence.steps += 1
    if not masked.any():
        sequence.post_steps += 1
    sequence.is_settled = _is_settled(sequence, masked, is_edited=is_edited)


def commit_first(sequence: Sequence, logits: Tensor, *, mask_id: int) -> None:
    """Write the first token of a new block by the logits [V] that the block before it ended with."""
    scores = answer(
        logits[None].clone(),
        [Question(sequence=sequence, places=np.zeros(1, np.intp), shadows=np.empty(0, np.intp))],
        mask_id=mask_id,
    )[0]
    if scores.grammar is not None:  # a block of one position: nothing is known of the others
        scores = replace(scores, grammar=replace(scores.grammar, length=1))
    sequence.block[0] = propose(sequence, scores).tokens[0]


def write_forced(sequence: Sequence) -> None:
    """Commit what the grammar forces at the start of a new block, before the model is asked."""
    matcher = sequence.matcher
    if matcher is None:
        return
    first = sequence.leading()
    if first:
        matcher = matcher.copy()
        matcher.advance(first)
    at = len(first)
    forced = matcher.forced_prefix(min(len(sequence.block), sequence.room) - at)
    sequence.block[at : at + len(forced)] = forced
    sequence.forced_tokens += len(forced)
    if sequence.is_full and sequence.matcher is not None:
        sequence.matcher.advance(sequence.block.tolist())
        sequence.is_settled = True


def propose(sequence: Sequence, scores: Answer) -> Proposal:
    """The fill that this step proposes for the block; committed positions keep their tokens."""
    length = len(sequence.block)
    if sequence.matcher is None:
        return Proposal(
            tokens=_spread(sequence.block, scores.places, scores.tokens),
            confidence=_spread(np.ones(length), scores.places, scores.confidence),
            margin=_spread(np.ones(length), scores.places, scores.margin),
            gap=_spread(np.zeros(length), scores.places, scores.gap),
            entropy=_spread(np.zeros(length), scores.places, scores.entropy),
            forced=np.zeros(length, np.bool_),
        )
    return _constrained(sequence, sequence.matcher, scores, _pins(sequence.block))


def _pins(block: NDArray[np.int64]) -> dict[int, int]:
    return {n: token for n, token in enumerate(block.tolist()) if token != MASKED}


def _constrained(
    sequence: Sequence, matcher: Matcher, scores: Answer, pinned: dict[int, int]
) -> Proposal:
    assert scores.grammar is not None
    before = time.perf_counter()
    fill = matcher.propose(
        scores.grammar,
        pinned,
        temperature=sequence.temperature,
        top_p=sequence.params.top_p,
        rng=sequence.rng,
    )
    sequence.constraint_s += time.perf_counter() - before
    sure = _without_noise(fill.confidence).clip(1e-12, 1.0)
    return Proposal(
        tokens=fill.tokens,
        confidence=sure,
        margin=np.maximum(0.0, 2 * sure - 1),
        gap=np.log(sure) - np.log1p(1e-12 - sure),
        entropy=-np.log(sure),
        forced=fill.forced,
    )


def _without_noise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to about ten digits.

    Positions that a grammar binds to each other have the same confidence, but for the last bits; those must not decide
    which is written first, or a sequence would go another way in a batch than alone.
    """
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**32) / 2.0**32, exponent)


def _commit(sequence: Sequence, proposal: Proposal, masked: Bools, window: Bools | None) -> Bools:
    """Write forced positions and those the policy chooses; which ones that were.

    An end token is committed only when everything before it is, or when the model is as sure of it as of any other
    commit: an early end would cut the reply for good.
    """
    forced = masked & proposal.forced
    free = masked & ~forced if window is None else masked & window & ~forced
    is_end = np.zeros(len(masked), np.bool_)
    for token in sequence.eos_ids:
        is_end |= proposal.tokens == token
    chosen = forced.copy()
    assert not isinstance(sequence.policy, Renoise)
    if window is None:
        chosen[0] |= masked[0]
    elif free.any():
        confidence = proposal.confidence.copy()
        confidence[is_end & free & (np.cumsum(free) > 1)] -= 1e-6
        chosen |= sequence.policy.choose(
            _view(sequence, replace(proposal, confidence=confidence), free)
        )
        if (chosen & free).any():
            lowest = float(confidence[chosen & free].min())
            sequence.confidence = min(sequence.confidence, lowest)
    sequence.block[chosen] = proposal.tokens[chosen]
    sequence.forced_tokens += int(np.count_nonzero(forced & ~is_end))
    return chosen


def _draft(
    sequence: Sequence, proposal: Proposal, scores: Answer, masked: Bools, window: Bools | None
) -> Draft | None:
    """The block as proposed, where its first masked run is worth a check."""
    rule = sequence.params.speculation
    free = masked if window is None else masked & window
    if not isinstance(rule, SelfVerify) or not free.any():
        return None
    first = int(free.argmax())
    behind = free[first:]
    places = first + np.arange(len(behind) if behind.all() else int(behind.argmin()))
    if not rule.is_worth(proposal.entropy[places], vocab_size=scores.vocab_size):
        return None
    return Draft(
        places=places,
        block=np.where(masked, proposal.tokens, sequence.block),
        log_probs=None
        if scores.rows is None
        else scores.rows[np.searchsorted(scores.places, places).tolist()],
    )


def _view(sequence: Sequence, proposal: Proposal, masked: Bools) -> View:
    return View(
        masked=masked,
        confidence=proposal.confidence,
        margin=proposal.margin,
        entropy=proposal.entropy,
        gap=proposal.gap,
        step=sequence.step,
        block_len=len(sequence.tail) + len(sequence.block),
        opened=sequence.opened,
    )


def _edit(
    sequence: Sequence, edit: Edit, scores: Answer, proposal: Proposal
) -> tuple[bool, Proposal]:
    """Replace committed tokens: whether there were any, and the proposal for the masks beside them.

    Under a grammar the replacements come from the best valid fill that keeps nothing, and are dropped where they are
    not valid together with what stays.
    """
    best = proposal
    if sequence.matcher is not None:
        best = _constrained(sequence, sequence.matcher.copy(), scores, {})
    changed = (sequence.block != MASKED) & (best.tokens != sequence.block)
    places = np.flatnonzero(changed & (best.confidence > edit.threshold))
    if not len(places):
        return False, proposal
    block = sequence.block.copy()
    block[places] = best.tokens[places]
    if sequence.matcher is not None:
        try:
            proposal = _constrained(sequence, sequence.matcher, scores, _pins(block))
        except ValueError:
            return False, proposal
    sequence.block = block
    sequence.revised_tokens += len(places)
    return True, proposal


def _revoke(
    sequence: Sequence,
    revoke: Revoke,
    scores: Answer,
    old: Bools,
    newly: Bools,
) -> None:
    """Mask again what was committed in earlier steps and has lost its support."""
    support = _spread(np.ones(len(old)), scores.shadows, scores.support)
    weak = np.flatnonzero(old & (support < revoke.threshold))
    most = int(np.count_nonzero(newly)) - 1
    weak = weak[np.argsort(support[weak], kind="stable")][: max(0, most)]
    sequence.block[weak] = MASKED
    sequence.revised_tokens += len(weak)


def _is_settled(sequence: Sequence, masked_before: Bools, *, is_edited: bool) -> bool:
    """Whether the block is full and stays as it is."""
    if not sequence.is_full:
        return False
    edit = sequence.params.revision
    if not isinstance(edit, Edit):
        return True
    return (not masked_before.any() and not is_edited) or sequence.post_steps >= edit.post_steps


def _spread(base: NDArray[T], places: NDArray[np.intp], values: NDArray[T]) -> NDArray[T]:
    whole = base.copy()
    whole[places] = values
    return whole
