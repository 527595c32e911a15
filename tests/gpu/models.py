"""Random models in published shapes, made on the device: real sizes, no download.

Each is a golden config with larger numbers in it, read as the engine reads any checkpoint's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from agentdiff.constraint import Vocabulary
from agentdiff.constraint.bench import made_tokens
from agentdiff.engine import FamilyTraits
from agentdiff.engine.families.base import CanvasFamily, Family
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.gemma import DiffusionGemmaFamily
from agentdiff.engine.families.stock import StockFamily
from agentdiff.engine.families.traits import TraitOptions, read_traits
from agentdiff.engine.load import find_spec
from tests.gpu.parity import GOLDENS

TINY_VOCABULARY = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model, in the words of its config.

    Here those of SDAR-4B, of LLaDA2.0-mini with 8 of its 20 layers, and of a DiffusionGemma of a tenth of its size.
    """

    title: str
    golden: str
    """The folder whose config is enlarged."""
    vocab_size: int
    sizes: Mapping[str, Any]


SDAR = Shape(
    title="SDAR",
    golden="sdar",
    vocab_size=151_936,
    sizes={
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
    },
)
LLADA2 = Shape(
    title="LLaDA2",
    golden="llada2",
    vocab_size=157_184,
    sizes={
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "rotary_dim": 64,
        "max_position_embeddings": 4096,
    },
)
GEMMA = Shape(
    title="DiffusionGemma",
    golden="diffusion_gemma",
    vocab_size=65_536,
    sizes={
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "moe_intermediate_size": 704,
        "num_experts": 32,
        "top_k_experts": 4,
        "num_hidden_layers": 12,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
        "per_layer_config": {str(layer): {"head_dim": 256} for layer in (5, 11)},
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "max_position_embeddings": 4096,
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A model and its made-up vocabulary."""

    title: str
    family: Any
    vocabulary: Vocabulary

    @property
    def billions(self) -> float:
        """Parameters."""
        return sum(p.numel() for p in self.family.model.parameters()) / 1e9


def make(shape: Shape, *, device: str, dtype: str, block_len: int, tiny: bool) -> Made:
    """Make a model; `tiny` keeps the golden's sizes."""
    path = GOLDENS / shape.golden / "config.json"
    size = TINY_VOCABULARY if tiny else shape.vocab_size
    pieces = made_tokens(size - 2)
    end, mask = size - 2, size - 1
    vocabulary = Vocabulary([*pieces, None, None], (end,))
    values = json.loads(path.read_text("utf-8"))
    sizes = {**({} if tiny else shape.sizes), "vocab_size": size}
    torch.manual_seed(0)
    build = _gemma if shape is GEMMA else _mask_model
    family = build(
        Reading(path, values), sizes, end, mask, device=device, dtype=dtype, block_len=block_len
    )
    return Made(title=shape.title, family=family, vocabulary=vocabulary)


def _mask_model(
    reading: Reading,
    sizes: Mapping[str, Any],
    end: int,
    mask: int,
    *,
    device: str,
    dtype: str,
    block_len: int,
) -> Family:
    ids = {"eos_token_id": end, "pad_token_id": end, "bos_token_id": end, "mask_token_id": mask}
    values = {**reading.values, **sizes, **ids, "block_size": block_len}
    reading = Reading(reading.path, values)
    spec = find_spec(reading.path, values)
    native: Any = getattr(transformers, spec.native)
    config = native.config_class(**spec.config(reading))
    traits = read_traits(
        spec,
        reading,
        TraitOptions(block_len=block_len),
        vocab_size=config.vocab_size,
        context_len=config.max_position_embeddings,
    )
    return StockFamily(_random(native, config, device=device, dtype=dtype), traits)


def _gemma(
    reading: Reading,
    sizes: Mapping[str, Any],
    end: int,
    mask: int,
    *,
    device: str,
    dtype: str,
    block_len: int,
) -> CanvasFamily:
    text: dict[str, Any] = {**reading.values["text_config"], **sizes, "eos_token_id": [end]}
    images = {"boi_token_id": mask, "eoi_token_id": mask, "image_token_id": mask}
    values = {**reading.values, **images, "text_config": text, "canvas_length": block_len}
    native: Any = transformers.DiffusionGemmaForBlockDiffusion
    config = native.config_class(**{k: v for k, v in values.items() if k != "architectures"})
    traits = FamilyTraits(
        name="diffusion_gemma",
        vocab_size=text["vocab_size"],
        mask_id=None,
        eos_ids=(end,),
        block_len=block_len,
        context_len=text["max_position_embeddings"],
        attention="canvas",
    )
    return DiffusionGemmaFamily(_random(native, config, device=device, dtype=dtype), traits)


def _random(native: Any, config: Any, *, device: str, dtype: str) -> Any:
    with torch.device(device):
        model = native._from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.to(device)
