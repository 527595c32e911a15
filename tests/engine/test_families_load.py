"""Loading checkpoints: kinds without goldens, shards, types, adapters, memory, and what is refused."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import agentdiff.engine
from agentdiff.engine.families.base import Family
from agentdiff.engine.families.table import FAMILIES
from agentdiff.engine.load import find_spec
from agentdiff.engine.weights import INDEX, open_checkpoint, write_weights
from agentdiff.errors import ConfigurationError

GOLDENS = Path(__file__).parent.parent / "goldens"
CLOSE = 1e-5
load_family: Any = agentdiff.engine.load_family
"""Any: tests look at what is inside a family."""


# peft reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Matrices this small only wait for each other on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@torch.inference_mode()
def logits_of(family: Family, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """One pass over whole rows; by default every position sees all."""
    rows, length = ids.shape
    positions = torch.arange(length).expand(rows, -1)
    if mask is None:
        mask = torch.ones(rows, 1, length, length, dtype=torch.bool)
    hidden, _ = family.run(ids, positions=positions, mask=mask, past=())
    return family.head(hidden)


def golden(folder: Path, name: str, *, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    """A golden checkpoint under a changed config."""
    config = json.loads((GOLDENS / name / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in drop} | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((GOLDENS / name / "model.safetensors").read_bytes())
    return folder


# Kinds without goldens: a random stock model, written as such a checkpoint is.

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
SPARSE = SHAPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
YARN: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
    }
}
IDS = {"mask_token_id": 90, "eos_token_id": 91}


def kinds() -> list[Any]:
    """Name, architecture, fields of the stock config, what else stands in config.json, stored names, options."""

    def same(name: str) -> str:
        return name

    def diffugpt(name: str) -> str:
        return name.replace("transformer.wte", "embed_tokens").replace(
            "transformer.", "denoise_model."
        )

    def diffullama(name: str) -> str:
        return name.replace("model.embed_tokens", "embed_tokens").replace(
            "model.", "denoise_model.", 1
        )

    def nemotron(name: str) -> str:
        return name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head")

    gpt2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return [
        ("diffullama", "LlamaForCausalLM", SHAPE, IDS, diffullama, {"family": "diffullama"}),
        ("diffugpt", "GPT2LMHeadModel", gpt2, IDS, diffugpt, {"family": "diffugpt"}),
        ("a2d_qwen2", "A2DQwen2LMHeadModel", SHAPE, IDS, same, {}),
        ("a2d_llama", "A2DLlamaLMHeadModel", SHAPE, IDS, same, {"attention": "block_causal"}),
        ("sdar_moe", "SDARMoeForCausalLM", SPARSE, IDS, same, {}),
        ("stable_diffcoder", "StableDiffcoderForCausalLM", SHAPE, IDS, same, {}),
        ("nemotron", "NemotronLabsDiffusionModel", SHAPE | YARN, IDS, nemotron, {"block_len": 8}),
        (
            "modernbert",
            "ModernBertForMaskedLM",
            {
                "vocab_size": 96,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "global_attn_every_n_layers": 3,
                "local_attention": 8,
                "pad_token_id": 89,
                "bos_token_id": 88,
                "cls_token_id": 88,
                "sep_token_id": 87,
            },
            IDS,
            same,
            {},
        ),
    ]


@pytest.mark.parametrize(
    ("name", "architecture", "fields", "extra", "stored_name", "options"),
    kinds(),
    ids=[kind[0] for kind in kinds()],
)
def test_a_kind_without_goldens_computes_what_its_stock_class_computes(
    tmp_path: Path,
    name: str,
    architecture: str,
    fields: dict[str, Any],
    extra: dict[str, Any],
    stored_name: Callable[[str], str],
    options: dict[str, Any],
) -> None:
    (spec,) = [spec for spec in FAMILIES if spec.name == name]
    native: Any = getattr(transformers, spec.native)
    torch.manual_seed(0)
    model = native(native.config_class(**fields, attn_implementation="eager")).eval()
    tied = model.all_tied_weights_keys if model.config.tie_word_embeddings else {}
    state: dict[str, Tensor] = {}
    for key, tensor in model.state_dict().items():
        if key in tied:
            continue
        fused = re.fullmatch(r"(.*experts)\.(gate_up_proj|down_proj)", key)
        if fused is None:
            state[stored_name(key)] = tensor
            continue
        for number, expert in enumerate(tensor):  # published checkpoints keep experts apart
            kinds = ("gate", "up") if fused[2] == "gate_up_proj" else ("down",)
            for kind, part in zip(kinds, expert.chunk(len(kinds)), strict=True):
                state[f"{fused[1]}.{number}.{kind}_proj.weight"] = part.contiguous()
    save_file(state, tmp_path / "model.safetensors")
    config: dict[str, Any] = {**fields, **extra, "architectures": [architecture]}
    if name == "diffugpt":
        config["vocab_size"] -= 2  # its authors pad the embedding
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.warns(UserWarning, match=f"`{name}` models are mapped from published code"):
        family = load_family(tmp_path, device="cpu", **options)

    assert (family.traits.name, family.traits.mask_id) == (name, 90)
    assert family.traits.eos_ids[0] == 91
    ids = torch.randint(0, 80, (2, 20))
    with torch.inference_mode():
        if name == "modernbert":  # its window applies by itself
            expected = model(ids, attention_mask=torch.ones_like(ids)).logits
        else:
            visible = torch.zeros(2, 1, 20, 20)
            expected = model(ids, attention_mask=visible).logits
    assert float((logits_of(family, ids) - expected).abs().max()) < CLOSE


def test_mdlm_is_bd3lm_without_blocks(tmp_path: Path) -> None:
    golden(tmp_path, "bd3lm", architectures=["MDLM"], model_type="mdlm")
    with pytest.warns(UserWarning, match="`mdlm` models"):
        family = load_family(tmp_path, device="cpu")
    assert family.traits.attention == "bidirectional"
    ids = torch.randint(0, 400, (1, 8))
    blocks = load_family(GOLDENS / "bd3lm", device="cpu")
    assert torch.equal(logits_of(family, ids), logits_of(blocks, ids))


@pytest.mark.parametrize(
    ("source", "architecture", "name"),
    [
        ("inclusionAI/LLaDA2.1-mini", "LLaDA2MoeModelLM", "llada21"),
        ("inclusionAI/LLaDA2.2-flash", "LLaDA2MoeModelLM", "llada22"),
        ("models--inclusionAI--LLaDA2.0-mini/snapshots/2f1", "LLaDA2MoeModelLM", "llada2"),
        ("GSAI-ML/iLLaDA-8B-Instruct", "LLaDAModelLM", "illada"),
        ("GSAI-ML/LLaDA-8B-Instruct", "LLaDAModelLM", "llada"),
        ("inclusionAI/LLaDA-MoE-7B-A1B-Instruct", "LLaDAMoEModelLM", "llada_moe"),
        ("diffusionfamily/diffullama", "LlamaForCausalLM", "diffullama"),
    ],
)
def test_kinds_that_write_the_same_config_are_told_apart_by_their_name(
    source: str, architecture: str, name: str
) -> None:
    values = {"architectures": [architecture], "model_type": "llada"}
    assert find_spec(Path("config.json"), values, source=source).name == name


def test_a_name_says_whether_an_adapted_model_is_block_causal(tmp_path: Path) -> None:
    for name, attention in (("bd3lm", "block_causal"), ("mdlm", "bidirectional")):
        folder = tmp_path / f"Qwen3-0.6B-diffusion-{name}-v0.1"
        folder.mkdir()
        traits = load_family(golden(folder, "a2d_qwen3"), device="cpu").traits
        assert (traits.attention, traits.prompt_blocks) == (attention, "to_end")


def test_a_verified_kind_loads_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_family(GOLDENS / "llada", device="cpu")


def test_illada_is_llada_with_another_mask(tmp_path: Path) -> None:
    golden(tmp_path, "llada", drop=("mask_token_id",))
    with pytest.warns(UserWarning, match="`illada`"):
        family = load_family(tmp_path, device="cpu", family="illada")
    assert family.traits.mask_id == 5


# Block routing.


def test_block_routing_lets_a_token_choose_among_the_experts_of_its_block_only(
    tmp_path: Path,
) -> None:
    golden(tmp_path, "llada2", block_size=8, expert_capacity=3)
    family = load_family(tmp_path, device="cpu")
    plain = load_family(golden(tmp_path, "llada2", n_group=1, topk_group=1), device="cpu")
    layer = family.model.model.layers[1].mlp
    torch.manual_seed(0)
    blocks = torch.arange(24)[None].expand(2, -1) // 8
    family.routing.begin(blocks, torch.ones(2, 1, 24, 24, dtype=torch.bool))
    hidden = torch.randn(2, 24, 48)
    gate = layer.gate
    chosen, weights = family.routing.route(hidden, gate.weight, gate.e_score_correction_bias)

    scores = torch.sigmoid(hidden.view(48, 48) @ gate.weight.T)
    biased = scores + gate.e_score_correction_bias
    for block in range(6):  # by hand
        own = biased[block * 8 : block * 8 + 8]
        admitted = own.amax(0).topk(3).indices.tolist()
        assert len(set(chosen[block * 8 : block * 8 + 8].flatten().tolist())) <= 3
        for token in range(block * 8, block * 8 + 8):
            best = sorted(admitted, key=lambda expert: -float(biased[token, expert]))[:2]
            assert sorted(chosen[token].tolist()) == sorted(best)
            parts = scores[token, chosen[token]]
            torch.testing.assert_close(weights[token], parts / parts.sum() * 2.5)

    ids = torch.randint(0, 400, (2, 24))
    mask = (blocks[:, :, None] >= blocks[:, None, :])[:, None]
    assert not torch.allclose(logits_of(family, ids, mask), logits_of(plain, ids, mask))
    everybody = load_family(
        golden(tmp_path, "llada2", block_size=8, expert_capacity=8), device="cpu"
    )
    difference = logits_of(everybody, ids, mask) - logits_of(plain, ids, mask)
    assert float(difference.abs().max()) < 1e-4


def test_padding_does_not_speak_for_a_routed_block(tmp_path: Path) -> None:
    family = load_family(golden(tmp_path, "llada2", block_size=8, expert_capacity=3), device="cpu")
    ids = torch.randint(0, 400, (1, 8))
    alone = logits_of(family, ids[:, :6], None)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    mask[..., 6:] = False
    padded = logits_of(family, ids, mask)
    assert float((alone - padded[:, :6]).abs().max()) < CLOSE


def test_a_routed_model_needs_its_own_block_length(tmp_path: Path) -> None:
    golden(tmp_path, "llada2", block_size=8, expert_capacity=3)
    with pytest.raises(ConfigurationError, match="chosen per block, so 16 cannot"):
        load_family(tmp_path, device="cpu", block_len=16)
    golden(tmp_path, "llada2", expert_capacity=3)
    with pytest.raises(ConfigurationError, match="lacks the value `block_size`"):
        load_family(tmp_path, device="cpu")
    golden(tmp_path, "llada2", block_size=8, expert_capacity=1)
    with pytest.raises(ConfigurationError, match="`expert_capacity` is 1"):
        load_family(tmp_path, device="cpu")


# Shards, types, memory.


def test_shards_in_half_precision_load_in_single_precision(tmp_path: Path) -> None:
    stored = {
        name: tensor.bfloat16()
        for name, tensor in load_file(GOLDENS / "llada2" / "model.safetensors").items()
    }
    golden(tmp_path, "llada2")
    (tmp_path / "model.safetensors").unlink()
    assert len(write_weights(stored, tmp_path, shard_bytes=50_000)) > 2
    family = load_family(tmp_path, device="cpu")
    assert family.model.dtype == torch.float32
    save_file(
        {name: tensor.float() for name, tensor in stored.items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / INDEX).unlink()
    ids = torch.randint(0, 400, (1, 8))
    again = load_family(tmp_path, device="cpu")
    assert torch.equal(logits_of(family, ids), logits_of(again, ids))


def test_the_type_can_be_chosen_and_what_must_stay_single_does(tmp_path: Path) -> None:
    family = load_family(GOLDENS / "llada2", device="cpu", dtype="bfloat16")
    mlp = family.model.model.layers[1].mlp
    assert family.model.dtype == torch.bfloat16
    assert mlp.gate.e_score_correction_bias.dtype == torch.float32
    stored = load_file(GOLDENS / "llada2" / "model.safetensors")
    assert torch.equal(
        mlp.gate.e_score_correction_bias, stored["model.layers.1.mlp.gate.expert_bias"]
    )
    exact = logits_of(load_family(GOLDENS / "llada2", device="cpu"), torch.arange(8)[None])
    assert float((logits_of(family, torch.arange(8)[None]) - exact).abs().mean()) < 0.1
    with pytest.raises(ConfigurationError, match="`dtype` is 'int8'"):
        load_family(GOLDENS / "llada2", device="cpu", dtype="int8")
    with pytest.raises(ConfigurationError, match=r"`dtype` is 'int4'"):
        load_family(golden(tmp_path, "sdar", torch_dtype="int4"), device="meta")


def test_one_model_serves_other_traits_without_a_copy() -> None:
    family = load_family(GOLDENS / "a2d_qwen3", device="cpu")
    assert (family.traits.attention, family.traits.block_len) == ("bidirectional", 32)
    blocks = load_family(
        GOLDENS / "a2d_qwen3",
        device="cpu",
        attention="block_causal",
        block_len=8,
        shift="previous",
    )
    traits = blocks.traits
    assert (traits.attention, traits.block_len, traits.shift) == ("block_causal", 8, "previous")
    other = family.with_traits(traits)
    assert other.traits == traits
    assert other.model is family.model


def memory_kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures as Linux does")
def test_loading_takes_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    """Half-precision shards with single experts, loaded in single precision: the most work that loading can have."""
    shape = SPARSE | {
        "vocab_size": 16_384,
        "hidden_size": 256,
        "num_experts": 32,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 4,
        "head_dim": 64,
    }
    config_class: Any = transformers.Qwen3MoeConfig
    with torch.device("meta"):
        model = transformers.Qwen3MoeForCausalLM(config_class(**shape))
    state: dict[str, Tensor] = {}
    total = 0
    for key, tensor in model.state_dict().items():
        total += 4 * tensor.numel()
        if fused := re.fullmatch(r"(.*experts)\.(gate_up_proj|down_proj)", key):
            for number in range(len(tensor)):
                for kind in ("gate", "up") if fused[2] == "gate_up_proj" else ("down",):
                    rows = tensor.shape[1] // (2 if kind != "down" else 1)
                    state[f"{fused[1]}.{number}.{kind}_proj.weight"] = torch.zeros(
                        rows, tensor.shape[2], dtype=torch.bfloat16
                    )
        else:
            state[key] = torch.zeros(tensor.shape, dtype=torch.bfloat16)
    write_weights(state, tmp_path, shard_bytes=20_000_000)
    del state
    config = {**shape, **IDS, "architectures": ["SDARMoeForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the peak cannot be reset here")
    before = memory_kib("VmHWM")
    with pytest.warns(UserWarning, match="sdar_moe"):
        family = load_family(tmp_path, device="cpu")
    peak = (memory_kib("VmHWM") - before) * 1024
    assert family.model.num_parameters() * 4 == total
    assert total > 100e6
    assert peak < 1.2 * total


# Adapters.


def adapter(folder: Path, modules: dict[str, tuple[int, int]], **changes: Any) -> dict[str, Tensor]:
    """A LoRA adapter over modules of the published code, by their shapes (rows, columns); the deltas it makes."""
    tensors: dict[str, Tensor] = {}
    deltas: dict[str, Tensor] = {}
    for name, (rows, columns) in modules.items():
        down, up = torch.randn(4, columns), torch.randn(rows, 4)
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        deltas[name] = up @ down * 2.0
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({name.rpartition(".")[2] for name in modules})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": targets} | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return deltas


def test_an_adapter_changes_the_weights_it_was_trained_for(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    name = "model.transformer.blocks.1"
    modules = {f"{name}.q_proj": (64, 64), f"{name}.ff_out": (64, 96)}
    deltas = adapter(tmp_path / "lora", modules)
    plain = load_family(GOLDENS / "llada", device="cpu")
    tuned = load_family(GOLDENS / "llada", device="cpu", adapter=tmp_path / "lora")
    layer, before = tuned.model.model.layers[1], plain.model.model.layers[1]
    for module, key in (("self_attn.q_proj", "q_proj"), ("mlp.down_proj", "ff_out")):
        delta = layer.get_submodule(module).weight - before.get_submodule(module).weight
        torch.testing.assert_close(delta, deltas[f"{name}.{key}"], atol=1e-4, rtol=1e-4)
    ids = torch.randint(0, 400, (1, 8))
    assert not torch.allclose(logits_of(plain, ids), logits_of(tuned, ids))


def test_an_adapter_of_a_fused_projection_is_split(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    name = "model.layers.0.attention.query_key_value"
    deltas = adapter(tmp_path / "lora", {name: (128, 48)})
    plain = load_family(GOLDENS / "llada2", device="cpu").model.model.layers[0].self_attn
    tuned = load_family(GOLDENS / "llada2", device="cpu", adapter=tmp_path / "lora")
    attention = tuned.model.model.layers[0].self_attn
    rows = deltas[name].split([64, 32, 32])
    for part, delta in zip("qkv", rows, strict=True):
        given = getattr(attention, f"{part}_proj").weight - getattr(plain, f"{part}_proj").weight
        torch.testing.assert_close(given, delta, atol=1e-4, rtol=1e-4)


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with pytest.raises(ConfigurationError, match="is no adapter: it needs adapter_config"):
        load_family(GOLDENS / "llada", device="cpu", adapter=GOLDENS / "llada")
    adapter(tmp_path / "other", {"model.layers.0.self_attn.q_proj": (64, 64)})
    with pytest.raises(ConfigurationError, match=r"`model\.layers\.0\.self_attn\.self_attn\.q"):
        load_family(GOLDENS / "llada", device="cpu", adapter=tmp_path / "other")
    adapter(
        tmp_path / "ranks", {"model.transformer.blocks.0.q_proj": (64, 64)}, rank_pattern={"q": 2}
    )
    with pytest.raises(ConfigurationError, match="rank_pattern"):
        load_family(GOLDENS / "llada", device="cpu", adapter=tmp_path / "ranks")


def test_an_adapter_without_peft_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ConfigurationError, match="pip install peft"):
        load_family(GOLDENS / "llada", device="cpu", adapter=tmp_path)


# Ids.


def tokenizer(folder: Path, *, mask: str | None, special: dict[str, int]) -> None:
    decoder = {str(n): {"content": text, "special": True} for text, n in special.items()}
    config: dict[str, Any] = {"added_tokens_decoder": decoder}
    if mask is not None:
        config["mask_token"] = {"content": mask}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_the_tokenizer_names_the_mask_where_the_config_does_not(tmp_path: Path) -> None:
    golden(tmp_path, "a2d_qwen3", drop=("mask_token_id",))
    with pytest.raises(ConfigurationError, match=r"names no `mask_token_id`.*pass `mask_id="):
        load_family(tmp_path, device="cpu")
    assert load_family(tmp_path, device="cpu", mask_id=440).traits.mask_id == 440
    tokenizer(tmp_path, mask="<|mask|>", special={"<|mask|>": 441, "<|end|>": 437})
    assert load_family(tmp_path, device="cpu").traits.mask_id == 441
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<|mask|>"}')
    added = [{"id": 439, "content": "<|mask|>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert load_family(tmp_path, device="cpu").traits.mask_id == 439


def test_a_config_and_a_tokenizer_that_disagree_about_the_mask_are_refused(tmp_path: Path) -> None:
    golden(tmp_path, "llada")
    tokenizer(tmp_path, mask="<mask>", special={"<mask>": 410, "<|mdm_mask|>": 411})
    with pytest.raises(
        ConfigurationError, match=r"`mask_token_id` is 411, but the tokenizer .* 410"
    ):
        load_family(tmp_path, device="cpu")
    assert load_family(tmp_path, device="cpu", mask_id=411).traits.mask_id == 411


def test_a_mask_that_is_an_ordinary_token_is_refused(tmp_path: Path) -> None:
    golden(tmp_path, "llada", mask_token_id=77)
    tokenizer(tmp_path, mask=None, special={"<|mdm_mask|>": 411})
    with pytest.raises(ConfigurationError, match="the mask token 77 is an ordinary token"):
        load_family(tmp_path, device="cpu")


def test_the_ids_that_edit_come_from_the_config_or_there_are_none(tmp_path: Path) -> None:
    golden(tmp_path, "llada2")
    traits = load_family(tmp_path, device="cpu").traits
    assert (traits.delete_id, traits.insert_id) == (None, None)
    golden(tmp_path, "llada2", delete_token_id=405, split_token_id=406)
    traits = load_family(tmp_path, device="cpu").traits
    assert (traits.delete_id, traits.insert_id) == (405, 406)


def test_end_tokens_of_the_generation_config_count_too(tmp_path: Path) -> None:
    golden(tmp_path, "sdar")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [410, 409]}')
    assert load_family(tmp_path, device="cpu").traits.eos_ids == (410, 409)


# What is refused.

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sdar", {"mask_token_id": 420}, "the mask token is 420, outside the vocabulary of 420"),
    ("sdar", {"mask_token_id": None}, "the mask token is 151669, outside the vocabulary of 420"),
    ("sdar", {"mask_token_id": 409}, "409 is an end id too"),
    ("sdar", {"eos_token_id": [409, 500]}, "the eos token is 500, outside the vocabulary"),
    ("sdar", {"eos_token_id": None}, "names no `eos_token_id`"),
    ("sdar", {"block_size": 0}, r"`block_size` is 0: it must be a positive whole number"),
    ("sdar", {"use_sliding_window": True}, "`use_sliding_window` is True: .*contradicts"),
    ("sdar", {"num_key_value_heads": None}, "lacks the value `num_key_value_heads`"),
    ("sdar", {"num_key_value_heads": 3}, "it must divide the 4 attention heads"),
    ("sdar", {"rope_theta": None}, "lacks the value `rope_theta`"),
    ("dream", {"hidden_size": 50}, "`hidden_size` is 50: it must be a multiple of the 4 heads"),
    ("llada", {"alibi": True}, "`alibi` is True: .* only False can be loaded"),
    ("llada", {"layer_norm_type": "low_precision"}, "`layer_norm_type` is 'low_precision'"),
    ("llada", {"n_kv_heads": 3}, "`n_kv_heads` is 3"),
    ("llada_moe", {"moe_router_score_function": "sigmoid"}, "`moe_router_score_function`"),
    ("llada_moe", {"moe_layer_freq": [1]}, "one entry for each of 2 layers"),
    ("llada2", {"n_group": 3}, "`n_group` is 3"),
    ("llada2", {"topk_group": None}, "lacks the value `topk_group`"),
    ("llada2", {"score_function": "softmax"}, "`score_function` is 'softmax'"),
    ("sdar", {"architectures": ["NemotronLabsDiffusionModel"]}, "lacks `llama_4_scaling_beta`"),
    ("llada2", {"delete_token_id": 405}, "lacks the value `split_token_id`"),
    ("llada2", {"delete_token_id": 405, "split_token_id": 408}, "`split_token_id` is 408"),
    ("llada2", {"delete_token_id": 403, "split_token_id": 406}, "need an id each"),
    ("bd3lm", {"time_conditioning": True}, "`time_conditioning` is True"),
    ("bd3lm", {"n_heads": 5}, "`hidden_dim` is 32: it must be a multiple of the 5 heads"),
    ("bd3lm", {"hidden_dim": 64}, r"has the shape \(20, 256\)|has the shape .* asks for"),
    ("diffusion_gemma", {"text_config": None}, "lacks the value `text_config`"),
]


@pytest.mark.filterwarnings("ignore:.*mapped from published code")
@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_a_config_that_cannot_be_right_is_refused(tmp_path, name, changes, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_family(golden(tmp_path, name, **changes), device="cpu")


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    golden(tmp_path, "sdar")
    given = load_file(GOLDENS / "sdar" / "model.safetensors")

    def load(tensors: dict[str, Tensor]) -> None:
        save_file(tensors, tmp_path / "model.safetensors")
        load_family(tmp_path, device="cpu")

    few = {name: tensor for name, tensor in given.items() if "layers.1.mlp" not in name}
    with pytest.raises(ConfigurationError, match=r"lacks tensors: model\.layers\.1\.mlp\.gate"):
        load(few)
    few.pop("model.norm.weight")
    with pytest.raises(ConfigurationError, match="and 1 more"):
        load(few)
    with pytest.raises(ConfigurationError, match=r"has unknown tensors: visual"):
        load(given | {"visual": torch.zeros(1)})
    with pytest.raises(ConfigurationError, match=r"`model\.norm\.weight` has the shape \(9,\)"):
        load(given | {"model.norm.weight": torch.zeros(9)})


def test_an_expert_too_few_is_noticed(tmp_path: Path) -> None:
    given = load_file(GOLDENS / "llada_moe" / "model.safetensors")
    given.pop("model.layers.1.mlp.experts.7.up_proj.weight")
    save_file(given, golden(tmp_path, "llada_moe") / "model.safetensors")
    with pytest.raises(
        ConfigurationError, match=r"lacks tensors: model\.layers\.1\.mlp\.experts\.gate_up_proj"
    ):
        load_family(tmp_path, device="cpu")


def test_files_that_are_broken_are_named(tmp_path: Path) -> None:
    whole = golden(tmp_path, "llada") / "model.safetensors"
    content = whole.read_bytes()
    whole.write_bytes(content[:-1000])
    with pytest.raises(ConfigurationError, match=r"model\.safetensors` ends too early"):
        load_family(tmp_path, device="cpu")
    whole.write_bytes(b"<html>not found</html>")
    with pytest.raises(ConfigurationError, match="is no safetensors file"):
        load_family(tmp_path, device="cpu")
    whole.unlink()
    with pytest.raises(ConfigurationError, match=r"has no `model\.safetensors`.*only safetensors"):
        load_family(tmp_path, device="cpu")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(ConfigurationError, match=r"model-1\.safetensors` is missing"):
        load_family(tmp_path, device="cpu")


def test_what_is_not_known_says_what_to_do(tmp_path: Path) -> None:
    golden(tmp_path, "llada", architectures=["GPT2LMHeadModel"], model_type="gpt2")
    with pytest.raises(ConfigurationError, match=r"'gpt2' \(GPT2LMHeadModel\).*as `family`"):
        load_family(tmp_path)
    with pytest.raises(ConfigurationError, match=r"`family` is 'lada'.*known are router, illada"):
        load_family(tmp_path, family="lada")
    with pytest.raises(ConfigurationError, match="no checkpoint folder at"):
        load_family("./nothing-here")
    with pytest.raises(ConfigurationError, match="must be 'sdpa' or 'eager'"):
        load_family(GOLDENS / "llada", attn_implementation="flash_attention_2")
    with pytest.raises(ConfigurationError, match="neither a mask id nor a shift"):
        load_family(GOLDENS / "diffusion_gemma", device="cpu", mask_id=4)
    with pytest.raises(ConfigurationError, match="cannot run with `attention='canvas'`"):
        load_family(GOLDENS / "llada", device="cpu", attention="canvas")


def test_a_header_is_all_that_opening_reads() -> None:
    stored = open_checkpoint(GOLDENS / "llada")
    given = load_file(GOLDENS / "llada" / "model.safetensors")
    assert stored.keys() == given.keys()
    for name, tensor in given.items():
        assert torch.equal(stored[name].whole()[...], tensor)
        half = torch.empty(tensor.numel() // 2, dtype=torch.float64)
        stored[name].read_into(half, skip=tensor.numel() - len(half))
        assert torch.equal(half, tensor.flatten()[tensor.numel() - len(half) :].double())
