"""What grammars ask of the logits of a step: whole rows on a CPU, elsewhere the parts that they name.

Rows of 150,000 scores for 32 positions are 19 MB. A grammar needs some thousand numbers of each (`constraint.Parts`):
scores of single tokens, and sums and best tokens of groups, which are reduced here, where the logits are. On a CPU
nothing has to travel, and the compiled step reads whole rows in less time than a reduction takes
(`tests/benchmarks/step_scores.py` measures both).

Legend: n positions of a sequence, N of all, V vocabulary, C columns, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.constraint import Parts, StepScores, Sums
from agentdiff.constraint.parts import Groups
from agentdiff.constraint.step_scores import FLOOR
from agentdiff.engine.sequence import Sequence
from agentdiff.engine.speculate import SelfVerify

CHUNK = 128
"""Tokens that are summed in one go."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One sequence with a grammar, and the log-probabilities [n, V] of some places of its block."""

    sequence: Sequence
    places: NDArray[np.intp]
    log_probs: Tensor


@dataclass(frozen=True, slots=True)
class Reduced:
    """What has to reach the host, and what becomes of it there."""

    tensors: list[Tensor]
    scores: Callable[[Many[NDArray[np.float32]]], list[StepScores]]
    """Takes the tensors as arrays: the scores of each sequence, in order."""


def reduce(asked: Many[Asked]) -> Reduced:
    """Reduce the scores of sequences to what their grammars ask for, without waiting for the device."""
    return _whole(asked) if all(map(_takes_rows, asked)) else _mixed(asked)


def is_reduced_on(device: torch.device) -> bool:
    """Whether scores are reduced before they leave a device."""
    return device.type != "cpu"


def _takes_rows(one: Asked) -> bool:
    """Whether a sequence is given whole rows.

    A nucleus may need any token of a row, and a check of a draft looks at rows of its own making.
    """
    params = one.sequence.params
    return (
        not is_reduced_on(one.log_probs.device)
        or (params.top_p < 1 and one.sequence.temperature > 0)
        or isinstance(params.speculation, SelfVerify)
    )


def _whole(asked: Many[Asked]) -> Reduced:
    def scores(host: Many[NDArray[np.float32]]) -> list[StepScores]:
        return [
            StepScores.whole(rows, places=one.places, length=len(one.sequence.block))
            for one, rows in zip(asked, host, strict=True)
        ]

    return Reduced([one.log_probs for one in asked], scores)


def _mixed(asked: Many[Asked]) -> Reduced:
    """By parts where that is possible: all of them as one tensor, so that one copy brings them."""
    whole = [one for one in asked if _takes_rows(one)]
    parted = [_Parted(one) for one in asked if not _takes_rows(one)]
    shared: dict[Groups, list[_Parted]] = {}
    for one in parted:
        shared.setdefault(one.parts.shared, []).append(one)
    for groups, some in shared.items():
        index = _Index.of(groups, some[0].scores.device)
        found = index.sums([one.scores for one in some], [one.drawing for one in some])
        for one, sums in zip(some, found, strict=True):
            one.shared = sums
    by_rows = _whole(whole)

    def scores(host: Many[NDArray[np.float32]]) -> list[StepScores]:
        flat, start = host[-1], 0
        found: dict[Asked, StepScores] = dict(zip(whole, by_rows.scores(host[:-1]), strict=True))
        for one in parted:
            end = start + one.count
            found[one.asked] = one.step_scores(flat[start:end])
            start = end
        return [found[one] for one in asked]

    return Reduced([*by_rows.tensors, torch.cat([one.flat() for one in parted])], scores)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """What is drawn from a row: [n, V] scores over the temperature, with Gumbel noise."""

    temperature: float
    noisy: Tensor


class _Parted:
    """One sequence whose scores are taken by parts."""

    def __init__(self, asked: Asked) -> None:
        assert asked.sequence.matcher is not None
        self.asked = asked
        self.parts: Parts = asked.sequence.matcher.parts
        self.scores = asked.log_probs.clamp_min(FLOOR)
        self.drawing = _drawing(self.scores, asked.sequence)
        self.shared: Tensor | None = None
        """[3 or 6, n, G] what `_Index.sums` says of the shared groups."""

    @property
    def count(self) -> int:
        """Numbers of `flat`."""
        columns, groups = self.parts.size
        return len(self.scores) * (columns + groups * (3 if self.drawing is None else 6))

    def flat(self) -> Tensor:
        """Everything that has to reach the host, one after another."""
        device, parts = self.scores.device, self.parts
        columns = parts.derive(device, lambda: torch.from_numpy(parts.columns).to(device))
        assert self.shared is not None
        sums = self.shared
        if len(parts.own):
            own = _Index.of(parts.own, device).sums([self.scores], [self.drawing])[0]
            sums = torch.cat([sums, own], -1)
        return torch.cat([self.asked.log_probs.index_select(1, columns).flatten(), sums.flatten()])

    def step_scores(self, flat: NDArray[np.float32]) -> StepScores:
        """What `flat` says, on the host."""
        n, (columns, groups) = len(self.scores), self.parts.size
        sums = flat[n * columns :].reshape(-1, n, groups).astype(np.float64)
        total, token, best, cooled, drawn, drawn_score = sums if len(sums) == 6 else (*sums, *sums)
        return StepScores(
            length=len(self.asked.sequence.block),
            places=self.asked.places,
            rows=flat[: n * columns].reshape(n, columns),
            parts=self.parts,
            sums=Sums(
                total=total,
                best=best,
                token=token.astype(np.int32),
                cooled=cooled,
                drawn=drawn.astype(np.int32),
                drawn_score=drawn_score,
            ),
            temperature=0.0 if self.drawing is None else self.drawing.temperature,
            renew=self._renew,
        )

    def _renew(self, parts: Parts) -> StepScores:
        """The grammar has grown within the step: the same again with more parts."""
        self.parts = parts
        return self.step_scores(self.flat().cpu().numpy())


