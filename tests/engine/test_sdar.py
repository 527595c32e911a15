"""Decoding with SDAR against golden traces of its reference loop (see `tests/goldens/README.md`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, Threshold, load_family

GOLDENS = Path(__file__).parent.parent / "goldens" / "sdar"
CONFIG = json.loads((GOLDENS / "config.json").read_text())
TOLERANCE = json.loads((GOLDENS / "meta.json").read_text())["tolerance"]
RUNS = {run["name"]: run for run in json.loads((GOLDENS / "trace.json").read_text())["runs"]}

FAMILY = load_family(GOLDENS, device="cpu")
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
    engine = Engine(FAMILY.with_traits(traits))
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


def test_only_what_was_pushed_is_counted() -> None:
    """A prompt's tail is pushed with its block, not by the prefill; a short prompt has no prefill."""
    params = DecodeParams(target=1, ceiling=1)
    block_len = FAMILY.traits.block_len
    for prompt in ([5] * (block_len - 1), [5] * (2 * block_len + 1)):
        stats = Engine(FAMILY).generate(prompt, params).stats
        whole = len(prompt) // block_len * block_len
        assert stats.positions == whole + block_len * (stats.forwards - (whole > 0))
