"""When a reply ends, and what a step reports of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentdiff.constraint import Matcher
from agentdiff.engine.params import DecodeOutput
from agentdiff.engine.sequence import MASKED, Sequence


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

    @property
    def is_last(self) -> bool:
        """Whether the sequence has ended."""
        return self.output is not None or self.error is not None


def forced_end(matcher: Matcher, room: int) -> list[int] | None:
    """The rest of the text, where the grammar leaves no choice about any of it; else None."""
    if matcher.must_stop:
        return []
    forced = matcher.forced_prefix(room)
    if not forced:
        return None
    ahead = matcher.copy()
    ahead.advance(forced)
    return forced if ahead.must_stop else None


def after_step(sequence: Sequence) -> Update:
    """What became of the active block: the reply's end, or what is final so far.

    A settled block is written into the grammar; it is the regime's to store it and to open the next one.
    """
    params, is_settled = sequence.params, sequence.is_settled
    may_change = params.revision is not None and not is_settled
    run = [] if may_change else sequence.leading()
    room = sequence.room
    if is_settled or params.eos_stop == "token":
        end = next((n for n, token in enumerate(run) if token in sequence.eos_ids), None)
        if end is not None and params.eos_stop != "ceiling":
            return finish(sequence, run[:end])
        if len(run) >= room:
            return finish(sequence, run, is_cut=sequence.matcher is None)
    if sequence.matcher is not None and len(sequence.done) + len(run) > sequence.streamed:
        ahead = sequence.matcher.copy()
        ahead.advance(run)
        rest = forced_end(ahead, room - len(run))
        if rest is not None:
            sequence.forced_tokens += len(rest)
            return finish(sequence, run + rest)
        if is_settled:
            sequence.matcher = ahead
    # Blocks that the grammar filled have had no step, so what is new may begin before this one.
    final = tuple((sequence.done + run)[sequence.streamed :])
    sequence.streamed += len(final)
    rest = sequence.block[len(run) :].tolist()
    draft = tuple(None if token == MASKED else token for token in rest)
    return Update(sequence=sequence.id, final=final, draft=draft)


def finish(sequence: Sequence, run: list[int], *, is_cut: bool = False) -> Update:
    """The last update: `run` are the active block's tokens, cut at the ceiling and at an end token."""
    tokens = sequence.done + run
    end = next((n for n, token in enumerate(tokens) if token in sequence.eos_ids), len(tokens))
    ceiling = sequence.params.ceiling
    is_cut = (is_cut and end == len(tokens)) or end > ceiling
    tokens = tokens[: min(end, ceiling)]
    return Update(
        sequence=sequence.id,
        final=tuple(tokens[sequence.streamed :]),
        draft=(),
        output=sequence.output(tokens, is_complete=not is_cut),
    )


def failure(sequence: Sequence, error: Exception) -> Update:
    """The last update of a sequence that failed."""
    return Update(sequence=sequence.id, final=(), draft=(), error=error)


def record(sequence: Sequence, mask_id: int) -> None:
    """Keep the canvas as it is after a step, where the parameters ask for it."""
    if sequence.params.record:
        block = np.where(sequence.block == MASKED, mask_id, sequence.block).tolist()
        rest = sequence.canvas_len - len(sequence.done) - len(block)
        masks = [mask_id] * max(0, rest)
        sequence.trace.append((*sequence.prompt, *sequence.done, *block, *masks))
