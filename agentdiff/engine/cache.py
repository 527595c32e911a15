"""Keys and values of many sequences in one padded batch.

A sequence is a row; what is final of it stands in the row's first columns, column n holding position n. A pass reads
the rows as they lie, so nothing is copied or padded again from step to step; only appending writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.buckets import next_power


class LayerKV(NamedTuple):
    """Keys and values of one layer: [B, H, S, D] each."""

    keys: Tensor
    values: Tensor


class HeldKV(LayerKV):
    """The first columns of longer tensors whose other columns are free: a pass may write its own there."""

    whole: LayerKV
    """These columns and the free ones: [B, H, S + T, D]."""

    @classmethod
    def first(cls, whole: LayerKV, length: int) -> Self:
        """The first `length` columns; the others are free."""
        held = cls(whole.keys[:, :, :length], whole.values[:, :, :length])
        held.whole = whole
        return held


@dataclass(frozen=True, slots=True)
class Copy:
    """Columns of one pass that are to be kept."""

    row: int
    """Where they go."""
    source: int
    """Their row in the pass."""
    first: int
    """Their first column in the pass."""
    count: int
    at: int
    """The column of the row where they begin; the row then ends behind them."""


class KVBuffer:
    """A growing batch of rows [R, H, C, D] for each layer. Rows in use are always the first ones."""

    def __init__(self) -> None:
        self._layers: list[LayerKV] = []
        self._capacity = (0, 0)
        self.lengths: list[int] = []
        """Columns that each row in use holds."""

    @property
    def bytes_per_position(self) -> int:
        """Of one column of one row; 0 before the first write."""
        return sum(kv[0, :, :1].nbytes for layer in self._layers for kv in layer)

    def add_row(self) -> int:
        """Take a new, empty row; its number is the number of rows before."""
        self.lengths.append(0)
        return len(self.lengths) - 1

    def drop_row(self, row: int) -> None:
        """Free a row; the last row takes its place."""
        last = len(self.lengths) - 1
        length = self.lengths.pop()
        if row == last:
            return
        self.lengths[row] = length
        for layer in self._layers:
            for kv in layer:
                kv[row, :, :length] = kv[last, :, :length]

    def write(self, own: Sequence[LayerKV], copies: Sequence[Copy]) -> None:
        """Keep columns of a pass, own [B, H, T, D] per layer. Changes the rows named and no other."""
        if not copies:
            return
        self._grow(own, max(copy.at + copy.count for copy in copies))
        device = own[0].keys.device
        index = torch.from_numpy(_flat(copies)).to(device)
        row, to, source, column = index.unbind(0)
        for held, new in zip(self._layers, own, strict=True):
            for old, fresh in zip(held, new, strict=True):
                old[row, :, to] = fresh[source, :, column]
        for copy in copies:
            self.lengths[copy.row] = copy.at + copy.count

    def past(
        self, rows: Sequence[int], length: int, *, room: int = 0, count: int = 0
    ) -> list[LayerKV]:
        """The first `length` columns of some rows: [B, H, length, D] per layer; empty when there is nothing to see.

        A view where the rows are the first ones in order; with `room` free columns behind it where they hold no more
        than `length`, so that a pass of so many positions need not copy what it sees. Rows that mean nothing fill the
        batch up to `count`, which is at most the next power of two.
        """
        if length == 0:
            return []
        count = max(count, len(rows))
        if list(rows) == list(range(len(rows))):
            room = room if max(self.lengths[:count]) <= length else 0
            self._grow(self._layers, length + room)
            whole = [
                LayerKV(k[:count, :, : length + room], v[:count, :, : length + room])
                for k, v in self._layers
            ]
            return [HeldKV.first(layer, length) for layer in whole] if room else whole
        self._grow(self._layers, length)
        index = torch.tensor(
            [*rows, *[0] * (count - len(rows))], device=self._layers[0].keys.device
        )
        return [LayerKV(k[index, :, :length], v[index, :, :length]) for k, v in self._layers]

    def span(self, row: int, start: int, end: int) -> list[LayerKV]:
        """A copy of some columns of one row: [1, H, end - start, D] per layer."""
        return [
            LayerKV(k[row : row + 1, :, start:end].clone(), v[row : row + 1, :, start:end].clone())
            for k, v in self._layers
        ]

    def _grow(self, like: Sequence[LayerKV], columns: int) -> None:
        rows, held = self._capacity
        if len(self.lengths) <= rows and columns <= held:
            return
        rows = max(rows, next_power(len(self.lengths)))
        if columns > held:
            held = columns + columns // 2 + 31 & ~31
        old = self._layers or [None] * len(like)
        self._layers = [
            LayerKV(
                _grown(None if o is None else o.keys, kv.keys, rows, held),
                _grown(None if o is None else o.values, kv.values, rows, held),
            )
            for o, kv in zip(old, like, strict=True)
        ]
        self._capacity = (rows, held)


def _grown(old: Tensor | None, like: Tensor, rows: int, columns: int) -> Tensor:
    """Zeros of the new size with the old content: what is masked must still be finite."""
    new = like.new_zeros(rows, like.shape[1], columns, like.shape[3])
    if old is not None:
        new[: old.shape[0], :, : old.shape[2]] = old
    return new


def _flat(copies: Sequence[Copy]) -> NDArray[np.int64]:
    """[4, N]: row, column in it, row of the pass, column of the pass."""
    counts = [copy.count for copy in copies]
    offsets = np.concatenate([np.arange(count) for count in counts])
    return np.stack(
        [
            np.repeat([copy.row for copy in copies], counts),
            np.repeat([copy.at for copy in copies], counts) + offsets,
            np.repeat([copy.source for copy in copies], counts),
            np.repeat([copy.first for copy in copies], counts) + offsets,
        ]
    ).astype(np.int64)
