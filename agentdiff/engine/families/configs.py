"""The `config.json` of a published checkpoint as the fields of a stock transformers config.

Each function knows one way of writing configs: what its values are called there, which ones the stock class cannot
express (they are refused, never ignored), and what the reference code hard-codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentdiff.errors import ConfigurationError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of one config file; what is missing or cannot be is an error that says so."""

    path: Path
    values: Mapping[str, Any]

    def need(self, name: str) -> Any:
        """A value that must be there.

        Raises:
            ConfigurationError: It is missing or null.
        """
        value = self.values.get(name)
        if value is None:
            raise ConfigurationError(
                f"`{self.path}` lacks the value `{name}`; add it as the model's authors give it"
            )
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or the default where it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        """A positive whole number.

        Raises:
            ConfigurationError: It is something else, or missing without a default.
        """
        value = self.need(name) if default is None else self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, "it must be a positive whole number")
        return value

    def must_be(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse a value other than the allowed ones; missing and null are always allowed.

        Raises:
            ConfigurationError: It has another value.
        """
        if self.values.get(name) is not None and self.values[name] not in allowed:
            raise self.wrong(name, f"{why}; only {' or '.join(map(repr, allowed))} can be loaded")

    def wrong(self, name: str, why: str) -> ConfigurationError:
        """An error about one value."""
        return ConfigurationError(f"`{self.path}`: `{name}` is {self.values.get(name)!r}: {why}")


def decoder(reading: Reading) -> Fields:
    """What Llama, Qwen2, Qwen3 and their kin have in common, under the names that transformers uses."""
    fields: Fields = {
        name: reading.count(name)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        )
    }
    heads = fields["num_attention_heads"]
    fields["num_key_value_heads"] = reading.count("num_key_value_heads")
    if heads % fields["num_key_value_heads"]:
        raise reading.wrong("num_key_value_heads", f"it must divide the {heads} attention heads")
    if reading.get("head_dim") is None and fields["hidden_size"] % heads:
        raise reading.wrong("hidden_size", f"it must be a multiple of the {heads} heads")
    reading.must_be(
        "use_sliding_window",
        False,
        why="a sliding window contradicts attention over whole blocks",
    )
    for name in ("head_dim", "hidden_act", "rms_norm_eps", "attention_bias", "tie_word_embeddings"):
        if reading.get(name) is not None:
            fields[name] = reading.get(name)
    fields["rope_parameters"] = rope(reading)
    return fields


def rope(reading: Reading) -> Fields:
    """The rotary embedding, as transformers 5 writes it, from either way of writing it."""
    if reading.get("rope_parameters") is not None:
        return dict(reading.get("rope_parameters"))
    scaling = dict(reading.get("rope_scaling", {}))
    kind = scaling.pop("type", "default")
    return {"rope_type": kind, **scaling, "rope_theta": reading.need("rope_theta")}


def experts(reading: Reading) -> Fields:
    """A Qwen3-MoE shape (SDAR-MoE)."""
    fields = decoder(reading)
    for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        fields[name] = reading.count(name)
    for name in ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"):
        if reading.get(name) is not None:
            fields[name] = reading.get(name)
    return fields


def ministral3(reading: Reading) -> Fields:
    """A Ministral 3, whose attention also scales queries by their position (Nemotron-Labs-Diffusion)."""
    fields = decoder(reading)
    for name in ("llama_4_scaling_beta", "original_max_position_embeddings"):
        if fields["rope_parameters"].get(name) is None:
            raise reading.wrong("rope_parameters", f"it lacks `{name}`, which a Ministral 3 needs")
    return fields


def llada(reading: Reading) -> Fields:
    """LLaDA's own names (those of OLMo) for a Llama."""
    heads = reading.count("n_heads")
    width = reading.count("d_model")
    groups = 1 if reading.get("multi_query_attention") else reading.count("n_kv_heads", heads)
    if heads % groups:
        raise reading.wrong("n_kv_heads", f"it must divide the {heads} heads")
    for name, allowed in (
        ("block_type", "llama"),
        ("layer_norm_type", "rms"),
        ("activation_type", "silu"),
        ("rope", True),
        ("alibi", False),
        ("include_bias", False),
        ("include_qkv_bias", False),
        ("bias_for_layer_norm", False),
        ("attention_layer_norm", False),
        ("input_emb_norm", False),
        ("scale_logits", False),
    ):
        reading.must_be(name, allowed, why="the weights of such a model are not those of a Llama")
    return {
        "vocab_size": reading.count("embedding_size", reading.count("vocab_size")),
        "hidden_size": width,
        "intermediate_size": reading.count(
            "mlp_hidden_size", int(reading.get("mlp_ratio", 4)) * width
        ),
        "num_hidden_layers": reading.count("n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": reading.count("max_sequence_length"),
        "rms_norm_eps": reading.get("rms_norm_eps", 1e-5),
        "rope_parameters": {"rope_type": "default", "rope_theta": reading.need("rope_theta")},
        "tie_word_embeddings": reading.get("weight_tying", False),
    }


def llada_moe(reading: Reading) -> Fields:
    """LLaDA-MoE: a Qwen3-MoE whose router weights are never renormalised, whatever its config says."""
    for name, *allowed in (
        ("qk_layernorm", True),
        ("clip_qkv",),
        ("shared_expert_intermediate_size", 0),
        ("moe_router_score_function", "softmax"),
        ("moe_router_enable_expert_bias", False),
        ("router_num_group", 0, 1),
        ("routed_scaling_factor", 1, 1.0),
        ("partial_rotary_factor", 1, 1.0),
    ):
        reading.must_be(name, *allowed, why="the stock class has no such part")
    layers = reading.count("num_hidden_layers")
    sparse = reading.get("moe_layer_freq", [1] * layers)
    if len(sparse) != layers:
        raise reading.wrong("moe_layer_freq", f"it must have one entry for each of {layers} layers")
    inner = reading.count("expert_intermediate_size")
    values = dict(reading.values) | {
        "moe_intermediate_size": inner,
        "intermediate_size": reading.count("dense_intermediate_size", inner),
    }
    return experts(Reading(reading.path, values)) | {
        "norm_topk_prob": False,
        "mlp_only_layers": [place for place, kind in enumerate(sparse) if not kind],
        "decoder_sparse_step": 1,
    }


def llada2(reading: Reading) -> Fields:
    """LLaDA2.x (the names of Ling) for a GLM-4 MoE."""
    for name, *allowed in (
        ("score_function", "sigmoid"),
        ("use_qk_norm", True),
        ("use_rmsnorm", True),
        ("use_bias", False),
        ("norm_head", False),
        ("norm_softmax", False),
    ):
        reading.must_be(name, *allowed, why="the stock class has no such part")
    routed = reading.count("num_experts")
    groups, kept = reading.count("n_group"), reading.count("topk_group")
    if reading.get("expert_capacity") is not None:
        groups, kept = 1, 1  # block routing takes the place of groups
    if routed % groups or kept > groups:
        raise reading.wrong("n_group", f"{routed} experts, of which {kept} groups are kept")
    factor = reading.get("partial_rotary_factor", 1.0)
    return decoder(reading) | {
        "rope_parameters": {**rope(reading), "partial_rotary_factor": factor},
        "attention_bias": reading.get("use_qkv_bias", False),
        "use_qk_norm": True,
        "n_routed_experts": routed,
        "n_shared_experts": reading.count("num_shared_experts"),
        "num_experts_per_tok": reading.count("num_experts_per_tok"),
        "moe_intermediate_size": reading.count("moe_intermediate_size"),
        "first_k_dense_replace": reading.get("first_k_dense_replace", 0),
        "norm_topk_prob": reading.get("norm_topk_prob", True),
        "routed_scaling_factor": reading.get("routed_scaling_factor", 1.0),
        "n_group": groups,
        "topk_group": kept,
    }


def stock(reading: Reading) -> Fields:
    """A config that transformers wrote itself; its class checks the values."""
    known = {"architectures", "auto_map", "model_type", "transformers_version", "torch_dtype"}
    return {name: value for name, value in reading.values.items() if name not in known}
