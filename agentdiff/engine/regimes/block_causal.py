"""Block-causal models: a finished block never sees what follows it, so its keys and values are kept for good.

Exact: cached equals uncached. The prompt's whole blocks are encoded once (or taken from earlier requests), each step
pushes the active block alone, and a finished block is pushed once more to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.cache import Copy, KVBuffer, LayerKV
from agentdiff.engine.denoise import commit_first, wanted, write_forced
from agentdiff.engine.outcome import Update
from agentdiff.engine.prefix_cache import PrefixCache
from agentdiff.engine.regimes.advance import advance
from agentdiff.engine.regimes.passes import Row, alike, collate
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import Revoke
from agentdiff.engine.sampling import Question
from agentdiff.engine.sequence import MASKED, Sequence
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.engine.families.base import Family
    from agentdiff.engine.params import DecodeParams

PREFILL_POSITIONS = 4096
"""Prompt positions encoded in one pass, so that the mask [B, T, S + T] stays small."""


class BlockCausal:
    """Decodes sequences of a block-causal family."""

    def __init__(self, family: Family, *, prefix_bytes: int) -> None:
        self.family = family
        self.traits = family.traits
        assert self.traits.mask_id is not None
        self.mask_id = self.traits.mask_id
        self.buffer = KVBuffer()
        # A prompt that sees itself as a whole has no reusable beginning.
        is_causal = self.traits.prompt_blocks == "from_start"
        self.prefixes = PrefixCache(self.traits.block_len, max_bytes=prefix_bytes * is_causal)
        self._rows: list[Sequence] = []

    def check(self, prompt: Many[int], params: DecodeParams) -> None:
        """See `Regime.check`."""
        if isinstance(params.policy, Renoise):
            raise ConfigurationError("`policy` is a `Renoise`, which is for canvas models")
        name, length = self.traits.name, self.traits.block_len
        if params.cache not in (None, "block"):
            raise ConfigurationError(
                f"`cache` is {params.cache!r}, but a block-causal model ({name}) has an exact `block` cache"
            )
        if params.suffix:
            raise ConfigurationError(
                f"{name} is block-causal: it sees nothing behind the block that it writes, so it cannot fill in "
                "before a `suffix`; a bidirectional or a canvas model can (LLaDA, Dream, DiffusionGemma)"
            )
        if params.guidance:
            raise ConfigurationError(f"`guidance` needs a bidirectional model, {name} is not one")
        if params.block_len is not None and params.block_len > length:
            raise ConfigurationError(
                f"`block_len` is {params.block_len}, but {name} has blocks of {length}"
            )
        if isinstance(params.revision, Revoke) and self.traits.shift != "none":
            raise ConfigurationError(f"`Revoke` needs a model without a shift, {name} has one")
        if isinstance(params.revision, Revoke) and self.traits.prompt_blocks == "whole":
            raise ConfigurationError(f"`Revoke` needs blocks of any length, {name} has one length")
        if self.traits.prompt_blocks == "whole" and not prompt:
            raise ConfigurationError("`prompt` is empty; this model needs at least one token")

    def columns(self, sequence: Sequence) -> int:
        """See `Regime.columns`."""
        length = self.traits.block_len
        return len(sequence.prompt) + -(-sequence.params.ceiling // length) * length

    # Joining and leaving.

    def join(self, sequences: Many[Sequence]) -> None:
        """See `Regime.join`."""
        for sequence in sequences:
            sequence.row = self.buffer.add_row()
            self._rows.append(sequence)
            self._restore(sequence)
        missing = {s: self._stored_len(s) - self.buffer.lengths[s.row] for s in sequences}
        for group in alike(sequences, lambda sequence: missing[sequence]):
            self._prefill(group)
        for sequence in sequences:
            stored = self._stored_len(sequence)
            self._remember(sequence, sequence.prompt[:stored])
            tail = sequence.prompt[stored:]
            expected = len(tail) + sequence.params.target
            sequence.expected_blocks = -(-expected // self.traits.block_len)
            self._open(sequence, tail)

    def leave(self, sequence: Sequence) -> None:
        """See `Regime.leave`."""
        if sequence.row < 0:
            return
        written = (*sequence.prompt, *sequence.done)
        self._remember(sequence, written[: self.buffer.lengths[sequence.row]])
        self.buffer.drop_row(sequence.row)
        last = self._rows.pop()
        if last is not sequence:
            last.row = sequence.row
            self._rows[last.row] = last
        sequence.row = -1

    def _stored_len(self, sequence: Sequence) -> int:
        """How much of the prompt is encoded ahead; the rest shares its block with the reply."""
        length = len(sequence.prompt)
        is_shared = self.traits.prompt_blocks == "from_start"
        return length - length % self.traits.block_len * is_shared

    def _restore(self, sequence: Sequence) -> None:
        """Take keys and values of a known prefix; where logits are shifted, the last block is run again for its."""
        needs_last = self.traits.shift != "none"
        end = max(0, self._stored_len(sequence) - needs_last)
        for span in self.prefixes.find(sequence.prompt[:end]):
            at = self.buffer.lengths[sequence.row]
            self.buffer.write(span, [Copy(sequence.row, 0, 0, span[0].keys.shape[2], at)])
        sequence.reused_tokens = self.buffer.lengths[sequence.row]

    def _remember(self, sequence: Sequence, tokens: Many[int]) -> None:
        row = sequence.row
        self.prefixes.add(tokens, lambda start, end: self.buffer.span(row, start, end))

    def _prefill(self, group: list[Sequence]) -> None:
        """Encode prompts from where their rows end, in several passes where they are long."""
        while todo := [s for s in group if self.buffer.lengths[s.row] < self._stored_len(s)]:
            stride = max(1, PREFILL_POSITIONS // len(todo) // self.traits.block_len)
            self._append([self._prompt_row(s, stride * self.traits.block_len) for s in todo])

    def _prompt_row(self, sequence: Sequence, stride: int) -> Row:
        """The next part of a prompt, which ends with a whole block."""
        start, end = self.buffer.lengths[sequence.row], self._stored_len(sequence)
        length = self.traits.block_len
        blocks, stop = None, end
        if self.traits.prompt_blocks != "whole":
            early = 0 if self.traits.prompt_blocks == "from_start" else -end % length
            stop = min(end, start + stride)
            stop -= (stop + early) % length if stop < end else 0
            blocks = (np.arange(start, stop) + early) // length
        ids = np.array(sequence.prompt[start:stop], np.int64)
        return Row(sequence=sequence, ids=ids, start=start, past=start, blocks=blocks)

    # Stepping.

    def step(self, active: Many[Sequence]) -> list[Update]:
        """See `Regime.step`."""
        while settled := [sequence for sequence in active if sequence.is_settled]:
            self._store(settled)
        rows = [self._block_row(sequence) for sequence in active]
        hidden, _ = self._run(rows)
        questions = [
            Question(
                sequence=row.sequence,
                places=wanted(row.sequence),
                shadows=row.shadows - len(row.sequence.tail),
            )
            for row in rows
        ]
        logits = self.family.head(self._gather(hidden, rows, questions))
        self._put_carries(logits, questions)
        return advance(logits, questions, mask_id=self.mask_id, window=self._window)

    def _store(self, settled: list[Sequence]) -> None:
        """Settled blocks become part of their rows, and the next blocks open."""
        self._append([self._block_row(sequence) for sequence in settled])
        for sequence in settled:
            sequence.close_block()
            self._open(sequence, ())

    def _open(self, sequence: Sequence, tail: tuple[int, ...]) -> None:
        length = self.traits.block_len - len(tail)
        if (
            self.traits.prompt_blocks == "to_end"
        ):  # blocks of the reply, whose last is cut as the prompt's first was
            length = min(length, sequence.room)
        sequence.open_block(length, tail=tail)
        if self.traits.shift == "within_block" and sequence.carry is not None and not tail:
            commit_first(sequence, sequence.carry, mask_id=self.mask_id)
        write_forced(sequence)

    def _block_row(self, sequence: Sequence) -> Row:
        """The active block; a shadow of the generated part where tokens may be revoked."""
        tail = len(sequence.tail)
        block = np.where(sequence.block == MASKED, self.mask_id, sequence.block)
        revokes = isinstance(sequence.params.revision, Revoke) and not sequence.is_settled
        past = self.buffer.lengths[sequence.row]
        return Row(
            sequence=sequence,
            ids=np.concatenate([np.array(sequence.tail, np.int64), block]),
            start=past,
            past=past,
            shadows=tail + (np.flatnonzero(sequence.block != MASKED) if revokes else np.arange(0)),
        )

    def _run(self, rows: list[Row]) -> tuple[Tensor, Many[LayerKV]]:
        batch = collate(rows, self.buffer, mask_id=self.mask_id, device=self.family.device)
        result = self.family.run(
            batch.ids, positions=batch.positions, mask=batch.mask, past=batch.past
        )
        for row in rows:
            row.sequence.pushed(row.width)
        return result

    def _append(self, rows: list[Row]) -> None:
        """Run positions that are final and keep their keys and values."""
        hidden, own = self._run(rows)
        copies = [
            Copy(row.sequence.row, n, 0, len(row.ids), row.past) for n, row in enumerate(rows)
        ]
        self.buffer.write(own, copies)
        if self.traits.shift == "none":
            return
        last = torch.tensor([len(row.ids) - 1 for row in rows], device=hidden.device)
        logits = self.family.head(hidden[torch.arange(len(rows), device=hidden.device), last])
        for row, carry in zip(rows, logits, strict=True):
            row.sequence.carry = carry

    def _gather(self, hidden: Tensor, rows: list[Row], questions: list[Question]) -> Tensor:
        """[N, E] hidden states that score what is asked: those of the positions, or of the ones before them."""
        back = self.traits.shift != "none"
        columns: list[NDArray[np.intp]] = []
        for row, question in zip(rows, questions, strict=True):
            places = len(row.sequence.tail) + question.places - back
            columns += [np.maximum(places, 0), len(row.ids) + np.arange(len(question.shadows))]
        counts = [question.rows for question in questions]
        index = np.stack([np.repeat(np.arange(len(rows)), counts), np.concatenate(columns)])
        row_of, column = torch.from_numpy(index).to(hidden.device)
        return hidden[row_of, column]

    def _put_carries(self, logits: Tensor, questions: list[Question]) -> None:
        """The first position of a block is scored by the end of the block before it, where logits are shifted."""
        start = 0
        for question in questions:
            sequence = question.sequence
            first = len(question.places) and not sequence.tail and question.places[0] == 0
            if first and sequence.carry is not None:
                logits[start] = sequence.carry
            start += question.rows

    def _window(self, sequence: Sequence) -> NDArray[np.bool_]:
        """[L] where the policy may commit: the first part of the block, of the length asked for, that has a mask."""
        length = sequence.params.block_len or self.traits.sub_block_len or self.traits.block_len
        part = (len(sequence.tail) + np.arange(len(sequence.block))) // length
        masked = sequence.block == MASKED
        return part == part[int(masked.argmax())]
