"""A drafted run of the block against the scores of the pass that checked it: see `SelfVerify`."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint import Matcher
from agentdiff.engine.revise import Edit
from agentdiff.engine.sampling import Answer
from agentdiff.engine.sequence import MASKED, Draft, Sequence


def check(sequence: Sequence, draft: Draft, scores: Answer) -> None:
    """Write the draft up to the first token that the check would not have written, and there what it would have.

    scores: of the n places of the draft, each position seeing the draft before it.
    """
    if sequence.matcher is None:
        tokens, sure = scores.tokens, scores.confidence
    else:
        tokens, sure = _greedy(sequence, sequence.matcher, draft, scores)
    drafted = draft.block[draft.places[: len(tokens)]]
    differs = tokens != drafted
    count = int(differs.argmax()) + 1 if differs.any() else len(tokens)
    sequence.block[draft.places[:count]] = tokens[:count]
    sequence.confidence = min(sequence.confidence, float(sure[:count].min()))
    sequence.draft = None
    sequence.step += 1
    sequence.steps += 1
    sequence.is_settled = sequence.is_full and not isinstance(sequence.params.revision, Edit)


def _greedy(
    sequence: Sequence, matcher: Matcher, draft: Draft, scores: Answer
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The likeliest token at each place that the grammar allows behind those before, up to the first new one."""
    assert scores.grammar is not None
    before = time.perf_counter()
    block, first = sequence.block, int(draft.places[0])
    pinned = np.flatnonzero(block != MASKED)
    stop = int(pinned[-1]) + 1 if len(pinned) else 0
    ahead = matcher.copy()
    ahead.advance(block[:first].tolist())
    tokens, sure = list[int](), list[float]()
    for row, place in enumerate(draft.places.tolist()):
        # Up to the last token that is written; nothing is said of the positions between.
        rows = np.zeros((max(1, stop - place), scores.vocab_size), np.float32)
        rows[0] = scores.grammar.rows[row]
        pins = {int(n) - place: int(block[n]) for n in pinned if n > place}
        fill = ahead.propose(rows, pins)
        token = int(fill.tokens[0])
        tokens.append(token)
        sure.append(float(fill.confidence[0]))
        sequence.forced_tokens += bool(fill.forced[0]) and token not in sequence.eos_ids
        if token != draft.block[place]:
            break
        ahead.advance([token])
    sequence.constraint_s += time.perf_counter() - before
    return np.array(tokens, np.int64), np.array(sure)
