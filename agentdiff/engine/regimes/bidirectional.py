"""Bidirectional mask models: every position sees the whole canvas, masks included.

So nothing is ever final for the cache, and reuse is an approximation that the caller asks for (Fast-dLLM, arXiv
2505.22618, section 3.2). With prompt P, reply G and the active block [s, e) a step pushes:

    none                 [0, P + G)
    prefix   refresh     [0, P + G), keeps [0, s)        otherwise [s, P + G) over it
    dual     refresh     [0, P + G), keeps all           otherwise [s, e), its stale columns hidden

A refresh comes when a block begins, and every `refresh_every` steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.buckets import Buckets
from agentdiff.engine.cache import Copy, KVBuffer
from agentdiff.engine.denoise import wanted, write_forced
from agentdiff.engine.outcome import Update
from agentdiff.engine.prefix_cache import PrefixCache
from agentdiff.engine.regimes.advance import advance, check_speculation, states
from agentdiff.engine.regimes.passes import Row, alike, collate, gather
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import Revoke
from agentdiff.engine.sampling import Question
from agentdiff.engine.sequence import MASKED, Sequence
from agentdiff.engine.speculate import SelfVerify
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.engine.block_ends import BlockEnds
    from agentdiff.engine.families.base import Family
    from agentdiff.engine.params import DecodeParams


class Bidirectional:
    """Decodes sequences of a bidirectional family, a block of the canvas at a time."""

    def __init__(self, family: Family, *, buckets: Buckets | None = None) -> None:
        self.family = family
        self.buckets = buckets
        self.traits = family.traits
        assert self.traits.mask_id is not None
        self.mask_id = self.traits.mask_id
        self.buffer = KVBuffer()
        self.prefixes = PrefixCache(1, max_bytes=0)
        self._rows: list[Sequence] = []

    def check(self, prompt: Many[int], params: DecodeParams) -> None:
        """See `Regime.check`."""
        if isinstance(params.policy, Renoise):
            raise ConfigurationError("`policy` is a `Renoise`, which is for canvas models")
        if params.cache == "block":
            raise ConfigurationError(
                f"`cache` is 'block', which {self.traits.name} cannot have: it looks ahead; "
                "use 'none' (exact), 'prefix' or 'dual'"
            )
        needy = "guidance" if params.guidance else "suffix" if params.suffix else None
        if needy and params.cache not in (None, "none"):
            raise ConfigurationError(f"`{needy}` needs `cache` 'none'")
        is_shifted = self.traits.shift != "none"
        if is_shifted and params.revision is not None and params.cache in ("prefix", "dual"):
            raise ConfigurationError(
                f"{self.traits.name} scores a position by the one before it, so `revision` needs `cache` 'none'"
            )
        if is_shifted and isinstance(params.revision, Revoke):
            raise ConfigurationError(
                f"`Revoke` needs a model without a shift, {self.traits.name} has one"
            )
        check_speculation(params)
        if isinstance(params.speculation, SelfVerify):
            raise ConfigurationError(
                f"`SelfVerify` needs a block-causal model, {self.traits.name} looks ahead"
            )
        if params.speculation and (params.cache not in (None, "none") or params.guidance):
            raise ConfigurationError("`LookAhead` needs `cache` 'none' and no `guidance`")

    def columns(self, sequence: Sequence) -> int:
        """See `Regime.columns`."""
        if sequence.params.cache in (None, "none"):
            return 0
        return len(sequence.prompt) + sequence.params.ceiling

    def join(self, sequences: Many[Sequence]) -> None:
        """See `Regime.join`; nothing is encoded ahead."""
        for sequence in sequences:
            if sequence.params.cache in ("prefix", "dual"):
                sequence.row = self.buffer.add_row()
                self._rows.append(sequence)
            sequence.canvas_len = sequence.params.target
            sequence.expected_blocks = -(-sequence.canvas_len // self._block_len(sequence))
            self._open(sequence)

    def leave(self, sequence: Sequence) -> None:
        """See `Regime.leave`."""
        if sequence.row < 0:
            return
        self.buffer.drop_row(sequence.row)
        last = self._rows.pop()
        if last is not sequence:
            last.row = sequence.row
            self._rows[last.row] = last
        sequence.row = -1

    def step(self, active: Many[Sequence]) -> list[Update]:
        """See `Regime.step`."""
        for sequence in active:
            while sequence.is_settled:
                sequence.close_block()
                self._open(sequence)
        turns = [states(sequence, self._window) for sequence in active]
        questions = {state: self._question(state) for turn in turns for state in turn}
        pushes = [push for state in questions for push in self._pushes(state, questions)]
        scored: dict[Sequence, Tensor] = {}
        blind: dict[Sequence, Tensor] = {}
        for group in alike(pushes, lambda push: push.row.width):
            for push, hidden in zip(group, self._run(group, questions), strict=True):
                (blind if push.is_blind else scored)[push.row.sequence] = hidden
        logits = self.family.head(torch.cat([scored[state] for state in questions]))
        if blind:
            self._guide(logits, list(questions.values()), blind)
        for sequence, *guesses in turns:
            sequence.since_refresh += 1
            sequence.positions += sum(
                push.row.width for push in pushes if push.row.sequence in guesses
            )
        return advance(
            logits,
            [[questions[state] for state in turn] for turn in turns],
            mask_id=self.mask_id,
            window=self._window,
        )

    def _block_len(self, sequence: Sequence) -> int:
        return sequence.params.block_len or self.traits.block_len

    def _open(self, sequence: Sequence) -> None:
        """The next block of the canvas; behind its end the canvas grows by one."""
        length = self._block_len(sequence)
        if len(sequence.done) >= sequence.canvas_len:
            sequence.canvas_len = min(len(sequence.done) + length, sequence.params.ceiling)
        sequence.open_block(min(length, sequence.canvas_len - len(sequence.done)))
        sequence.since_refresh = 0
        write_forced(sequence)

    def _question(self, sequence: Sequence) -> Question:
        revokes = isinstance(sequence.params.revision, Revoke)
        committed = np.flatnonzero(sequence.block != MASKED)
        return Question(
            sequence=sequence,
            places=wanted(sequence),
            shadows=committed if revokes else committed[:0],
        )

    def _pushes(self, sequence: Sequence, questions: dict[Sequence, Question]) -> list[_Push]:
        """What the step pushes for one sequence: see the table above."""
        begin, end = sequence.begin, sequence.begin + len(sequence.block)
        canvas = self._canvas(sequence)
        cache, every = sequence.params.cache or "none", sequence.params.refresh_every
        since = sequence.since_refresh
        is_refresh = cache == "none" or since == 0 or (every is not None and since % every == 0)
        start, stop, past, keep = 0, len(canvas), 0, 0
        if is_refresh:
            keep = {"prefix": begin, "dual": len(canvas)}.get(cache, 0)
        else:
            start, past = begin, self.buffer.lengths[sequence.row]
            stop = end if cache == "dual" else len(canvas)
        row = Row(
            sequence=sequence,
            ids=canvas[start:stop],
            start=start,
            past=past,
            hidden=(begin, end) if past else (0, 0),
            shadows=begin - start + questions[sequence].shadows,
        )
        pushes = [_Push(row, keep)]
        if sequence.params.guidance:
            blind = canvas.copy()
            blind[: len(sequence.prompt)] = self.mask_id
            pushes.append(_Push(replace(row, ids=blind), 0, is_blind=True))
        return pushes

    def _canvas(self, sequence: Sequence) -> NDArray[np.int64]:
        """[P + G] the whole sequence with its masks, and the suffix behind it where there is one."""
        written = [*sequence.prompt, *sequence.done]
        rest = sequence.canvas_len - len(sequence.done) - len(sequence.block)
        block = np.where(sequence.block == MASKED, self.mask_id, sequence.block)
        return np.concatenate(
            [
                np.array(written, np.int64),
                block,
                np.full(rest, self.mask_id, np.int64),
                np.array(sequence.params.suffix, np.int64),
            ]
        )

    def _run(self, group: list[_Push], questions: dict[Sequence, Question]) -> Many[Tensor]:
        """One pass: for each push [n, E] the hidden states that score what its sequence asks."""
        rows = [push.row for push in group]
        batch = collate(
            rows, self.buffer, mask_id=self.mask_id, device=self.family.device, buckets=self.buckets
        )
        hidden, own = self.family.run(
            batch.ids, positions=batch.positions, mask=batch.mask, past=batch.past
        )
        copies = [
            Copy(push.row.sequence.row, n, 0, push.keep, 0)
            for n, push in enumerate(group)
            if push.keep
        ]
        self.buffer.write(own, copies)
        for n, push in enumerate(group):
            sequence = push.row.sequence
            begins = sequence.step == 0 and push.row.start == 0 and not push.is_blind
            if begins and sequence.params.contract_at is not None:
                self._contract(sequence, hidden[n], sequence.params.contract_at)
            if begins and sequence.params.block_ends is not None:
                self._fit_block(sequence, hidden[n], sequence.params.block_ends)
                questions[sequence] = self._question(sequence)
        back = self.traits.shift != "none"
        columns: list[NDArray[np.intp]] = []
        counts: list[int] = []
        for push in group:
            row, question = push.row, questions[push.row.sequence]
            places = row.sequence.begin - row.start + question.places - back
            shadows = len(row.ids) + np.arange(len(question.shadows))
            columns.append(np.concatenate([np.maximum(places, 0), shadows]))
            counts.append(question.rows)
            row.sequence.forwards += not push.is_blind
            row.sequence.positions += row.width
        return torch.split(gather(hidden, columns), counts)

    def _contract(self, sequence: Sequence, hidden: Tensor, least: float) -> None:
        """Give up the end of the canvas where the reply has surely ended; hidden [T, E] of a whole canvas."""
        end = sequence.begin + len(sequence.block)
        stop = len(sequence.prompt) + sequence.canvas_len
        if end == stop or not sequence.eos_ids:
            return
        back = self.traits.shift != "none"
        logits = self.family.head(hidden[end - back : stop - back])
        logits[:, self.mask_id] = -torch.inf
        ends = logits.softmax(-1)[:, sorted(sequence.eos_ids)].sum(-1)
        surely = int((ends >= least).flip(0).cumprod(0).sum())
        sequence.canvas_len -= surely
        if sequence.params.cache == "dual":
            self.buffer.lengths[sequence.row] = stop - surely

    def _fit_block(self, sequence: Sequence, hidden: Tensor, ends: BlockEnds) -> None:
        """Let the block that has just begun end at a delimiter; hidden [T, E] of a whole canvas."""
        first = int((sequence.block == MASKED).argmax())  # what the grammar forced stays
        width = math.ceil(ends.window * sequence.params.target)
        stop = min(width, sequence.canvas_len - len(sequence.done))
        if stop <= first:
            return
        back = self.traits.shift != "none"
        begin = sequence.begin - back
        columns = begin + torch.arange(first, stop, device=hidden.device)
        logits = self.family.head(hidden[columns.clamp_min(0)])
        logits[:, self.mask_id] = -torch.inf
        length = ends.find(logits.log_softmax(-1))
        if length is None:
            return
        block = np.full(first + length, MASKED, np.int64)
        kept = min(len(block), len(sequence.block))
        block[:kept] = sequence.block[:kept]
        sequence.block = block
        sequence.opened = len(block)

    def _guide(
        self, logits: Tensor, questions: Many[Question], blind: dict[Sequence, Tensor]
    ) -> None:
        """Push logits away from those of the model that does not see the prompt (LLaDA's `cfg_scale`)."""
        start = 0
        for question in questions:
            sequence, end = question.sequence, start + question.rows
            if sequence in blind:
                without = self.family.head(blind[sequence])
                scale = sequence.params.guidance + 1
                logits[start:end] = without + scale * (logits[start:end] - without)
            start = end

    def _window(self, sequence: Sequence) -> NDArray[np.bool_] | None:
        """Where the policy may commit.

        Shifted logits score a position by the one before it, which a cached step does not push for the block's first.
        So the refresh commits that one, and it alone.
        """
        is_cached = sequence.params.cache in ("prefix", "dual")
        if is_cached and self.traits.shift != "none" and sequence.block[0] == MASKED:
            return None
        return np.ones(len(sequence.block), np.bool_)


@dataclass(frozen=True, slots=True)
class _Push:
    """A row of a pass, and how many of its first columns are kept."""

    row: Row
    keep: int
    is_blind: bool = False
    """Whether the prompt is masked out, for guidance."""
