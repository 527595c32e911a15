"""MDLM and BD3-LM: the diffusion transformer of both papers, which no stock class computes.

arXiv 2406.07524 and 2503.09573. A pre-norm transformer whose norms are modulated by the noise level. The published
models are not conditioned on it (it is set to zero), so the modulation is the same in every pass: it is computed once,
at load, and what is left is a plain transformer with fixed scales, shifts and gates.

Shapes: B batch, T new positions, S cached positions, V vocabulary, H heads, D head dim, E width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.router_model import rotary, rotate
from agentdiff.engine.families.stock import LoadOptions, read_dtype
from agentdiff.engine.families.table import FamilySpec
from agentdiff.engine.families.traits import read_traits
from agentdiff.engine.weights import Stored, open_checkpoint
from agentdiff.errors import ConfigurationError

FREQUENCIES = 256
"""Width of the sinusoids that a noise level is embedded by."""


class Modulation(NamedTuple):
    """What the noise level does to one sublayer: [E] each; the gate is 1 where there is none."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DitLayer:
    """One layer's weights."""

    attention: Modulation
    mlp: Modulation
    norm1: Tensor
    qkv: Tensor
    out: Tensor
    norm2: Tensor
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DitModel:
    """All weights of a model."""

    heads: int
    embedding: Tensor
    """[V, E]"""
    layers: Sequence[DitLayer]
    last: Modulation
    norm: Tensor
    output: tuple[Tensor, Tensor]


