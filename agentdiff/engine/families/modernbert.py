"""ModernBERT chat models: an encoder, so it keeps no keys and values, and most of its layers see a window only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.compiled import call_compiled
from agentdiff.engine.families.stock import StockFamily
from agentdiff.errors import ConfigurationError


class ModernBertFamily(StockFamily):
    """See `Family`. Nothing of a pass can be kept: `past` must be empty, and no pairs come back."""

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, Sequence[LayerKV]]:
        """See `Family.run`.

        Raises:
            ConfigurationError: Something is cached.
        """
        if past:
            raise ConfigurationError(
                "a `modernbert` model keeps no keys and values; decode it without a cache"
            )
        reach: int = self.model.config.sliding_window
        near = (positions[:, :, None] - positions[:, None, :]).abs() <= reach
        masks = {
            "full_attention": self._native_mask(mask),
            "sliding_attention": self._native_mask(mask & near[:, None]),
        }
        output = call_compiled(
            self._decoder,
            lambda: self._decoder(input_ids=ids, attention_mask=masks, position_ids=positions),
        )
        return output.last_hidden_state, ()

    def head(self, hidden: Tensor) -> Tensor:
        """See `Family.head`."""
        model: Any = self.model
        dense: nn.Module = model.head
        return self._head(dense(hidden)).float()
