"""Canvas models: a block of random ids is denoised as a whole against an encoded prefix, and any of it may change.

Nothing is committed before the canvas is done. Under a grammar each step takes the likeliest valid fill of the whole
canvas (the joint witness) where it would take each position's likeliest token, so that what is written is valid.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.buckets import Buckets
from agentdiff.engine.cache import Copy, KVBuffer
from agentdiff.engine.grammar_scores import Asked, reduce
from agentdiff.engine.outcome import Update, after_step, failure
from agentdiff.engine.prefix_cache import PrefixCache
from agentdiff.engine.regimes.passes import Row, alike, collate
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.sampling import nucleus, to_host
from agentdiff.engine.sequence import Sequence
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.constraint import StepScores
    from agentdiff.engine.families.base import CanvasFamily
    from agentdiff.engine.params import DecodeParams

PREFILL_POSITIONS = 4096
"""Prompt positions encoded in one pass, so that the mask [B, T, S + T] stays small."""
PREFIX_UNIT = 16
"""Prefixes are kept and found in steps of so many tokens."""

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Canvas:
    """The state of one canvas."""

    ids: Ids
    """[L] what the next step is given."""
    steps_left: int
    history: deque[bytes]
    """The likeliest tokens of the last steps."""
    conditioning: Tensor | None = None
    """[L, V] the processed logits of the step before."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step says of one canvas: [L] each."""

    best: Ids
    drawn: Ids
    entropy: Floats


