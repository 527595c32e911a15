"""A denoising step where positions of the block come and go: see `InsertDelete`.

After the joint threshold with insertion and deletion of SGLang (`srt/dllm/algorithm/joint_threshold_indel.py`), which
serves LLaDA2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import InsertDelete
from agentdiff.engine.sampling import Answer
from agentdiff.engine.sequence import MASKED, Sequence
from agentdiff.engine.unmask import View

Bools = NDArray[np.bool_]
Ids = NDArray[np.int64]


@dataclass(slots=True)
class History:
    """What has become of a block so far."""

    own: Bools
    """[L] positions that the block began with as masks, wherever they are by now; others were brought in by edits."""
    steps: int = 0
    post_steps: int = 0
    """Steps that found no mask of the block's own."""
    seen: set[bytes] = field(default_factory=set[bytes])
    """Blocks that were stepped from."""
    tried: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Position → tokens that a step chose there."""


def move(sequence: Sequence, scores: Answer, view: View) -> None:
    """Commit, replace, delete and insert.

    scores: of every position of the block, with `ranked`. view: with all masks of the block.
    """
    revision, edit_ids, ranked = sequence.params.revision, sequence.edit_ids, scores.ranked
    assert isinstance(revision, InsertDelete)
    assert edit_ids is not None
    assert ranked is not None
    block, sure, tokens = sequence.block, scores.confidence, scores.tokens.copy()
    masked = view.masked
    history = sequence.history = sequence.history or History(own=masked.copy())
    own = masked & history.own
    history.steps += 1
    history.post_steps += not own.any()
    most = view.block_len + revision.post_steps
    is_last = history.steps > most or (not own.any() and history.post_steps >= revision.post_steps)
    commits = masked if is_last or not own.any() else _commits(sequence, view, own)
    if revision.post_steps == 0 and own.any() and not (own & ~commits).any():
        is_last, commits = True, masked
    edits = ~masked & (sure > revision.threshold) & (tokens != block)
    chosen = commits | edits
    if is_last:
        _spell_out(tokens, chosen, ranked, banned=set(edit_ids))
    elif block.tobytes() in history.seen:
        _turn_aside(tokens, chosen & (tokens != block), sure, ranked, history)
    history.seen.add(block.tobytes())
    for place in np.flatnonzero(chosen).tolist():
        history.tried.setdefault(place, set()).add(int(tokens[place]))
    sequence.revised_tokens += int(np.count_nonzero(edits))
    if commits.any():
        sequence.confidence = min(sequence.confidence, float(sure[commits].min()))
    sequence.block, history.own = _rebuilt(
        block, np.where(chosen, tokens, block), history.own, edit_ids
    )
    sequence.step += 1
    sequence.steps += 1
    sequence.is_settled = is_last or not chosen.any()


def _commits(sequence: Sequence, view: View, own: Bools) -> Bools:
    """What the policy chooses, and one more than there are foreign masks: so one of the block's own is among them."""
    assert not isinstance(sequence.policy, Renoise)
    chosen = sequence.policy.choose(view)
    least = 1 + int(np.count_nonzero(view.masked & ~own))
    if np.count_nonzero(chosen) < least:
        chosen = np.zeros_like(chosen)
        chosen[view.ranked("confidence")[:least]] = True
    return chosen


def _spell_out(tokens: Ids, chosen: Bools, ranked: Ids, *, banned: set[int]) -> None:
    """Put the likeliest plain token where one was chosen that edits."""
    for place in np.flatnonzero(chosen & np.isin(tokens, list(banned))).tolist():
        tokens[place] = next(token for token in ranked[place].tolist() if token not in banned)


def _turn_aside(
    tokens: Ids, changing: Bools, sure: NDArray[np.float64], ranked: Ids, history: History
) -> None:
    """Take another token where a block that was there before would change and is least sure."""
    if not changing.any():
        return
    place = int(np.where(changing, sure, np.inf).argmin())
    tried = history.tried.get(place, set[int]())
    tokens[place] = next(token for token in ranked[place].tolist() if token not in tried)


def _rebuilt(old: Ids, new: Ids, own: Bools, edit_ids: tuple[int, int]) -> tuple[Ids, Bools]:
    """[L] the block as written, and which positions are its own, after deletions and insertions."""
    deletes, inserts = (new == token for token in edit_ids)
    if not (deletes | inserts).any():
        return new, own
    # An insertion is a foreign mask before the old token.
    counts = np.where(deletes, 0, np.where(inserts, 2, 1))
    source = np.repeat(np.arange(len(old)), counts)
    is_new = inserts[source] & np.r_[True, source[1:] != source[:-1]][: len(source)]
    tokens = np.where(is_new, MASKED, np.where(inserts[source], old[source], new[source]))
    filling = max(0, len(old) - len(tokens))
    tokens = np.r_[tokens, np.full(filling, MASKED)][: len(old)]
    kept = np.r_[own[source] & ~is_new, np.zeros(filling, np.bool_)][: len(old)]
    return tokens.astype(np.int64), kept
