"""SDAR and TraDo (JetLM/SDAR-*, Gen-Verse/TraDo-*): stock Qwen3 of transformers under a block mask.

Blocks are counted from position 0, prompt included: a position sees every earlier block and the
whole of its own (arXiv 2510.06303). So whole prompt blocks are encoded once, and the rest of the
prompt shares a block with the first generated tokens. The logits at a position score that position;
nothing is shifted.

What a checkpoint leaves out is what the reference decoder uses (JetAstra/SDAR, `generate.py`):

- mask id 151669, `<|MASK|>` of the published tokenizers (the reference asks the tokenizer);
- block length 4, the default of its command line; a checkpoint trained with longer blocks has to
  name them as `block_size`;
- end ids 151645 `<|im_end|>` and 151643 `<|endoftext|>`. Those of `generation_config.json`, which
  the reference reads, count as well as those of `config.json`, which may name only one of them.

Shapes: B batch, T new positions, L block, S cached prefix, V vocabulary, E model width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentdiff.engine.cache import LayerKV, Prefix, extend, stack
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.compat import run_decoder
from agentdiff.engine.weights import stream_weights
from agentdiff.errors import ConfigurationError

MASK_ID = 151669
EOS_IDS = (151645, 151643)
BLOCK_LEN = 4
PREFILL_TOKENS = 2048
"""Prompt positions encoded together, so that the mask [T, S + T] stays small."""

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
OPTIONAL = (
    "head_dim",
    "hidden_act",
    "attention_bias",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
)
"""Absent, these have Qwen3's defaults."""


