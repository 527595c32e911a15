"""SDAR against golden numbers of its reference code (see `tests/goldens/sdar/README.md`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, Threshold, load_family
from agentdiff.engine.families import sdar
from agentdiff.engine.families.sdar import SdarFamily
from agentdiff.engine.weights import write_weights
from agentdiff.errors import ConfigurationError

GOLDENS = Path(__file__).parent.parent / "goldens" / "sdar"
CONFIG = json.loads((GOLDENS / "config.json").read_text())
NOISE = 5e-5
"""Float error between two ways to compute the same log-probabilities, which reach -30 here."""
TOLERANCE = json.loads((GOLDENS / "meta.json").read_text())["tolerance"]
RUNS = {run["name"]: run for run in json.loads((GOLDENS / "trace.json").read_text())["runs"]}
FORWARD = load_file(GOLDENS / "forward.safetensors")

FAMILY = SdarFamily.load(GOLDENS, CONFIG, device=torch.device("cpu"))
MASK = FAMILY.traits.mask_id
PROMPTS = [[5, 9, 33], [7] * 8, list(range(60, 71)), list(range(100, 121)), [3, 1, 4, 1]]
VOCABULARY = Vocabulary(
    [bytes([n]) if n < 256 else None for n in range(CONFIG["vocab_size"])], FAMILY.traits.eos_ids
)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Matrices this small only wait for each other on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def logits_of(ids: torch.Tensor) -> torch.Tensor:
    """One pass over whole sequences, without any cache."""
    hidden, _ = FAMILY._run(ids, [FAMILY.prefill([])[0]] * len(ids))
    return FAMILY.model.lm_head(hidden)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE["logits"]):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


# The golden numbers.


@pytest.mark.parametrize("case", ["block", "last_partial"])
@torch.inference_mode()
def test_the_logits_are_those_of_the_reference(case: str) -> None:
    assert FORWARD["block.block_size"].item() == FAMILY.traits.block_len
    close(logits_of(FORWARD[f"{case}.input_ids"]), FORWARD[f"{case}.logits"])


@pytest.mark.parametrize(
    ("case", "start", "end"), [("cached_block", None, None), ("last_partial", 8, 9)]
)
@torch.inference_mode()
def test_a_block_behind_its_prefix_has_the_logits_of_the_reference(case, start, end) -> None:
    ids, expected = FORWARD[f"{case}.input_ids"], FORWARD[f"{case}.logits"]
    if start is None:
        start, end = FORWARD[f"{case}.range"].tolist()
    prefix, tail = FAMILY.prefill(ids[0, :start].tolist())
    assert (prefix.length, tail) == (start, ())
    log_probs = FAMILY.denoise(ids[:, start:end], [prefix])
    close(log_probs, expected[:, start - end :].log_softmax(-1))


# `Threshold` commits every p > threshold, or else the surest position. That is the reference's
# dynamic rule where its quota is one token a step (denoising_steps = block_length), and with a
# threshold of 1 its static rule with that quota. Left out: sequential runs (left to right, another
# policy), runs with a quota of two (the reference then commits two where none passes), and those
# that the goldens mark as not reproducible.
SAME_RULE = [
    name
    for name, run in RUNS.items()
    if run["reproducible"]
    and run["params"]["remasking_strategy"] != "sequential"
    and run["params"]["denoising_steps"] == run["params"]["block_length"]
]


@pytest.mark.parametrize("name", SAME_RULE)
def test_a_decode_writes_what_the_reference_writes_step_by_step(name: str) -> None:
    run = RUNS[name]
    params: dict[str, Any] = run["params"]
    prompt, expected = run["prompt_ids"][0], run["final_ids"][0]
    stop_ids = params["stop_ids"] or []
    is_dynamic = params["remasking_strategy"] == "low_confidence_dynamic"
    room = len(expected) - len(prompt)
    traits = replace(FAMILY.traits, eos_ids=tuple(stop_ids))
    engine = Engine(SdarFamily(FAMILY.model, traits))
    policy = Threshold(params["confidence_threshold"] if is_dynamic else 1.0)
    engine.add(prompt, DecodeParams(target=room, ceiling=room, policy=policy))

    written: list[int] = []
    canvases, output = [], None
    while engine.busy:
        (update,) = engine.step()
        written += update.final
        output = update.output
        canvas = prompt + written + [MASK if token is None else token for token in update.draft]
        canvases.append(canvas + [MASK] * (len(expected) - len(canvas)))

    reference = [step["canvas"][0] for step in run["steps"]]
    assert output is not None
    assert len(canvases) == len(reference)
    # The last update holds the reply alone, not the block's rest behind an end token.
    assert canvases[:-1] == reference[:-1]
    reply = expected[len(prompt) :]
    stop = next((n for n, token in enumerate(reply) if token in stop_ids), len(reply))
    assert list(output.tokens) == reply[:stop]
    assert output.reason == ("stop" if stop_ids else "length")
    assert output.stats.extensions == 0
    lowest = min(conf for step in run["steps"] for conf in step["conf"][0])
    assert output.stats.confidence == pytest.approx(lowest, abs=TOLERANCE["conf"])


def test_the_compared_runs_cover_tails_aligned_and_short_prompts() -> None:
    lengths = {len(RUNS[name]["prompt_ids"][0]) for name in SAME_RULE}
    assert {length % 4 for length in lengths} == {0, 3}
    assert min(lengths) < 4
    assert len(SAME_RULE) == 12


# The cache.


@torch.inference_mode()
def test_the_block_cache_is_exact() -> None:
    """Appended blocks, a prefill of the same tokens and no cache at all agree."""
    torch.manual_seed(0)
    ids = torch.randint(0, 400, (1, 24))
    ids[0, 21:23] = MASK
    whole, _ = FAMILY.prefill(ids[0, :20].tolist())
    grown, _ = FAMILY.prefill(ids[0, :8].tolist())
    before = [kv.keys.clone() for kv in grown.layers]
    for start in range(8, 20, 4):
        shorter = grown
        (grown,) = FAMILY.append(ids[:, start : start + 4], [grown])
        assert (shorter.length, grown.length) == (start, start + 4)
    uncached = logits_of(ids)[:, 20:].log_softmax(-1)
    close(FAMILY.denoise(ids[:, 20:], [whole]), uncached, NOISE)
    close(FAMILY.denoise(ids[:, 20:], [grown]), uncached, NOISE)
    first, _ = FAMILY.prefill(ids[0, :8].tolist())
    assert all(torch.equal(kv.keys, keys) for kv, keys in zip(first.layers, before, strict=True))


@torch.inference_mode()
def test_a_long_prompt_is_encoded_in_parts_without_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt = PROMPTS[3]
    whole, tail = FAMILY.prefill(prompt)
    monkeypatch.setattr(sdar, "PREFILL_TOKENS", 9)
    parts, same_tail = FAMILY.prefill(prompt)
    assert whole.length == parts.length == 20
    assert tail == same_tail == (120,)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        close(one.keys, other.keys, NOISE)
        close(one.values, other.values, NOISE)


@torch.inference_mode()
def test_padding_in_a_batch_changes_no_logits_even_beside_an_empty_prefix() -> None:
    torch.manual_seed(1)
    blocks = torch.randint(0, 400, (len(PROMPTS), 4))
    prefixes = [FAMILY.prefill(prompt)[0] for prompt in PROMPTS]
    assert [prefix.length for prefix in prefixes] == [0, 8, 8, 20, 4]
    together = FAMILY.denoise(blocks, prefixes)
    longer = FAMILY.append(blocks, prefixes)
    assert together.dtype == torch.float32
    for row, prefix in enumerate(prefixes):
        block = blocks[row : row + 1]
        close(together[row : row + 1], FAMILY.denoise(block, [prefix]), NOISE)
        (alone,) = FAMILY.append(block, [prefix])
        assert longer[row].length == alone.length == prefix.length + 4
        for one, other in zip(longer[row].layers, alone.layers, strict=True):
            close(one.keys, other.keys, NOISE)


# Decoding.


def jobs(*, constrained: bool) -> list:
    made = []
    for place, prompt in enumerate(PROMPTS):
        params = DecodeParams(
            target=8 + place,
            ceiling=40 - 3 * place,
            policy=Threshold(0.1 + 0.15 * place),
            temperature=0.0 if place % 2 else 0.8,
            seed=place,
        )
        matcher = compile_schema(SCHEMA, VOCABULARY).start(params.ceiling) if constrained else None
        made.append((prompt, params, matcher))
    return made


def run_all(engine: Engine, jobs: list) -> list[DecodeOutput]:
    numbers = [engine.add(*job) for job in jobs]
    outputs: dict[int, DecodeOutput] = {}
    while engine.busy:
        outputs |= {u.sequence: u.output for u in engine.step() if u.output is not None}
    return [outputs[number] for number in numbers]


@pytest.mark.parametrize("constrained", [False, True])
def test_alone_equals_batched_with_prompts_of_any_length(constrained: bool) -> None:
    together = run_all(Engine(FAMILY), jobs(constrained=constrained))
    alone = [run_all(Engine(FAMILY), [job])[0] for job in jobs(constrained=constrained)]
    narrow = run_all(Engine(FAMILY, max_batch=2), jobs(constrained=constrained))
    assert [o.tokens for o in together] == [o.tokens for o in alone] == [o.tokens for o in narrow]
    assert [o.stats.forwards for o in together] == [o.stats.forwards for o in alone]


def test_a_constrained_reply_parses_and_fits_its_ceiling_behind_any_tail() -> None:
    for prompt_len in range(1, 10):
        matcher = compile_schema(SCHEMA, VOCABULARY).start(24)
        params = DecodeParams(target=16, ceiling=24, policy=Threshold(0.2), temperature=1.0)
        output = Engine(FAMILY).generate(list(range(prompt_len)), params, matcher)
        value = json.loads(b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens))
        assert isinstance(value["n"], int)
        assert isinstance(value["ok"], bool)
        assert len(output.tokens) <= 24
        assert output.reason == "stop"


def test_a_tail_does_not_count_as_an_extension() -> None:
    matcher = compile_schema({"const": "abcdef"}, VOCABULARY).start(8)
    output = Engine(FAMILY).generate(PROMPTS[2], DecodeParams(target=8, ceiling=8), matcher)
    assert (output.stats.blocks, output.stats.extensions) == (3, 0)


# Loading.


def checkpoint(folder: Path, *, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    """A folder with the golden config, changed, and no weights."""
    config = {name: value for name, value in CONFIG.items() if name not in drop} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_shards_in_half_precision_with_tied_embeddings_load_in_single_precision(tmp_path) -> None:
    shape: dict[str, Any] = {
        "vocab_size": 151_936,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "tie_word_embeddings": True,
    }
    drop = ("mask_token_id", "eos_token_id", "block_size", "rope_theta", "rope_scaling")
    checkpoint(tmp_path, drop=drop, **shape)
    torch.manual_seed(0)
    native = Qwen3ForCausalLM(Qwen3Config(**shape)).bfloat16().eval()
    state = {
        name: tensor for name, tensor in native.state_dict().items() if name != "lm_head.weight"
    }
    names = write_weights(state, tmp_path, shard_bytes=10_000)
    family = load_family(tmp_path, device="cpu")
    assert isinstance(family, SdarFamily)
    assert len(names) > 1
    # What the checkpoint leaves out has the published value.
    assert family.traits.mask_id == 151669
    assert family.traits.eos_ids == (151645, 151643)
    assert family.traits.block_len == 4
    embedding = family.model.model.embed_tokens.weight
    assert embedding.dtype == torch.float32
    assert family.model.lm_head.weight.data_ptr() == embedding.data_ptr()
    block = torch.tensor([[1, 2, 3, 151669]])
    with torch.inference_mode():
        scored = family.denoise(block, [family.prefill([5])[0]])
        mask = torch.zeros(1, 1, 4, 4)
        close(scored, native.float()(block, attention_mask=mask).logits.log_softmax(-1), NOISE)


def test_end_tokens_of_the_generation_config_count_too(tmp_path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [410, 409]}')
    save_file(load_file(GOLDENS / "model.safetensors"), checkpoint(tmp_path) / "model.safetensors")
    assert load_family(tmp_path, device="cpu").traits.eos_ids == (410, 409)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": 420}, "the mask token is 420, outside the vocabulary of 420"),
        ({"mask_token_id": None}, "the mask token is 151669, outside the vocabulary of 420"),
        ({"eos_token_id": [409, 500]}, "the eos token is 500, outside the vocabulary"),
        ({"block_size": 0}, "`block_size` must be positive, got 0"),
        ({"use_sliding_window": True}, "sets `use_sliding_window`"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused(tmp_path, changes, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_family(checkpoint(tmp_path, **changes), device="cpu")


def test_a_size_that_the_config_lacks_is_named(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="lacks the value 'num_key_value_heads'"):
        load_family(checkpoint(tmp_path, drop=("num_key_value_heads",)), device="cpu")


def test_weights_that_do_not_fit_are_named(tmp_path) -> None:
    checkpoint(tmp_path)
    given = load_file(GOLDENS / "model.safetensors")

    def load(tensors: dict) -> None:
        save_file(tensors, tmp_path / "model.safetensors")
        load_family(tmp_path, device="cpu")

    few = {name: tensor for name, tensor in given.items() if "layers.1.mlp" not in name}
    with pytest.raises(
        ConfigurationError, match=r"lacks tensors .*: model\.layers\.1\.mlp\.gate_proj"
    ):
        load(few)
    few.pop("model.norm.weight")
    with pytest.raises(ConfigurationError, match="and 1 more"):
        load(few)
    with pytest.raises(ConfigurationError, match=r"has unknown tensors .*: visual"):
        load(given | {"visual": torch.zeros(1)})
    with pytest.raises(ConfigurationError, match=r"`model\.norm\.weight` has the shape \(9,\)"):
        load(given | {"model.norm.weight": torch.zeros(9)})


def test_the_type_on_an_accelerator_is_the_one_that_the_config_names() -> None:
    assert sdar.read_dtype(GOLDENS, CONFIG) == torch.bfloat16
    assert sdar.read_dtype(GOLDENS, {"dtype": "float16"}) == torch.float16
    assert sdar.read_dtype(GOLDENS, {}) == torch.bfloat16
    with pytest.raises(ConfigurationError, match="`dtype` is 'int8'"):
        sdar.read_dtype(GOLDENS, {"dtype": "int8"})


def test_an_unknown_model_type_is_told_which_ones_there_are(tmp_path) -> None:
    checkpoint(tmp_path, model_type="gpt2")
    with pytest.raises(ConfigurationError, match=r"'gpt2'.*supported are agentdiff_router, sdar"):
        load_family(tmp_path)


def test_only_what_was_pushed_is_counted() -> None:
    """A prompt's tail is pushed with its block, not by the prefill; a short prompt has no prefill."""
    params = DecodeParams(target=1, ceiling=1)
    block_len = FAMILY.traits.block_len
    for prompt in ([5] * (block_len - 1), [5] * (2 * block_len + 1)):
        stats = Engine(FAMILY).generate(prompt, params).stats
        whole = len(prompt) // block_len * block_len
        assert stats.positions == whole + block_len * (stats.forwards - (whole > 0))