class CanvasRegime:
    """Decodes sequences of a canvas family."""

    def __init__(
        self, family: CanvasFamily, *, prefix_bytes: int, buckets: Buckets | None = None
    ) -> None:
        self.family = family
        self.buckets = buckets
        self.traits = family.traits
        self.buffer = KVBuffer()
        self.prefixes = PrefixCache(PREFIX_UNIT, max_bytes=prefix_bytes)
        self._rows: list[Sequence] = []
        self._canvases: dict[Sequence, _Canvas] = {}
        self._noised: dict[Sequence, int] = {}

    def check(self, prompt: Many[int], params: DecodeParams) -> None:
        """See `Regime.check`."""
        if not prompt:
            raise ConfigurationError("`prompt` is empty; this model needs at least one token")
        if params.policy is not None and not isinstance(params.policy, Renoise):
            raise ConfigurationError(
                f"`policy` must be a `Renoise` for {self.traits.name}, got {params.policy!r}"
            )
        length = params.block_len or self.traits.block_len
        if params.suffix and params.ceiling >= length:
            raise ConfigurationError(
                f"`ceiling` is {params.ceiling}, which leaves the canvas of {length} tokens no room for the `suffix`"
            )
        named = (params.revision, params.speculation)
        if params.cache not in (None, "block") or params.guidance or any(named):
            raise ConfigurationError(
                f"`cache`, `guidance`, `revision` and `speculation` have no meaning for {self.traits.name}: every "
                "token of its canvas may change until the canvas is done"
            )

    def columns(self, sequence: Sequence) -> int:
        """See `Regime.columns`."""
        length = self._length(sequence)
        return len(sequence.prompt) + -(-sequence.params.ceiling // length) * length

    def join(self, sequences: Many[Sequence]) -> None:
        """See `Regime.join`."""
        for sequence in sequences:
            sequence.row = self.buffer.add_row()
            self._rows.append(sequence)
            for span in self.prefixes.find(sequence.prompt):
                at = self.buffer.lengths[sequence.row]
                self.buffer.write(span, [Copy(sequence.row, 0, 0, span[0].keys.shape[2], at)])
            sequence.reused_tokens = self.buffer.lengths[sequence.row]
        ends = {sequence: len(sequence.prompt) for sequence in sequences}
        self._encode(ends)
        for sequence in sequences:
            self._remember(sequence)
            sequence.expected_blocks = -(-sequence.params.target // self._length(sequence))
            self._noised[sequence] = 0
            self._open(sequence)

    def leave(self, sequence: Sequence) -> None:
        """See `Regime.leave`."""
        if sequence.row < 0:
            return
        self._remember(sequence)
        self.buffer.drop_row(sequence.row)
        last = self._rows.pop()
        if last is not sequence:
            last.row = sequence.row
            self._rows[last.row] = last
        sequence.row = -1
        self._canvases.pop(sequence, None)
        self._noised.pop(sequence, None)

    def step(self, active: Many[Sequence]) -> list[Update]:
        """See `Regime.step`."""
        settled = [sequence for sequence in active if sequence.is_settled]
        self._encode({sequence: sequence.begin + len(sequence.block) for sequence in settled})
        for sequence in settled:
            sequence.close_block()
            self._open(sequence)
        updates: dict[Sequence, Update] = {}
        lengths = {len(sequence.block) for sequence in active}
        for length in lengths:  # one, unless sequences ask for canvases of their own
            group = [sequence for sequence in active if len(sequence.block) == length]
            updates |= self._denoise(group)
        return [updates[sequence] for sequence in active]

    def _length(self, sequence: Sequence) -> int:
        return sequence.params.block_len or self.traits.block_len

    def _schedule(self, sequence: Sequence) -> Renoise:
        return sequence.policy if isinstance(sequence.policy, Renoise) else Renoise()

    def _remember(self, sequence: Sequence) -> None:
        row, written = sequence.row, (*sequence.prompt, *sequence.done)
        self.prefixes.add(
            written[: self.buffer.lengths[row]],
            lambda start, end: self.buffer.span(row, start, end),
        )

    def _encode(self, ends: dict[Sequence, int]) -> None:
        """Encode what is written up to some positions, in several passes where it is long."""
        lengths = self.buffer.lengths
        for group in alike(ends, lambda s: ends[s] - lengths[s.row]):
            while todo := [s for s in group if lengths[s.row] < ends[s]]:
                stride = max(1, PREFILL_POSITIONS // len(todo))
                rows: list[Row] = []
                for sequence in todo:
                    start = lengths[sequence.row]
                    stop = min(ends[sequence], start + stride)
                    written = (*sequence.prompt, *sequence.done, *sequence.block.tolist())
                    ids = np.array(written[start:stop], np.int64)
                    rows.append(
                        Row(
                            sequence=sequence,
                            ids=ids,
                            start=start,
                            past=start,
                            blocks=np.arange(start, stop),
                        )
                    )
                batch = collate(
                    rows, self.buffer, mask_id=0, device=self.family.device, buckets=self.buckets
                )
                own = self.family.encode(
                    batch.ids, positions=batch.positions, mask=batch.mask, past=batch.past
                )
                self.buffer.write(
                    own,
                    [Copy(r.sequence.row, n, 0, len(r.ids), r.past) for n, r in enumerate(rows)],
                )
                for row in rows:
                    row.sequence.pushed(row.width)

    def _open(self, sequence: Sequence) -> None:
        """A canvas of noise."""
        schedule = self._schedule(sequence)
        sequence.open_block(self._length(sequence))
        self._canvases[sequence] = _Canvas(
            ids=self._held(sequence, self._noise(sequence)),
            steps_left=schedule.steps,
            history=deque(maxlen=schedule.stable_steps),
        )

    def _held(self, sequence: Sequence, ids: Ids) -> Ids:
        """[L] with the suffix in its place."""
        suffix = sequence.params.suffix[: len(ids) - sequence.params.ceiling]
        if suffix:
            ids = ids.copy()
            ids[sequence.params.ceiling : sequence.params.ceiling + len(suffix)] = suffix
        return ids

    def _noise(self, sequence: Sequence) -> Ids:
        """[L] random ids. Draws as transformers' own loop does: a seed gives the same canvases."""
        length, device = self._length(sequence), self.family.device
        source = self._schedule(sequence).noise
        self._noised[sequence] += 1
        if source is not None:
            return np.array(source(self._noised[sequence] - 1), np.int64)
        ids = torch.randint(
            0,
            self.traits.vocab_size,
            (1, length),
            device=device,
            generator=sequence.generator(device),
        )
        return ids[0].cpu().numpy()

    def _denoise(self, group: list[Sequence]) -> dict[Sequence, Update]:
        """One step of canvases of one length."""
        canvases = [self._canvases[sequence] for sequence in group]
        logits = self._decode(group, canvases)
        divisors = [
            self._schedule(s).temperature(c.steps_left)
            for s, c in zip(group, canvases, strict=True)
        ]
        logits = logits / torch.tensor(divisors, device=logits.device)[:, None, None]
        log_probs = logits.log_softmax(-1)
        drawn = torch.stack([self._draw(s, row) for s, row in zip(group, log_probs, strict=True)])
        entropy = -(log_probs.exp() * log_probs.clamp_min(-1e9)).sum(-1)
        facts = torch.stack([logits.argmax(-1).double(), drawn.double(), entropy.double()])
        asked = [
            Asked(s, np.arange(len(s.block)), rows)
            for s, rows in zip(group, log_probs, strict=True)
            if s.matcher is not None
        ]
        reduced = reduce(asked)
        host, *tensors = [tensor.numpy() for tensor in to_host([facts, *reduced.tensors])]
        scored = iter(reduced.scores(tensors))
        updates: dict[Sequence, Update] = {}
        for n, (sequence, canvas) in enumerate(zip(group, canvases, strict=True)):
            best, token = host[:2, n].astype(np.int64)
            step = _Step(best, token, host[2, n])
            scores = None if sequence.matcher is None else next(scored)
            try:
                step = self._constrain(sequence, step, scores)
                updates[sequence] = self._advance(sequence, canvas, step)
            except Exception as error:
                updates[sequence] = failure(sequence, error)
            canvas.conditioning = logits[n]
        return updates

    def _decode(self, group: list[Sequence], canvases: list[_Canvas]) -> Tensor:
        """[B, L, V] raw logits of the canvases."""
        device = self.family.device
        rows = [
            Row(sequence=s, ids=c.ids, start=s.begin, past=s.begin)
            for s, c in zip(group, canvases, strict=True)
        ]
        batch = collate(rows, self.buffer, mask_id=0, device=device, buckets=self.buckets)
        conditioned = [canvas.conditioning is not None for canvas in canvases]
        conditioning: Tensor | None = None
        if any(conditioned):
            like = next(c.conditioning for c in canvases if c.conditioning is not None)
            conditioning = like.new_zeros(*batch.ids.shape, like.shape[-1])
            for n, canvas in enumerate(canvases):
                if canvas.conditioning is not None:
                    conditioning[n, : len(canvas.ids)] = canvas.conditioning
            conditioned += [False] * (len(batch.ids) - len(canvases))
        logits = self.family.decode(
            batch.ids,
            positions=batch.positions,
            mask=batch.mask,
            past=batch.past,
            conditioning=conditioning,
            conditioned=torch.tensor(conditioned, device=device) if any(conditioned) else None,
        )
        for row in rows:
            row.sequence.pushed(row.width)
        return logits[: len(rows), : rows[0].width]

    def _draw(self, sequence: Sequence, log_probs: Tensor) -> Tensor:
        """[L] a token for each position of [L, V]; the likeliest at temperature 0."""
        if sequence.temperature == 0 or sequence.matcher is not None:
            return log_probs.argmax(-1)
        scores = log_probs / sequence.temperature
        if sequence.params.top_p < 1:
            scores = nucleus(scores, sequence.params.top_p)
        weights = scores.softmax(-1)
        generator = sequence.generator(log_probs.device)
        return torch.multinomial(weights, 1, generator=generator)[:, 0]

    def _constrain(self, sequence: Sequence, step: _Step, scores: StepScores | None) -> _Step:
        """The likeliest valid fill, and a valid draw, in place of each position's own."""
        matcher = sequence.matcher
        if matcher is None or scores is None:
            return step
        before = time.perf_counter()
        best = matcher.propose(scores, {})
        drawn = best
        if sequence.temperature > 0:
            drawn = matcher.propose(
                scores,
                {},
                temperature=sequence.temperature,
                top_p=sequence.params.top_p,
                rng=sequence.rng,
            )
        sequence.constraint_s += time.perf_counter() - before
        entropy = np.where(best.forced, 0.0, step.entropy)
        return _Step(best.tokens.astype(np.int64), drawn.tokens.astype(np.int64), entropy)

    def _advance(self, sequence: Sequence, canvas: _Canvas, step: _Step) -> Update:
        """Accept, renoise, and see whether the canvas is done."""
        schedule = self._schedule(sequence)
        order = np.argsort(step.entropy, kind="stable")
        ranked = step.entropy[order]
        accepted = np.zeros(len(order), np.bool_)
        accepted[order] = np.cumsum(ranked) - ranked <= schedule.bound
        canvas.ids = self._held(sequence, np.where(accepted, step.drawn, self._noise(sequence)))
        canvas.steps_left -= 1
        seen = step.best.tobytes()
        is_stable = len(canvas.history) == schedule.stable_steps and all(
            old == seen for old in canvas.history
        )
        canvas.history.append(seen)
        sequence.block = step.best
        sequence.step += 1
        sequence.steps += 1
        if sequence.params.record:
            sequence.trace.append((*sequence.prompt, *sequence.done, *step.best.tolist()))
        is_sure = float(step.entropy.mean()) < schedule.sure
        if canvas.steps_left == 0 or (is_stable and is_sure):
            sequence.is_settled = True
            return after_step(sequence)
        return Update(sequence=sequence.id, final=(), draft=tuple(step.best.tolist()))
