"""One forward pass over parts of many sequences: rows of different lengths, prefixes and visibility.

Padding never changes a number: padded keys are hidden, padded queries see what is real and nobody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.buckets import Buckets
from agentdiff.engine.cache import KVBuffer, LayerKV
from agentdiff.engine.sequence import Sequence

T = TypeVar("T")
ALIKE = 1.5
"""Rows share a pass while the longest is at most this many times the shortest."""
PADDING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one sequence pushes through a pass."""

    sequence: Sequence
    ids: NDArray[np.int64]
    """[T]"""
    start: int
    """Position of the first id; the others follow."""
    past: int = 0
    """Cached columns that may be seen."""
    hidden: tuple[int, int] = (0, 0)
    """Those of them that may not: from, to."""
    blocks: NDArray[np.int64] | None = None
    """[T] each position sees those with no greater number; None sees all."""
    shadows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[m] columns of `ids` that get a shadow: a mask behind the row, at the same position, which sees everything the
    position sees except the position itself, and which only itself can see."""

    @property
    def width(self) -> int:
        """Positions pushed."""
        return len(self.ids) + len(self.shadows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as tensors: ids and positions [B, T], mask [B, 1, T, S + T] bool, past [B, H, S, D] per layer."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    past: list[LayerKV]


def collate(
    rows: Many[Row],
    buffer: KVBuffer,
    *,
    mask_id: int,
    device: torch.device,
    buckets: Buckets | None = None,
) -> Batch:
    """The tensors of one pass; with `buckets` they have more rows, positions and columns than are meant."""
    count, width = len(rows), max(row.width for row in rows)
    columns = max(row.past for row in rows)
    if buckets is not None:
        count, width, columns = buckets.fit(count, width, columns)
    whole = np.zeros((4, count, width), np.int64)
    limits = np.zeros((3, count, 1), np.int64)
    whole[2] = PADDING
    for n, row in enumerate(rows):
        ids, positions, block, itself = whole[:, n]
        length = len(row.ids)
        ids[:length] = row.ids
        positions[:] = row.start + np.arange(width)
        block[:length] = 0 if row.blocks is None else row.blocks
        itself[:] = np.arange(width)
        limits[:, n, 0] = row.past, *row.hidden
        if len(row.shadows):
            shadow = slice(length, row.width)
            ids[shadow] = mask_id
            positions[shadow] = row.start + row.shadows
            block[shadow] = block[row.shadows]
            itself[shadow] = row.shadows
    whole[2, len(rows) :, 0] = 0  # an added row has one position, as no query may see nothing
    ids, positions, block, itself = torch.from_numpy(whole).to(device)
    if (
        buckets is not None
    ):  # an offset into other tensors would be one more thing that a compiled form depends on
        ids, positions = ids.clone(), positions.clone()
    own = _visible(rows, block, itself)
    past, low, high = torch.from_numpy(limits).to(device)
    column = torch.arange(columns, device=device)
    seen = (column < past) & ~((column >= low) & (column < high))
    mask = torch.cat([seen[:, None].expand(-1, width, -1), own], 2)[:, None]
    places = [row.sequence.row for row in rows]
    held = buffer.past(places, columns, room=width, count=count)
    return Batch(ids, positions, mask, held)


def gather(hidden: Tensor, columns: Many[NDArray[np.intp]]) -> Tensor:
    """[N, E] of the hidden states [B, T, E] of a pass those in each row's columns, row after row."""
    rows = np.repeat(np.arange(len(columns)), [len(some) for some in columns])
    row, column = torch.from_numpy(np.stack([rows, np.concatenate(columns)])).to(hidden.device)
    return hidden[row, column]


def _visible(rows: Many[Row], block: Tensor, itself: Tensor) -> Tensor:
    """[B, T, T] bool: which of the new positions see each other."""
    is_plain = len(rows) == len(block) and all(
        row.blocks is None and row.width == block.shape[1] for row in rows
    )
    has_shadows = any(len(row.shadows) for row in rows)
    if is_plain and not has_shadows:
        return torch.ones(1, 1, 1, dtype=torch.bool, device=block.device).expand(
            len(rows), block.shape[1], block.shape[1]
        )
    real = block != PADDING
    numbers = torch.where(real, block, torch.iinfo(block.dtype).max)
    own = (block[:, None, :] <= numbers[:, :, None]) & real[:, None, :]
    if not has_shadows:
        return own
    added = [(1, 1)] * (len(block) - len(rows))
    ends = torch.tensor([*((len(row.ids), row.width) for row in rows), *added], device=block.device)
    column = torch.arange(block.shape[1], device=block.device)
    is_shadow = (column >= ends[:, :1]) & (column < ends[:, 1:])
    same = itself[:, :, None] == itself[:, None, :]
    alone = torch.eye(block.shape[1], dtype=torch.bool, device=block.device)
    of_shadow = torch.where(is_shadow[:, None, :], alone, ~same)
    return own & torch.where(is_shadow[:, :, None], of_shadow, ~is_shadow[:, None, :])


def alike(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in groups of similar size, so that little of a padded batch is padding; each in the given order."""
    order = list(items)
    place = {id(item): n for n, item in enumerate(order)}
    group: list[T] = []
    for item in sorted(order, key=size):
        if group and size(item) > ALIKE * size(group[0]):
            yield sorted(group, key=lambda member: place[id(member)])
            group = []
        group.append(item)
    if group:
        yield sorted(group, key=lambda member: place[id(member)])
