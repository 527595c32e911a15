"""The engine: sequences join and leave at step boundaries, and their active blocks share one forward pass.

Law: alone equals batched. A sequence has its own prefix, grammar, policy and random numbers; the batch only saves time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Ids
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from agentdiff.engine.denoise import commit, propose
from agentdiff.engine.sequence import Sequence
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.engine.families.base import Family, LegacyFamily
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
    error: Exception | None = None
    """Set instead of `output` when the sequence has failed; its neighbours go on."""


class Engine:
    """Decodes many sequences on one model, block by block. Not thread-safe: call it from one thread at a time."""

    def __init__(self, family: Family | LegacyFamily, *, max_batch: int = 64) -> None:
        self.family = cast("LegacyFamily", family)
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
            params: Lengths, policy, temperature, seed. A ceiling beyond the context is lowered to it.
            matcher: Grammar state at the start of the reply; owned by the engine from here on.

        Raises:
            ConfigurationError: The prompt is empty, or does not fit the context together with the target; or the
                matcher may write more than the ceiling.
        """
        traits = self.family.traits
        if not prompt:
            raise ConfigurationError("`prompt` is empty; the engine needs at least one token")
        room = traits.context_len - len(prompt)
        if params.target > room:
            raise ConfigurationError(
                f"the prompt has {len(prompt)} tokens and the reply is expected to take {params.target}, but "
                f"the model's context holds {traits.context_len}; shorten the prompt"
            )
        if params.ceiling > room:
            params = replace(params, ceiling=room)
        if matcher is not None and matcher.tokens_left > params.ceiling:
            raise ConfigurationError(
                f"the matcher may write {matcher.tokens_left} tokens, but the reply ends after "
                f"{params.ceiling}; start the matcher with that budget"
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
        """Store finished blocks, let waiting sequences join, then denoise every active block once.

        What fails for one sequence (its prefill, its grammar) ends that one, with an update that says so. What fails
        in a pass over all of them is raised and changes none: step again, or cancel some.
        """
        self._store_finished_blocks()
        failed = self._let_in()
        batch = list(self._active.values())
        if failed or not batch:
            return failed
        traits = self.family.traits
        blocks = torch.tensor(
            [[traits.mask_id if token is None else token for token in s.block] for s in batch]
        )
        log_probs = self.family.denoise(blocks, [s.prefix for s in batch])
        log_probs[..., traits.mask_id] = -torch.inf
        scores = log_probs.log_softmax(-1).double().cpu().numpy()
        updates: list[Update] = []
        for row, sequence in enumerate(batch):
            try:
                updates.append(self._advance(sequence, scores[row]))
            except Exception as error:
                updates.append(self._fail(sequence.id, error))
        return updates

    def generate(
        self, prompt: Ids[int], params: DecodeParams, matcher: Matcher | None = None
    ) -> DecodeOutput:
        """Decode one sequence to its end.

        Other sequences in the engine advance beside it, and their updates are lost.
        """
        number = self.add(prompt, params, matcher)
        try:
            while True:
                for update in self.step():
                    if update.sequence != number:
                        continue
                    if update.error is not None:
                        raise update.error
                    if update.output is not None:
                        return update.output
        finally:
            self.cancel(number)

    def _let_in(self) -> list[Update]:
        """Prefill waiting sequences while there is room; what became of those that failed."""
        failed: list[Update] = []
        while self._waiting and len(self._active) < self.max_batch:
            number, (prompt, params, matcher) = next(iter(self._waiting.items()))
            del self._waiting[number]
            try:
                self._active[number] = self._join(number, prompt, params, matcher)
            except Exception as error:
                failed.append(self._fail(number, error))
        return failed

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
            forwards=int(prefix.length > 0),
            positions=prefix.length,
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
        commit(sequence, propose(sequence, log_probs[sequence.tail_len :]), traits)
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

    def _fail(self, number: int, error: Exception) -> Update:
        self._active.pop(number, None)
        return Update(sequence=number, final=(), draft=(), error=error)

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
