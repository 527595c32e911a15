"""A mask model as a stock transformers class: its decoder run with an explicit mask, its head on what one asks for.

Everything that differs between families stands in their row of the table; there is no modelling code here.

Shapes: B batch, T new positions, S cached positions, V vocabulary, E hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.compat import load_stock, run_decoder, tied_names
from agentdiff.engine.families.compiled import call_compiled
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.keys import arrange, rename
from agentdiff.engine.families.table import FamilySpec
from agentdiff.engine.families.traits import TraitOptions, read_traits
from agentdiff.engine.weights import open_checkpoint
from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a checkpoint is loaded."""

    device: torch.device
    dtype: torch.dtype | None = None
    """None: float32 on a CPU, elsewhere what the config names, or bfloat16."""
    adapter: Path | None = None
    """A LoRA adapter for the checkpoint."""
    traits: TraitOptions = field(default_factory=TraitOptions)
    attn_implementation: str = "sdpa"
    native: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of transformers' `from_pretrained`, by name: `device_map`, `quantization_config` and their kin."""


class StockFamily:
    """See `Family`."""

    def __init__(self, model: PreTrainedModel, traits: FamilyTraits) -> None:
        self.model = model.eval().requires_grad_(requires_grad=False)
        self._traits = traits
        self._decoder: nn.Module = model.base_model
        self._head: nn.Module = model.get_output_embeddings()  # pyright: ignore[reportAttributeAccessIssue]
        self._layers: int = model.config.num_hidden_layers
        self._is_boolean = model.config._attn_implementation == "sdpa"  # pyright: ignore[reportPrivateUsage]

    @classmethod
    def load(cls, spec: FamilySpec, reading: Reading, options: LoadOptions) -> Self:
        """Load a checkpoint folder as a row of the table says.

        Raises:
            ConfigurationError: A value of its config is missing or cannot be, or the weights do not fit it.
        """
        native: type[PreTrainedModel] = getattr(transformers, spec.native)
        fields = spec.config(reading)
        embedding = open_checkpoint(reading.path.parent).get(spec.padded_vocabulary)
        if embedding is not None:
            fields["vocab_size"] = embedding.shape[0]
        config: Any = native.config_class(**fields)  # pyright: ignore[reportOptionalCall]
        traits = read_traits(
            spec,
            reading,
            options.traits,
            vocab_size=config.vocab_size,
            context_len=config.max_position_embeddings,
        )
        return cls(load_model(native, config, spec, reading, options), traits)

    def with_traits(self, traits: FamilyTraits) -> Self:
        """The same model under other traits: another block length, say. Nothing is copied."""
        return type(self)(self.model, traits)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """What may be compiled."""
        return (self._decoder,)

    @property
    def traits(self) -> FamilyTraits:
        """See `Family.traits`."""
        return self._traits

    @property
    def device(self) -> torch.device:
        """See `Family.device`."""
        return self.model.get_input_embeddings().weight.device  # pyright: ignore[reportReturnType]

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, Sequence[LayerKV]]:
        """See `Family.run`."""
        return call_compiled(
            self._decoder,
            lambda: run_decoder(
                self._decoder,
                ids,
                positions=positions,
                mask=self._native_mask(mask),
                past=past,
                layers=self._layers,
            ),
        )

    def head(self, hidden: Tensor) -> Tensor:
        """See `Family.head`."""
        return self._head(hidden).float()

    def _native_mask(self, mask: Tensor) -> Tensor:
        """The mask as the attention wants it: eager attention adds it to scores, where a boolean would be wrong."""
        return mask if self._is_boolean else additive(mask, self.model.dtype)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as one that is added to scores: 0 where visible, else the lowest number."""
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)


def load_model(
    native: type[PreTrainedModel],
    config: Any,
    spec: FamilySpec,
    reading: Reading,
    options: LoadOptions,
) -> PreTrainedModel:
    """The stock model with the checkpoint's weights, never holding more than one of them twice.

    Raises:
        ConfigurationError: The weights do not fit the config, or the adapter does not fit the weights.
    """
    folder = reading.path.parent
    dtype = options.dtype or read_dtype(reading, options.device)
    with torch.device("meta"):
        skeleton = native(config)
    quantized = reading.get("quantization_config")
    named: dict[str, Any] = {**options.native, "attn_implementation": options.attn_implementation}
    if quantized is not None:
        named.setdefault("quantization_config", quantized)
    stored = open_checkpoint(folder)
    if quantized is not None:  # its tensors are the quantiser's business: only their names are ours
        tensors: dict[str, Any] = {
            target: tensor.whole()
            for name, tensor in stored.items()
            if (target := rename(name, spec.renames))
        }
    else:
        tensors = {
            **arrange(
                stored,
                {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()},
                renames=spec.renames,
                tied=tied_names(skeleton),
                dtype=dtype,
                folder=folder,
            )
        }
    model = load_stock(native, config, tensors, dtype=dtype, options=named)
    if options.adapter is not None:
        from agentdiff.engine.families.lora import apply_adapter

        model = apply_adapter(
            model,
            options.adapter,
            renames=spec.renames,
            merge="quantization_config" not in named,
        )
    return (
        model if "device_map" in named or "quantization_config" in named else _moved(model, options)
    )


def read_dtype(reading: Reading, device: torch.device) -> torch.dtype:
    """Float32 on a CPU; elsewhere the type that the config names, bfloat16 if it names none.

    Raises:
        ConfigurationError: It names something that is no floating-point type of torch.
    """
    if device.type == "cpu":
        return torch.float32
    name = reading.get("dtype") or reading.get("torch_dtype") or "bfloat16"
    return to_dtype(str(name), f"`{reading.path}`: `dtype`")


def to_dtype(name: str, what: str) -> torch.dtype:
    """A floating-point type by its name.

    Raises:
        ConfigurationError: There is none of that name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigurationError(f"{what} is {name!r}, which is no floating-point type")
    return dtype


def _moved(model: PreTrainedModel, options: LoadOptions) -> PreTrainedModel:
    return model.to(options.device)  # pyright: ignore[reportArgumentType]
