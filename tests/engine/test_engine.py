from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import compile_schema
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, Threshold
from agentdiff.errors import BudgetTooSmall, ConfigurationError
from tests.engine.toys import END, MASK, VOCABULARY, toy_family

FAMILY = toy_family()
PROMPTS = [[5, 9, 33, 40], [7] * 19, [60, 61, 62], [12, 13, 14, 15, 16, 17, 18, 19, 20]]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}, "s": {"type": "string"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


def run_all(engine: Engine, jobs: list) -> list[DecodeOutput]:
    numbers = [engine.add(*job) for job in jobs]
    outputs: dict[int, DecodeOutput] = {}
    while engine.busy:
        for update in engine.step():
            if update.output is not None:
                outputs[update.sequence] = update.output
    return [outputs[number] for number in numbers]


def jobs(*, constrained: bool) -> list:
    made = []
    for place, prompt in enumerate(PROMPTS):
        params = DecodeParams(
            target=8 + place,
            ceiling=40 - 3 * place,
            policy=Threshold(0.3 + 0.2 * place),
            temperature=0.0 if place % 2 else 0.8,
            seed=place,
        )
        matcher = compile_schema(SCHEMA, VOCABULARY).start(params.ceiling) if constrained else None
        made.append((prompt, params, matcher))
    return made


@pytest.mark.parametrize("constrained", [False, True])
def test_alone_equals_batched(constrained: bool) -> None:
    together = run_all(Engine(FAMILY), jobs(constrained=constrained))
    alone = [run_all(Engine(FAMILY), [job])[0] for job in jobs(constrained=constrained)]
    narrow = run_all(Engine(FAMILY, max_batch=2), jobs(constrained=constrained))
    assert [o.tokens for o in together] == [o.tokens for o in alone] == [o.tokens for o in narrow]
    assert [o.stats.forwards for o in together] == [o.stats.forwards for o in alone]


def test_a_constrained_output_always_parses_and_fits_its_ceiling() -> None:
    for job, output in zip(
        jobs(constrained=True), run_all(Engine(FAMILY), jobs(constrained=True)), strict=True
    ):
        text = b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens)
        value = json.loads(text)
        assert isinstance(value["n"], int)
        assert len(output.tokens) <= job[1].ceiling
        assert output.reason == "stop"


def test_a_seed_reproduces_and_another_one_differs() -> None:
    def tokens(seed: int) -> tuple[int, ...]:
        params = DecodeParams(target=8, ceiling=24, temperature=1.0, seed=seed)
        return Engine(FAMILY).generate(PROMPTS[0], params).tokens

    assert tokens(3) == tokens(3)
    assert len({tokens(seed) for seed in range(5)}) > 1


def test_a_committed_token_never_changes_and_every_step_makes_progress() -> None:
    engine = Engine(FAMILY)
    number = engine.add(PROMPTS[1], DecodeParams(target=8, ceiling=30))
    seen: dict[int, int] = {}
    done = 0
    while engine.busy:
        known = len(seen)
        for update in engine.step():
            assert update.sequence == number
            for offset, token in enumerate(update.final):
                assert seen.setdefault(done + offset, token) == token
            done += len(update.final)
            for offset, token in enumerate(update.draft):
                if token is not None:
                    assert seen.setdefault(done + offset, token) == token
            if update.output is None:
                assert len(seen) > known


def test_an_unconstrained_reply_that_reaches_its_ceiling_ends_for_length() -> None:
    output = Engine(toy_family(seed=5)).generate(PROMPTS[0], DecodeParams(target=4, ceiling=5))
    assert len(output.tokens) <= 5
    if output.reason == "length":
        assert len(output.tokens) == 5
    assert END not in output.tokens
    assert MASK not in output.tokens


def test_blocks_beyond_the_target_count_as_extensions() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 12}
    matcher = compile_schema(schema, VOCABULARY).start(80)
    output = Engine(FAMILY).generate(PROMPTS[0], DecodeParams(target=8, ceiling=80), matcher)
    assert output.stats.blocks > 1
    assert output.stats.extensions == output.stats.blocks - 1
    assert len(json.loads(b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens))) == 12


