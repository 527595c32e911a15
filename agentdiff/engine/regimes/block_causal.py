"""Block-causal models: a finished block never sees what follows it, so its keys and values are kept for good.

Exact: cached equals uncached. The prompt's whole blocks are encoded once (or taken from earlier requests), each step
pushes the active block alone, and a finished block is pushed once more to be stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.buckets import Buckets
from agentdiff.engine.cache import Copy, KVBuffer, LayerKV
from agentdiff.engine.denoise import commit_first, wanted, write_forced
from agentdiff.engine.outcome import Update
from agentdiff.engine.prefix_cache import PrefixCache
from agentdiff.engine.regimes.advance import advance, check_speculation, states
from agentdiff.engine.regimes.passes import Row, alike, collate, gather
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import InsertDelete, Revoke
from agentdiff.engine.sampling import Question
from agentdiff.engine.sequence import MASKED, Draft, Sequence
from agentdiff.engine.speculate import SelfVerify
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.engine.families.base import Family
    from agentdiff.engine.params import DecodeParams

PREFILL_POSITIONS = 4096
"""Prompt positions encoded in one pass, so that the mask [B, T, S + T] stays small."""


class BlockCausal:
    """Decodes sequences of a block-causal family."""

    def __init__(
        self, family: Family, *, prefix_bytes: int, buckets: Buckets | None = None
    ) -> None:
        self.family = family
        self.buckets = buckets
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
        if isinstance(params.revision, InsertDelete) and params.block_len not in (None, length):
            raise ConfigurationError(
                f"`block_len` is {params.block_len}, but `InsertDelete` moves tokens in blocks of {length}"
            )
        if isinstance(params.revision, Revoke) and self.traits.shift != "none":
            raise ConfigurationError(f"`Revoke` needs a model without a shift, {name} has one")
        if isinstance(params.revision, Revoke) and self.traits.prompt_blocks == "whole":
            raise ConfigurationError(f"`Revoke` needs blocks of any length, {name} has one length")
        check_speculation(params)
        if isinstance(params.speculation, SelfVerify):
            self._check_self_verify(params)
        if self.traits.prompt_blocks == "whole" and not prompt:
            raise ConfigurationError("`prompt` is empty; this model needs at least one token")

    def _check_self_verify(self, params: DecodeParams) -> None:
        name = self.traits.name
        if self.traits.prompt_blocks == "whole":
            raise ConfigurationError(
                f"`SelfVerify` needs blocks of any length, {name} has one length"
            )
        if self.traits.delete_id is not None:
            raise ConfigurationError(
                f"`SelfVerify` needs a block whose experts do not depend on its other positions, {name} routes blocks"
            )
        if isinstance(params.revision, Revoke):
            raise ConfigurationError(
                "`SelfVerify` cannot be had with `Revoke`, which would take back what was verified"
            )

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
        turns = [[self._ask(state) for state in states(s, self._window)] for s in active]
        asked = [ask for turn in turns for ask in turn]
        hidden, own = self._run([ask.row for ask in asked])
        logits = self.family.head(gather(hidden, [ask.columns for ask in asked]))
        self._put_carries(logits, asked)
        updates = advance(
            logits,
            [[ask.question for ask in turn] for turn in turns],
            mask_id=self.mask_id,
            window=self._window,
        )
        number = itertools.count()
        for sequence, turn in zip(active, turns, strict=True):
            sequence.positions += sum(ask.row.width for ask in turn[1:])
            self._keep(sequence, {next(number): ask.row for ask in turn}, hidden, own)
        return updates

    def _ask(self, state: Sequence) -> _Ask:
        """What a step pushes for a sequence, or for a state that it may come to, and what it asks."""
        if state.draft is not None:
            return self._ask_check(state, state.draft)
        tail, back = len(state.tail), self.traits.shift != "none"
        row, places = self._block_row(state), wanted(state)
        scored = np.maximum(tail + places - back, 0)
        return _Ask(
            row=row,
            question=Question(sequence=state, places=places, shadows=row.shadows - tail),
            columns=np.concatenate([scored, len(row.ids) + np.arange(len(row.shadows))]),
        )

    def _ask_check(self, sequence: Sequence, draft: Draft) -> _Ask:
        """The drafted block, each position seeing those before it alone.

        What scores a position is the one before it or, in a model without a shift, a mask in its place.
        """
        is_shifted = self.traits.shift != "none"
        past, places = self.buffer.lengths[sequence.row], len(sequence.tail) + draft.places
        ids = np.concatenate([np.array(sequence.tail, np.int64), draft.block])
        none = np.empty(0, np.intp)
        return _Ask(
            row=Row(
                sequence=sequence,
                ids=ids,
                start=past,
                past=past,
                blocks=np.arange(len(ids)),
                shadows=none if is_shifted else places,
            ),
            question=Question(sequence=sequence, places=draft.places, shadows=none),
            columns=np.maximum(places - 1, 0) if is_shifted else len(ids) + np.arange(len(places)),
        )

    def _keep(
        self, sequence: Sequence, rows: Mapping[int, Row], hidden: Tensor, own: Many[LayerKV]
    ) -> None:
        """Spare a settled block the pass that stores it, where one of these rows was the block as it is now."""
        if not sequence.is_settled:
            return
        for n, row in rows.items():
            if row.blocks is None and np.array_equal(row.ids[len(sequence.tail) :], sequence.block):
                self._put(own, [replace(row, sequence=sequence)], hidden, source=n)
                sequence.is_stored = True
                return

    def _store(self, settled: list[Sequence]) -> None:
        """Settled blocks become part of their rows, and the next blocks open."""
        missing = [self._block_row(sequence) for sequence in settled if not sequence.is_stored]
        if missing:
            self._append(missing)
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
        batch = collate(
            rows, self.buffer, mask_id=self.mask_id, device=self.family.device, buckets=self.buckets
        )
        result = self.family.run(
            batch.ids, positions=batch.positions, mask=batch.mask, past=batch.past
        )
        for row in rows:
            row.sequence.pushed(row.width)
        return result

    def _append(self, rows: list[Row]) -> None:
        """Run positions that are final and keep their keys and values."""
        hidden, own = self._run(rows)
        self._put(own, rows, hidden)

    def _put(self, own: Many[LayerKV], rows: list[Row], hidden: Tensor, *, source: int = 0) -> None:
        """Keep final positions of a pass, whose rows from `source` on these are."""
        self.buffer.write(
            own,
            [
                Copy(row.sequence.row, n, 0, len(row.ids), row.past)
                for n, row in enumerate(rows, source)
            ],
        )
        if self.traits.shift == "none":
            return
        last = torch.tensor([len(row.ids) - 1 for row in rows], device=hidden.device)
        which = source + torch.arange(len(rows), device=hidden.device)
        for row, carry in zip(rows, self.family.head(hidden[which, last]), strict=True):
            row.sequence.carry = carry

    def _put_carries(self, logits: Tensor, asked: list[_Ask]) -> None:
        """The first position of a block is scored by the end of the block before it, where logits are shifted."""
        start = 0
        for ask in asked:
            question = ask.question
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """A row of a pass and what is asked of it."""

    row: Row
    question: Question
    columns: NDArray[np.intp]
    """[n + m] the row's columns that score what is asked, in order."""
