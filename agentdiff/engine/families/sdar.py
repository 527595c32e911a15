"""SDAR and TraDo behind the engine of version 1, whose seam they still have (`LegacyFamily`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentdiff.engine.cache import LayerKV, Prefix, extend, stack
from agentdiff.engine.families.stock import StockFamily

PREFILL_TOKENS = 2048
"""Prompt positions encoded together, so that the mask [T, S + T] stays small."""


class SdarFamily(StockFamily):
    """A stock family that can also encode, score and store blocks by itself."""

    def prefill(self, prompt: Sequence[int]) -> tuple[Prefix, tuple[int, ...]]:
        """See `LegacyFamily.prefill`. A prompt shorter than one block is all tail."""
        block_len = self._traits.block_len
        whole = len(prompt) // block_len * block_len
        stride = max(1, PREFILL_TOKENS // block_len) * block_len
        config = self.model.config
        shape = (1, config.num_key_value_heads, 0, config.head_dim)
        none = torch.empty(shape, device=self.device, dtype=self.model.dtype)
        prefix = Prefix((LayerKV(none, none),) * self._layers, 0)
        for start in range(0, whole, stride):
            part = torch.tensor([list(prompt[start : min(start + stride, whole)])])
            (prefix,) = self.append(part, [prefix])
        return prefix, tuple(prompt[whole:])

    def denoise(self, blocks: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
        """See `LegacyFamily.denoise`."""
        hidden, _ = self._behind(blocks, prefixes)
        return self.head(hidden).log_softmax(-1)

    def append(self, blocks: Tensor, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """See `LegacyFamily.append`; takes several blocks at once as well: [B, n · L]."""
        _, layers = self._behind(blocks, prefixes)
        return [
            extend(
                prefix, [LayerKV(kv.keys[row : row + 1], kv.values[row : row + 1]) for kv in layers]
            )
            for row, prefix in enumerate(prefixes)
        ]

    def _behind(self, ids: Tensor, prefixes: Sequence[Prefix]) -> tuple[Tensor, Sequence[LayerKV]]:
        past, valid = stack(prefixes)
        offsets = torch.arange(ids.shape[1], device=valid.device)
        blocks = offsets // self._traits.block_len
        own = blocks[None, :] <= blocks[:, None]
        mask = torch.cat(
            [valid[:, None].expand(-1, len(offsets), -1), own.expand(len(prefixes), -1, -1)], 2
        )[:, None]
        positions = valid.sum(1, keepdim=True) + offsets
        return self.run(ids.to(valid.device), positions=positions, mask=mask, past=past)