def test_forced_tokens_are_committed_in_the_first_step() -> None:
    matcher = compile_schema({"const": "abcdef"}, VOCABULARY).start(16)
    output = Engine(FAMILY).generate(PROMPTS[0], DecodeParams(target=8, ceiling=16), matcher)
    assert b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens) == b'"abcdef"'
    assert output.stats.forced_tokens >= 8
    assert output.stats.forwards <= 3


def test_a_cancelled_sequence_is_gone_and_its_neighbour_is_untouched() -> None:
    engine = Engine(FAMILY)
    params = DecodeParams(target=8, ceiling=32)
    first, second = engine.add(PROMPTS[0], params), engine.add(PROMPTS[2], params)
    engine.step()
    engine.cancel(first)
    outputs = {}
    while engine.busy:
        for update in engine.step():
            assert update.sequence == second
            outputs[update.sequence] = update.output
    alone = Engine(FAMILY).generate(PROMPTS[2], params)
    assert outputs[second].tokens == alone.tokens
    engine.cancel(first)


def test_bad_requests_are_refused_before_any_forward() -> None:
    engine = Engine(FAMILY)
    with pytest.raises(ConfigurationError, match="`prompt` is empty"):
        engine.add([], DecodeParams(target=8, ceiling=8))
    with pytest.raises(ConfigurationError, match="context holds 512"):
        engine.add([4] * 510, DecodeParams(target=8, ceiling=8))
    with pytest.raises(ConfigurationError, match="`target` must be in"):
        DecodeParams(target=9, ceiling=8)
    with pytest.raises(BudgetTooSmall) as caught:
        compile_schema({"const": "abcdef"}, VOCABULARY).start(3)
    assert caught.value.needed == 8
    assert not engine.busy


def test_the_block_cache_is_exact() -> None:
    """A block scored against appended prefixes equals the same block in one pass over everything."""
    torch.manual_seed(1)
    prompt, first, second = (
        [5, 6, 7, 8, 9],
        torch.randint(2, 90, (1, 8)),
        torch.randint(2, 90, (1, 8)),
    )
    second[0, 3:6] = MASK
    with torch.inference_mode():
        prefix, tail = FAMILY.prefill(prompt)
        assert tail == ()
        (longer,) = FAMILY.append(first, [prefix])
        cached = FAMILY.denoise(second, [longer])
        encoded = FAMILY.model.encode(torch.tensor([prompt]), torch.ones(1, 5, dtype=torch.bool))
        mask = torch.ones(1, 1, 16, 5 + 16, dtype=torch.bool)
        mask[:, :, :8, 13:] = False
        hidden, _ = FAMILY.model.decode(
            torch.cat([first, second], 1),
            torch.arange(5, 21)[None],
            mask,
            encoded.layers,
            block_len=8,
        )
        uncached = FAMILY.model.log_probs(hidden[:, 8:], encoded)
    assert prefix.length == 5
    assert longer.length == 13
    torch.testing.assert_close(cached, uncached, atol=1e-5, rtol=1e-5)


def test_padding_in_a_batch_changes_no_logits() -> None:
    torch.manual_seed(2)
    blocks = torch.randint(2, 90, (2, 8))
    with torch.inference_mode():
        prefixes = [FAMILY.prefill(PROMPTS[0])[0], FAMILY.prefill(PROMPTS[1])[0]]
        together = FAMILY.denoise(blocks, prefixes)
        for row in range(2):
            alone = FAMILY.denoise(blocks[row : row + 1], prefixes[row : row + 1])
            torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)


@given(
    confidence=st.lists(st.floats(0, 1), min_size=1, max_size=32),
    threshold=st.floats(0.01, 1),
    data=st.data(),
)
@settings(max_examples=100)
def test_threshold_commits_some_masked_positions_and_nothing_else(
    confidence, threshold, data
) -> None:
    masked = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(confidence), max_size=len(confidence)))
    )
    if not masked.any():
        masked[0] = True
    scores = np.array(confidence)
    chosen = Threshold(threshold).choose(scores, masked)
    assert chosen.any()
    assert not (chosen & ~masked).any()
    assert (chosen | ~masked | (scores <= threshold)).all()
