"""From logits to numbers about positions, on the model's device: one transfer to the host for a whole step.

Confidence, margin and entropy are those of the model's own distribution without the mask id; temperature and top-p
only choose the token.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.constraint import StepScores
from agentdiff.engine.grammar_scores import Asked, reduce
from agentdiff.engine.revise import InsertDelete
from agentdiff.engine.sequence import Draft, Sequence
from agentdiff.engine.speculate import SelfVerify

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Rows of a step's logits that belong to one sequence: n places of its block, then m shadows."""

    sequence: Sequence
    places: NDArray[np.intp]
    """[n] positions in the block that the first n rows score."""
    shadows: NDArray[np.intp]
    """[m] positions in the block whose own tokens the last m rows were not shown."""

    @property
    def rows(self) -> int:
        """Rows of the logits."""
        return len(self.places) + len(self.shadows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the step says of them: [n] each, empty for sequences with a grammar, which get its scores."""

    places: NDArray[np.intp]
    tokens: NDArray[np.int64]
    """The token that would be committed."""
    confidence: Floats
    """Its probability."""
    margin: Floats
    """That less the runner-up's."""
    gap: Floats
    """log of the best probability over the second."""
    entropy: Floats
    """In nats."""
    grammar: StepScores | None
    """The scores of `places` for the grammar."""
    rows: Tensor | None
    """[n, V] log-probabilities on the device, where a draft may have to be weighed against them."""
    vocab_size: int
    ranked: NDArray[np.int64] | None
    """[n, K] tokens from the likeliest on, more than a block has steps; where positions come and go."""
    shadows: NDArray[np.intp]
    support: Floats
    """[m] probability of the tokens that stand at `shadows`, by everything but themselves."""


def answer(logits: Tensor, questions: Many[Question], *, mask_id: int) -> list[Answer]:
    """Score the rows of one step, logits [N, V] float32 with the questions' rows in order; changes `logits`."""
    logits[:, mask_id] = -torch.inf
    start = 0
    for question in questions:  # what edits is written by no other rule
        ids, start = question.sequence.edit_ids, start + question.rows
        if ids is not None and not may_move(question.sequence):
            logits[start - question.rows : start, list(ids)] = -torch.inf
    log_probs = logits.log_softmax(-1)
    free, ranked, shadow = (list[Tensor]() for _ in range(3))
    asked: list[Asked] = []
    drawn: list[Tensor | None] = []
    start = 0
    for question in questions:
        split, end = start + len(question.places), start + question.rows
        drawn.append(log_probs[start:split] if _may_draft(question.sequence) else None)
        if question.sequence.matcher is None:
            free.append(_describe(log_probs[start:split], question.sequence))
        else:
            asked.append(Asked(question.sequence, question.places, log_probs[start:split]))
        if may_move(question.sequence):
            ranked.append(_rank(log_probs[start:split], question.sequence))
        if end > split:
            shadow.append(_support(log_probs[split:end], question))
        start = end
    grammar = reduce(asked)
    host = iter(to_host([*free, *grammar.tensors, *ranked, *shadow]))
    described = [next(host).numpy() for _ in free]
    scored = grammar.scores([next(host).numpy() for _ in grammar.tensors])
    orders = [next(host).numpy() for _ in ranked]
    supported = [next(host).numpy() for _ in shadow]
    answers: list[Answer] = []
    for question, rows in zip(questions, drawn, strict=True):
        is_free = question.sequence.matcher is None
        facts = described.pop(0) if is_free else np.empty((5, 0))
        confidence = np.exp(facts[1])
        answers.append(
            Answer(
                places=question.places,
                tokens=facts[0].astype(np.int64),
                confidence=confidence,
                margin=confidence - np.exp(facts[3]),
                gap=facts[2],
                entropy=facts[4],
                grammar=None if is_free else scored.pop(0),
                rows=rows,
                vocab_size=log_probs.shape[-1],
                ranked=orders.pop(0) if may_move(question.sequence) else None,
                shadows=question.shadows,
                support=supported.pop(0) if len(question.shadows) else np.empty(0),
            )
        )
    return answers


def may_move(sequence: Sequence) -> bool:
    """Whether positions of the block may come and go."""
    return sequence.matcher is None and isinstance(sequence.params.revision, InsertDelete)


def draw(log_probs: Tensor, sequence: Sequence) -> Tensor:
    """One token for each row of [n, V]: the most probable at temperature 0, else a float64 Gumbel draw."""
    if sequence.temperature == 0:
        return log_probs.argmax(-1)
    return _gumbel(_tempered(log_probs, sequence), sequence)


def redraw(log_probs: Tensor, draft: Draft, sequence: Sequence) -> Tensor:
    """The tokens [n] that a check leaves of a draft, by its own scores [n, V]: see `SelfVerify`."""
    if draft.log_probs is None:
        return log_probs.argmax(-1)
    drafted = torch.from_numpy(draft.block[draft.places]).to(log_probs.device)[:, None]
    before = _tempered(draft.log_probs, sequence).softmax(-1)
    after = _tempered(log_probs, sequence).softmax(-1)
    uniform = torch.rand(
        drafted.shape,
        dtype=torch.float64,
        device=drafted.device,
        generator=sequence.generator(drafted.device),
    )
    stays = uniform * before.gather(-1, drafted) < after.gather(-1, drafted)
    rest = (after - before).clamp_min(0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, after)
    return torch.where(stays[:, 0], drafted[:, 0], _gumbel(rest.log(), sequence))


def _tempered(log_probs: Tensor, sequence: Sequence) -> Tensor:
    """[n, V] float64 scores that tokens are drawn by."""
    scores = log_probs.double() / sequence.temperature
    return nucleus(scores, sequence.params.top_p) if sequence.params.top_p < 1 else scores


def _gumbel(scores: Tensor, sequence: Sequence) -> Tensor:
    """One token for each row of [n, V], by the softmax of its scores."""
    uniform = torch.rand(
        scores.shape,
        dtype=torch.float64,
        device=scores.device,
        generator=sequence.generator(scores.device),
    )
    return (scores - torch.log(-torch.log(uniform.clamp_min(1e-300)))).argmax(-1)


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Scores [n, V] with -inf outside the likeliest tokens that together have probability `top_p`; one always stays."""
    ordered, index = scores.softmax(-1).sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return scores.masked_fill(torch.zeros_like(outside).scatter_(-1, index, outside), -torch.inf)


def _describe(log_probs: Tensor, sequence: Sequence) -> Tensor:
    """[5, n] float64: token, its log-probability, gap, log-probability of the best other token, entropy."""
    best, ids = log_probs.topk(2, -1)
    token, own, other = ids[:, 0], best[:, 0], best[:, 1]
    if sequence.temperature > 0:
        draft = sequence.draft
        token = draw(log_probs, sequence) if draft is None else redraw(log_probs, draft, sequence)
        own = log_probs.gather(-1, token[:, None])[:, 0]
        other = torch.where(token == ids[:, 0], other, best[:, 0])
    entropy = -(log_probs.exp() * log_probs.clamp_min(-1e9)).sum(-1)
    return torch.stack([token, own, best[:, 0] - best[:, 1], other, entropy]).double()


def _may_draft(sequence: Sequence) -> bool:
    """Whether what tokens are drawn from has to be remembered."""
    is_drawn = sequence.temperature > 0 and sequence.matcher is None
    return is_drawn and isinstance(sequence.params.speculation, SelfVerify)


def _rank(log_probs: Tensor, sequence: Sequence) -> Tensor:
    """[n, K] the likeliest tokens of [n, V]: one for each step that a block may have, and those that edit."""
    revision = sequence.params.revision
    assert isinstance(revision, InsertDelete)
    steps = len(sequence.tail) + len(sequence.block) + revision.post_steps + 1
    return log_probs.topk(min(steps + 4, log_probs.shape[-1]), -1).indices


def _support(log_probs: Tensor, question: Question) -> Tensor:
    tokens = torch.from_numpy(question.sequence.block[question.shadows]).to(log_probs.device)
    own = log_probs.gather(-1, tokens.clamp_min(0)[:, None])[:, 0]
    return own.exp().double()


def to_host(tensors: list[Tensor]) -> list[Tensor]:
    """All of them on the CPU, with one wait."""
    if not tensors or tensors[0].device.type == "cpu":
        return tensors
    host = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return host