class SdarFamily:
    """An SDAR checkpoint behind the engine: one block-causal sequence of prompt and reply."""

    def __init__(self, model: Qwen3ForCausalLM, traits: FamilyTraits) -> None:
        self.model = model.eval().requires_grad_(requires_grad=False)
        self._traits = traits
        shape: Qwen3Config = model.config
        heads = shape.num_key_value_heads or shape.num_attention_heads
        none = model.lm_head.weight.new_empty(1, heads, 0, shape.head_dim)
        self._empty = Prefix((LayerKV(none, none),) * shape.num_hidden_layers, 0)

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any], *, device: torch.device) -> SdarFamily:
        """Load a checkpoint folder whose `config.json` has `model_type` `sdar`.

        The weights are float32 on a CPU; elsewhere they have the type that the config names,
        bfloat16 if it names none.

        Raises:
            ConfigurationError: A special token lies outside the vocabulary, the attention is one
                that blocks do not have, or the weights do not fit the config.
            KeyError: A size is missing from the config.
        """
        traits = read_traits(folder, config)
        if config.get("use_sliding_window"):
            raise ConfigurationError(
                f"`{folder}` sets `use_sliding_window`, which an `sdar` model cannot have"
            )
        fields = {name: config[name] for name in REQUIRED}
        fields |= {name: config[name] for name in OPTIONAL if name in config}
        fields["attn_implementation"] = "sdpa"
        shape = Qwen3Config(**fields)
        with torch.device("meta"):
            model = Qwen3ForCausalLM(shape)
        # Frequencies are computed, not stored; on the meta device they have not been.
        model.model.rotary_emb = type(model.model.rotary_emb)(shape).to(device)
        dtype = torch.float32 if device.type == "cpu" else read_dtype(folder, config)
        state = fitting_weights(folder, model, device=device, dtype=dtype)
        model.load_state_dict(state, assign=True)
        return cls(model, traits)

    @property
    def traits(self) -> FamilyTraits:
        """Facts of the loaded model."""
        return self._traits

    def prefill(self, prompt: Sequence[int]) -> tuple[Prefix, tuple[int, ...]]:
        """See `Family.prefill`. A prompt shorter than one block is all tail."""
        block_len = self._traits.block_len
        whole = len(prompt) // block_len * block_len
        stride = max(1, PREFILL_TOKENS // block_len) * block_len
        prefix = self._empty
        for start in range(0, whole, stride):
            part = torch.tensor([list(prompt[start : min(start + stride, whole)])])
            (prefix,) = self.append(part, [prefix])
        return prefix, tuple(prompt[whole:])

    def denoise(self, blocks: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
        """See `Family.denoise`."""
        hidden, _ = self._run(blocks, prefixes)
        return self.model.lm_head(hidden).float().log_softmax(-1)

    def append(self, blocks: Tensor, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """See `Family.append`; takes several blocks at once as well: [B, n · L]."""
        _, layers = self._run(blocks, prefixes)
        return [
            extend(
                prefix, [LayerKV(kv.keys[row : row + 1], kv.values[row : row + 1]) for kv in layers]
            )
            for row, prefix in enumerate(prefixes)
        ]

    def _run(self, ids: Tensor, prefixes: Sequence[Prefix]) -> tuple[Tensor, list[LayerKV]]:
        """Run tokens behind their prefixes.

        ids [B, n · L] -> (hidden [B, n · L, E], own keys and values per layer).
        """
        past, valid = stack(prefixes)
        ids = ids.to(valid.device)
        offsets = torch.arange(ids.shape[1], device=valid.device)
        positions = valid.sum(1, keepdim=True) + offsets
        mask = block_mask(valid, offsets // self._traits.block_len, past[0].keys.dtype)
        return run_decoder(self.model.model, ids, positions=positions, mask=mask, past=past)


def block_mask(valid: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask of new positions behind a padded prefix.

    valid [B, S] bool, blocks [T] int64: the number of each position's block -> [B, 1, T, S + T]:
    0 where the key is valid in the prefix or lies in no later block than the query, else -inf.
    """
    batch, length = valid.shape[0], blocks.shape[0]
    own = blocks[None, :] <= blocks[:, None]
    visible = torch.cat(
        [valid[:, None, :].expand(-1, length, -1), own[None].expand(batch, -1, -1)], 2
    )[:, None]
    return torch.zeros(visible.shape, dtype=dtype, device=valid.device).masked_fill_(
        ~visible, -torch.inf
    )


def read_traits(folder: Path, config: Mapping[str, Any]) -> FamilyTraits:
    """What the engine needs to know, with the defaults named at the top.

    Raises:
        ConfigurationError: The mask id or an end id lies outside the vocabulary, or the block
            length is not positive.
    """
    path = folder / "generation_config.json"
    generation: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    eos_ids: list[int] = []
    for declared in (generation.get("eos_token_id"), config.get("eos_token_id")):
        if isinstance(declared, int):
            eos_ids.append(declared)
        elif declared is not None:
            eos_ids.extend(declared)
    traits = FamilyTraits(
        name="sdar",
        vocab_size=config["vocab_size"],
        mask_id=_given(config, "mask_token_id", MASK_ID),
        eos_ids=tuple(dict.fromkeys(eos_ids)) or EOS_IDS,
        block_len=_given(config, "block_size", BLOCK_LEN),
        context_len=config["max_position_embeddings"],
    )
    for what, token in [("mask", traits.mask_id), *(("eos", eos) for eos in traits.eos_ids)]:
        if not 0 <= token < traits.vocab_size:
            raise ConfigurationError(
                f"`{folder}`: the {what} token is {token}, outside the vocabulary of "
                f"{traits.vocab_size}; set `{what}_token_id` in its config.json"
            )
    if traits.block_len < 1:
        raise ConfigurationError(
            f"`{folder}`: `block_size` must be positive, got {traits.block_len}"
        )
    return traits


def read_dtype(folder: Path, config: Mapping[str, Any]) -> torch.dtype:
    """The floating-point type that the config names; bfloat16 if it names none.

    Raises:
        ConfigurationError: It names something that is no floating-point type of torch.
    """
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigurationError(
            f"`{folder}`: `dtype` is {name!r}, which is no floating-point type"
        )
    return dtype


def fitting_weights(
    folder: Path, model: Qwen3ForCausalLM, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The tensors of a folder under the model's names, each converted and moved as it is read.

    Raises:
        ConfigurationError: There are tensors missing, tensors too many, or tensors of another shape
            than the config says.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state: dict[str, Tensor] = {}
    unexpected: list[str] = []
    for name, tensor in stream_weights(folder):
        if name not in expected:
            unexpected.append(name)
        elif tuple(tensor.shape) != expected[name]:
            raise ConfigurationError(
                f"`{folder}`: `{name}` has the shape {tuple(tensor.shape)}, "
                f"but config.json asks for {expected[name]}"
            )
        else:
            state[name] = tensor.to(device, dtype)
    embedding = state.get("model.embed_tokens.weight")
    if model.config.tie_word_embeddings and embedding is not None:
        state["lm_head.weight"] = embedding
    for what, names in (
        ("lacks", [n for n in expected if n not in state]),
        ("has unknown", unexpected),
    ):
        if names:
            raise ConfigurationError(
                f"`{folder}` {what} tensors for a model of type 'sdar': {', '.join(names[:3])}"
                + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            )
    return state


def _given(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name)
    return default if value is None else value