class DitFamily:
    """See `Family`."""

    def __init__(self, model: DitModel, traits: FamilyTraits) -> None:
        self.model = model
        self._traits = traits

    @classmethod
    def load(cls, spec: FamilySpec, reading: Reading, options: LoadOptions) -> Self:
        """Load a checkpoint of the authors' hub format.

        Raises:
            ConfigurationError: A value of its config is missing or cannot be, or the weights do not fit it.
        """
        for name, *allowed in (("time_conditioning", False), ("causal", False)):
            reading.must_be(name, *allowed, why="such a model needs what the published ones do not")
        for name in ("adapter", "native"):
            if getattr(options, name):
                raise ConfigurationError(f"a `{spec.name}` model takes no transformers options")
        vocab_size = reading.count("vocab_size")
        # The authors add one id behind their tokenizer's, and mask with it.
        values = {"mask_token_id": vocab_size - 1, **reading.values}
        traits = read_traits(
            spec,
            Reading(reading.path, values),
            options.traits,
            vocab_size=vocab_size,
            context_len=reading.count("model_length"),
        )
        return cls(read_model(reading, options), traits)

    def with_traits(self, traits: FamilyTraits) -> Self:
        """The same model under other traits. Nothing is copied."""
        return type(self)(self.model, traits)

    @property
    def traits(self) -> FamilyTraits:
        """See `Family.traits`."""
        return self._traits

    @property
    def device(self) -> torch.device:
        """See `Family.device`."""
        return self.model.embedding.device

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, Sequence[LayerKV]]:
        """See `Family.run`."""
        x = self.model.embedding[ids]
        heads = self.model.heads
        cos, sin = rotary(positions, head_dim=x.shape[-1] // heads, theta=10_000.0, dtype=x.dtype)
        own: list[LayerKV] = []
        for number, layer in enumerate(self.model.layers):
            qkv = F.linear(_norm(x, layer.norm1, layer.attention), layer.qkv)
            qkv = qkv.view(*ids.shape, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, keys, values = qkv.unbind(0)
            own.append(LayerKV(rotate(keys, cos, sin), values))
            keys, values = own[-1]
            if past:
                keys = torch.cat([past[number].keys, keys], 2)
                values = torch.cat([past[number].values, values], 2)
            query = rotate(query, cos, sin)
            seen = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            mixed = F.linear(seen.transpose(1, 2).flatten(2), layer.out)
            x = x + layer.attention.gate * mixed
            inner = F.gelu(
                F.linear(_norm(x, layer.norm2, layer.mlp), *layer.up), approximate="tanh"
            )
            x = x + layer.mlp.gate * F.linear(inner, *layer.down)
        return _norm(x, self.model.norm, self.model.last), own

    def head(self, hidden: Tensor) -> Tensor:
        """See `Family.head`."""
        return F.linear(hidden, *self.model.output).float()


def read_model(reading: Reading, options: LoadOptions) -> DitModel:
    """The weights of a checkpoint folder.

    Raises:
        ConfigurationError: Tensors are missing, or of a shape that the config does not ask for.
    """
    folder = reading.path.parent
    stored = open_checkpoint(folder)
    dtype = options.dtype or read_dtype(reading, options.device)
    width, heads = reading.count("hidden_dim"), reading.count("n_heads")
    if width % heads:
        raise reading.wrong("hidden_dim", f"it must be a multiple of the {heads} heads")

    def take(name: str, *shape: int) -> Tensor:
        return _take(stored, f"backbone.{name}", shape, folder=str(folder)).to(
            options.device, dtype
        )

    def linear(name: str, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        return take(f"{name}.weight", rows, columns), take(f"{name}.bias", rows)

    condition: Tensor | None = None
    inner = 0
    if reading.get("adaln", True):
        inner = reading.count("cond_dim")
        # The embedding of noise level 0: the cosines are 1, the sines 0.
        level = torch.cat([torch.ones(FREQUENCIES // 2), torch.zeros(FREQUENCIES // 2)])
        level = level.to(options.device, dtype)
        first = F.silu(F.linear(level, *linear("sigma_map.mlp.0", inner, FREQUENCIES)))
        condition = F.silu(F.linear(first, *linear("sigma_map.mlp.2", inner, inner)))

    def modulations(name: str, count: int) -> list[Tensor]:
        """So many vectors [E], in the authors' order: shift, scale, gate of each sublayer."""
        if condition is None:
            zero = torch.zeros(width, device=options.device, dtype=dtype)
            return [torch.ones_like(zero) if place % 3 == 2 else zero for place in range(count)]
        weights = linear(f"{name}.adaLN_modulation", count * width, inner)
        return list(F.linear(condition, *weights).chunk(count))

    layers: list[DitLayer] = []
    for number in range(reading.count("n_blocks")):
        name = f"blocks.{number}"
        six = modulations(name, 6)
        layers.append(
            DitLayer(
                attention=Modulation(*six[:3]),
                mlp=Modulation(*six[3:]),
                norm1=take(f"{name}.norm1.weight", width),
                qkv=take(f"{name}.attn_qkv.weight", 3 * width, width),
                out=take(f"{name}.attn_out.weight", width, width),
                norm2=take(f"{name}.norm2.weight", width),
                up=linear(f"{name}.mlp.0", 4 * width, width),
                down=linear(f"{name}.mlp.2", width, 4 * width),
            )
        )
    vocab_size = reading.count("vocab_size")
    shift, scale = modulations("output_layer", 2)
    return DitModel(
        heads=heads,
        embedding=take("vocab_embed.embedding", vocab_size, width),
        layers=layers,
        last=Modulation(shift, scale, torch.ones_like(shift)),
        norm=take("output_layer.norm_final.weight", width),
        output=linear("output_layer.linear", vocab_size, width),
    )


def _norm(x: Tensor, weight: Tensor, modulation: Modulation) -> Tensor:
    normed = F.layer_norm(x.float(), weight.shape).to(x.dtype) * weight
    return normed * (1 + modulation.scale) + modulation.shift


def _take(stored: dict[str, Stored], name: str, shape: tuple[int, ...], *, folder: str) -> Tensor:
    if name not in stored:
        raise ConfigurationError(f"`{folder}` lacks the tensor `{name}`")
    if stored[name].shape != shape:
        raise ConfigurationError(
            f"`{folder}`: `{name}` has the shape {stored[name].shape}, but config.json asks for {shape}"
        )
    assert math.prod(shape) == stored[name].numel
    return stored[name].whole()[...]