def _drawing(scores: Tensor, sequence: Sequence) -> _Drawing | None:
    temperature = sequence.temperature
    if temperature == 0:
        return None
    uniform = torch.rand(
        scores.shape,
        dtype=torch.float64,
        device=scores.device,
        generator=sequence.generator(scores.device),
    )
    noise = -torch.log(-torch.log(uniform.clamp_min(1e-300)))
    return _Drawing(temperature, scores.double() / temperature + noise)


class _Index:
    """Groups of tokens on a device, as lists of lists of equal lengths: so what is reduced is dense.

    Deterministic, and as exact for a group that hardly weighs anything as for one that holds everything.
    """

    def __init__(self, groups: Groups, device: torch.device) -> None:
        counts = [-(-len(ids) // CHUNK) for ids in groups.ids]
        tokens = np.full((sum(counts), CHUNK), -1, np.int64)
        chunks = np.full((len(groups), max(counts, default=1)), -1, np.int64)
        start = 0
        for g, (ids, count) in enumerate(zip(groups.ids, counts, strict=True)):
            tokens[start : start + count].reshape(-1)[: len(ids)] = ids
            chunks[g, :count] = np.arange(start, start + count)
            start += count
        self._tokens = torch.from_numpy(tokens.clip(0)).to(device)
        self._no_token = torch.from_numpy(tokens < 0).to(device)
        self._chunks = torch.from_numpy(chunks.clip(0)).to(device)
        self._no_chunk = torch.from_numpy(chunks < 0).to(device)

    @classmethod
    def of(cls, groups: Groups, device: torch.device) -> _Index:
        """The index of some groups, made once."""
        return groups.derive(device, lambda: cls(groups, device))

    def sums(self, scores: Many[Tensor], drawings: Many[_Drawing | None]) -> list[Tensor]:
        """What `Sums` holds, for scores [n, V] each: [6, n, G], without draws the first three."""
        rows = scores[0] if len(scores) == 1 else torch.cat(list(scores))
        total, (best, token) = self._total(rows), self._best(rows)
        plain = torch.stack([total, token.float(), best])
        found: list[Tensor] = []
        start = 0
        for own, drawing in zip(scores, drawings, strict=True):
            sums, start = plain[:, start : start + len(own)], start + len(own)
            if drawing is not None:
                _, drawn = self._best(drawing.noisy)
                cooled = self._total(own / drawing.temperature)
                more = torch.stack([cooled, drawn.float(), own.gather(1, drawn)])
                sums = torch.cat([sums, more])
            found.append(sums)
        return found

    def _total(self, rows: Tensor) -> Tensor:
        """[N, G] log-sums of [N, V]."""
        return self._of_chunks(self._gathered(rows).logsumexp(-1)).logsumexp(-1)

    def _best(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[N, G] the highest of [N, V], and the first token that has it."""
        best, place = self._gathered(rows).max(-1)
        first = CHUNK * torch.arange(len(self._tokens), device=rows.device)
        token = self._tokens.flatten()[place + first]
        best, place = self._of_chunks(best).max(-1)
        chunk = self._chunks.expand(len(rows), -1, -1).gather(-1, place[..., None])[..., 0]
        return best, token.gather(1, chunk)

    def _gathered(self, rows: Tensor) -> Tensor:
        """Return [N, chunks, CHUNK]."""
        found = rows.index_select(1, self._tokens.flatten()).view(len(rows), *self._tokens.shape)
        return found.masked_fill_(self._no_token, -torch.inf)

    def _of_chunks(self, values: Tensor) -> Tensor:
        """Return [N, G, most chunks of a group] of values [N, chunks]."""
        found = values.index_select(1, self._chunks.flatten())
        found = found.view(len(values), *self._chunks.shape)
        return found.masked_fill_(self._no_chunk, -torch.inf)
