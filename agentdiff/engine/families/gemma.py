"""DiffusionGemma, native in transformers: a causal encoder fills the cache, a decoder scores a canvas against it.

The decoder's canvas sees itself and what the cache holds of the prefix, which in sliding layers is its last
`sliding_window - 1` positions. The logits of a step condition the next one (self-conditioning).

Shapes: B batch, T new positions, S cached positions, L canvas, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.compat import cached, load_stock_folder, run_decoder
from agentdiff.engine.families.compiled import call_compiled
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.stock import LoadOptions, additive, read_dtype
from agentdiff.engine.families.table import FamilySpec
from agentdiff.engine.families.traits import read_ends
from agentdiff.errors import ConfigurationError


class DiffusionGemmaFamily:
    """See `CanvasFamily`."""

    def __init__(self, model: PreTrainedModel, traits: FamilyTraits) -> None:
        self.model = model.eval().requires_grad_(requires_grad=False)
        self._traits = traits
        native: Any = model
        self._encoder: Any = native.model.encoder.language_model
        self._decoder: Any = native.model.decoder
        self._head: Any = native.lm_head
        text: Any = model.config.get_text_config()
        self._layers: int = text.num_hidden_layers
        self._window: int = text.sliding_window
        self._cap: float | None = text.final_logit_softcapping
        self._is_boolean = text._attn_implementation == "sdpa"

    @classmethod
    def load(cls, spec: FamilySpec, reading: Reading, options: LoadOptions) -> Self:
        """Load a checkpoint folder that transformers wrote.

        Raises:
            ConfigurationError: A value of its config is missing or cannot be, or an option has no meaning for it.
        """
        asked = options.traits
        if asked.mask_id is not None or asked.shift not in (None, "none"):
            raise ConfigurationError(f"a `{spec.name}` model has neither a mask id nor a shift")
        if asked.attention not in (None, "canvas"):
            raise ConfigurationError(f"a `{spec.name}` model cannot run with `{asked.attention}`")
        if options.adapter is not None:
            raise ConfigurationError(f"adapters for `{spec.name}` models cannot be loaded")
        text = Reading(reading.path, reading.need("text_config"))
        vocab_size = text.count("vocab_size")
        canvas = reading.count("canvas_length")
        ends = Reading(reading.path, {"eos_token_id": text.get("eos_token_id")})
        traits = FamilyTraits(
            name=spec.name,
            vocab_size=vocab_size,
            mask_id=None,
            eos_ids=read_ends(spec, ends, vocab_size=vocab_size),
            pad_id=text.get("pad_token_id"),
            block_len=asked.block_len or canvas,
            context_len=text.count("max_position_embeddings"),
            attention="canvas",
        )
        native: type[PreTrainedModel] = getattr(transformers, spec.native)
        named = {**options.native, "attn_implementation": options.attn_implementation}
        dtype = options.dtype or read_dtype(reading, options.device)
        try:
            model = load_stock_folder(native, reading.path.parent, dtype=dtype, options=named)
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise ConfigurationError(
                f"`{reading.path.parent}`, written by transformers {reading.get('transformers_version')}, cannot be "
                f"loaded by transformers {transformers.__version__}: {error}"
            ) from error
        if "device_map" not in named and "quantization_config" not in named:
            model = model.to(options.device)  # pyright: ignore[reportArgumentType]
        return cls(model, traits)

    def with_traits(self, traits: FamilyTraits) -> Self:
        """The same model under other traits. Nothing is copied."""
        return type(self)(self.model, traits)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """What may be compiled."""
        return self._encoder, self._decoder

    @property
    def traits(self) -> FamilyTraits:
        """See `CanvasFamily.traits`."""
        return self._traits

    @property
    def device(self) -> torch.device:
        """See `CanvasFamily.device`."""
        return self._decoder.embed_tokens.weight.device

    def encode(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> Sequence[LayerKV]:
        """See `CanvasFamily.encode`."""
        held = past[0].keys.shape[2] if past else 0
        columns = torch.arange(held, device=ids.device).expand(len(ids), -1)
        distance = positions[:, :, None] - torch.cat([columns, positions], 1)[:, None, :]
        masks = self._masks(mask, (distance < self._window)[:, None])
        _, own = call_compiled(
            self._encoder,
            lambda: run_decoder(
                self._encoder, ids, positions=positions, mask=masks, past=past, layers=self._layers
            ),
        )
        return own

    def decode(
        self,
        canvas: Tensor,
        *,
        positions: Tensor,
        mask: Tensor,
        past: Sequence[LayerKV],
        conditioning: Tensor | None,
        conditioned: Tensor | None,
    ) -> Tensor:
        """See `CanvasFamily.decode`."""
        held, length = past[0].keys.shape[2], canvas.shape[1]
        first = positions[:, :1] - (self._window - 1)
        kept = torch.arange(held, device=canvas.device) >= first
        near = torch.cat([kept, kept.new_ones(len(canvas), length)], 1)
        masks = self._masks(mask, near[:, None, None])
        hidden: Tensor = call_compiled(
            self._decoder,
            lambda: (
                self._decoder(
                    decoder_input_ids=canvas,
                    decoder_position_ids=positions,
                    decoder_attention_mask=masks,
                    self_conditioning_logits=conditioning,
                    self_conditioning_mask=conditioned,
                    **cached(self._decoder, past),
                ).last_hidden_state
            ),
        )
        logits = self._head(hidden)
        if self._cap is not None:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits.float()

    def _masks(self, mask: Tensor, near: Tensor) -> dict[str, Tensor]:
        masks = {"full_attention": mask, "sliding_attention": mask & near}
        if self._is_boolean:
            return masks
        return {kind: additive(each, self.model.dtype) for kind, each in masks.items()}
