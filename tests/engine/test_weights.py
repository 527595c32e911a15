from __future__ import annotations

import json

import pytest
import torch

from agentdiff.engine import load_family
from agentdiff.engine.families.router import RouterFamily
from agentdiff.engine.weights import quantize_rows, read_weights, write_weights
from agentdiff.errors import ConfigurationError
from tests.engine.toys import toy_family


def test_int8_rows_come_back_within_half_a_step_and_vectors_exactly(tmp_path) -> None:
    tensors = {"a": torch.randn(12, 40), "shift": torch.randn(2, 8), "v": torch.randn(7)}
    names = write_weights(quantize_rows(tensors), tmp_path, shard_bytes=300)
    back = read_weights(tmp_path)
    assert len(names) > 1
    assert back.keys() == tensors.keys()
    step = tensors["a"].abs().amax(1, keepdim=True) / 127
    assert ((back["a"] - tensors["a"]).abs() <= step / 2 + 1e-6).all()
    assert torch.equal(back["v"], tensors["v"])
    assert torch.equal(back["shift"], tensors["shift"])


def test_a_saved_router_loads_and_computes_the_same(tmp_path) -> None:
    family = toy_family()
    write_weights(dict(family.model.state_dict()), tmp_path, shard_bytes=10_000)
    config = {
        "model_type": "agentdiff_router",
        "vocab_size": 101,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "slots": True,
        "block_length": 8,
        "mask_token_id": 0,
        "eos_token_id": [1],
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    vocabulary = {piece: number for number, piece in enumerate(["(", ",", ")", "Ċ"], 10)}
    marks = [{"content": "<|tools|>", "id": 20}, {"content": "<|user|>", "id": 21}]
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": marks}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    loaded = load_family(tmp_path, device="cpu")
    assert isinstance(loaded, RouterFamily)
    assert loaded.traits == family.traits
    for name, tensor in family.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no config\.json"):
        load_family(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigurationError, match="'gpt2', which is not supported"):
        load_family(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "agentdiff_router", "vocab_size": 4}')
    with pytest.raises(ConfigurationError, match=r"has no `model\.safetensors`"):
        load_family(tmp_path)
