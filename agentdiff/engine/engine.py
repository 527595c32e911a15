"""The engine: sequences join and leave at step boundaries, and their active blocks share one forward pass.

Law: alone equals batched. A sequence has its own prefix, grammar, policy and random numbers; the batch only saves time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentdiff.engine.denoise import commit, propose
from agentdiff.engine.sequence import Sequence
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.engine.families.base import Family
    from agentdiff.engine.params import DecodeOutput, DecodeParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step did to one sequence."""

    sequence: int
    final: tuple[int, ...]
    """Tokens that became final and stand behind all earlier ones; the end token is never among them."""
    draft: tuple[int | None, ...]
    """What follows them in the active block; None is still masked."""
    output: DecodeOutput | None = None
    """Set in the last update of a sequence."""


class Engine:
    """Decodes many sequences on one model, block by block. Not thread-safe: call it from one thread at a time."""

    def __init__(self, family: Family, *, max_batch: int = 64) -> None:
        self.family = family
        self.max_batch = max_batch
        """Sequences denoised together; others wait."""
        self._ids = itertools.count()
        self._active: dict[int, Sequence] = {}
        self._waiting: dict[int, tuple[tuple[int, ...], DecodeParams, Matcher | None]] = {}

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._active or self._waiting)

    def add(self, prompt: Ids[int], params: DecodeParams, matcher: Matcher | None = None) -> int:
        """Queue a sequence; it joins the batch at the next step. Returns its id.

        Args:
            prompt: Token ids, at least one.
            params: Lengths, policy, temperature, seed.
            matcher: Grammar state at the start of the reply; owned by the engine from here on.

        Raises:
            ConfigurationError: The prompt is empty, or does not fit the context together with the target.
        """
        traits = self.family.traits
        if not prompt:
            raise ConfigurationError("`prompt` is empty; the engine needs at least one token")
        if len(prompt) + params.target > traits.context_len:
            raise ConfigurationError(
                f"the prompt has {len(prompt)} tokens and the reply is expected to take {params.target}, but "
                f"the model's context holds {traits.context_len}; shorten the prompt"
            )
        number = next(self._ids)
        self._waiting[number] = (tuple(prompt), params, matcher)
        return number

    def cancel(self, number: int) -> None:
        """Drop a sequence and free what it holds; unknown or finished ids are ignored."""
        self._active.pop(number, None)
        self._waiting.pop(number, None)

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Let waiting sequences join, then denoise every active block once."""
        while self._waiting and len(self._active) < self.max_batch:
            number, (prompt, params, matcher) = next(iter(self._waiting.items()))
            del self._waiting[number]
            self._active[number] = self._join(number, prompt, params, matcher)
        batch = list(self._active.values())
        if not batch:
            return []
        traits = self.family.traits
        blocks = torch.tensor(
            [[traits.mask_id if token is None else token for token in s.block] for s in batch]
        )
        log_probs = self.family.denoise(blocks, [s.prefix for s in batch])
        log_probs[..., traits.mask_id] = -torch.inf
        scores = log_probs.double().cpu().numpy()
        updates = [self._advance(s, scores[row]) for row, s in enumerate(batch)]
        self._store_finished_blocks()
        return updates

    def generate(
        self, prompt: Ids[int], params: DecodeParams, matcher: Matcher | None = None
    ) -> DecodeOutput:
        """Decode one sequence to its end; other sequences in the engine advance beside it."""
        number = self.add(prompt, params, matcher)
        while True:
            for update in self.step():
                if update.sequence == number and update.output is not None:
                    return update.output

    def _join(
        self, number: int, prompt: tuple[int, ...], params: DecodeParams, matcher: Matcher | None
    ) -> Sequence:
        started = time.perf_counter()
        prefix, tail = self.family.prefill(prompt)
        sequence = Sequence(
            id=number,
            params=params,
            prefix=prefix,
            matcher=matcher,
            block=[],
            tail_len=0,
            started=started,
            rng=np.random.default_rng(params.seed),
            positions=len(prompt),
            expected_blocks=-(-(len(tail) + params.target) // self.family.traits.block_len),
        )
        self._open_block(sequence, tail)
        return sequence

    def _open_block(self, sequence: Sequence, tail: tuple[int, ...] = ()) -> None:
        length = self.family.traits.block_len
        sequence.block = [*tail, *[None] * (length - len(tail))]
        sequence.tail_len = len(tail)
        sequence.streamed = 0

    def _advance(self, sequence: Sequence, log_probs: np.ndarray) -> Update:
        """Commit what this step decides, and see whether the block or the reply is finished."""
        traits = self.family.traits
        sequence.forwards += 1
        sequence.positions += len(sequence.block)
        commit(sequence, propose(sequence, log_probs[sequence.tail_len :], traits), traits)
        run = sequence.leading()
        end = next((n for n, token in enumerate(run) if token in traits.eos_ids), None)
        room = sequence.params.ceiling - len(sequence.done)
        if end is not None:
            return self._finish(
                sequence, run[: min(end, room)], "stop" if end <= room else "length"
            )
        if len(run) >= room:
            reason = "stop" if sequence.matcher is not None else "length"
            return self._finish(sequence, run[:room], reason)
        if len(run) == len(sequence.generated) and sequence.matcher is not None:
            sequence.matcher.advance(run)
            if sequence.matcher.must_stop:
                return self._finish(sequence, run, "stop")
        final = tuple(run[sequence.streamed :])
        sequence.streamed = len(run)
        draft = tuple(sequence.generated[len(run) :])
        return Update(sequence=sequence.id, final=final, draft=draft)

    def _finish(self, sequence: Sequence, run: list[int], reason: str) -> Update:
        self._active.pop(sequence.id, None)
        output = sequence.output(sequence.done + run, reason)
        return Update(
            sequence=sequence.id, final=tuple(run[sequence.streamed :]), draft=(), output=output
        )

    def _store_finished_blocks(self) -> None:
        """Blocks without a mask become part of their prefix, and the next block opens."""
        full = [s for s in self._active.values() if None not in s.block]
        if not full:
            return
        finished = torch.tensor([s.block for s in full])
        for sequence, prefix in zip(
            full, self.family.append(finished, [s.prefix for s in full]), strict=True
        ):
            sequence.done.extend(sequence.leading())
            sequence.prefix = prefix
            sequence.forwards += 1
            sequence.positions += len(sequence.block)
            sequence.blocks += 1
            self._open_block(sequence)
