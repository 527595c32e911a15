from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from agentdiff.constraint import compile_schema
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, Threshold
from agentdiff.engine.families.router import RouterFamily
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


def one(engine: Engine, prompt, params, matcher=None) -> DecodeOutput:
    return engine.generate([prompt], params, [matcher])[0]


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
        assert output.finish == "stop"


def test_a_seed_reproduces_and_another_one_differs() -> None:
    def tokens(seed: int) -> tuple[int, ...]:
        params = DecodeParams(target=8, ceiling=24, temperature=1.0, seed=seed)
        return one(Engine(FAMILY), PROMPTS[0], params).tokens

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
    output = one(Engine(toy_family(seed=5)), PROMPTS[0], DecodeParams(target=4, ceiling=5))
    assert len(output.tokens) <= 5
    if output.finish == "length":
        assert len(output.tokens) == 5
    assert END not in output.tokens
    assert MASK not in output.tokens


def test_blocks_beyond_the_target_count_as_extensions() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 12}
    matcher = compile_schema(schema, VOCABULARY).start(80)
    output = one(Engine(FAMILY), PROMPTS[0], DecodeParams(target=8, ceiling=80), matcher)
    assert output.stats.blocks > 1
    assert output.stats.extensions == output.stats.blocks - 1
    assert len(json.loads(b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens))) == 12


def test_forced_tokens_are_committed_in_the_first_step() -> None:
    matcher = compile_schema({"const": "abcdef"}, VOCABULARY).start(16)
    output = one(Engine(FAMILY), PROMPTS[0], DecodeParams(target=8, ceiling=16), matcher)
    assert b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens) == b'"abcdef"'
    assert output.stats.forced_tokens >= 8
    assert output.stats.forwards <= 3


def test_blocks_that_the_grammar_fills_are_reported_too() -> None:
    schema = {
        "type": "object",
        "properties": {"first_long_name": {"enum": ["one", "two"]}, "other": {"enum": [1, 2]}},
        "required": ["first_long_name", "other"],
        "additionalProperties": False,
    }
    engine = Engine(toy_family(block_len=4))
    matcher = compile_schema(schema, VOCABULARY).start(60)
    engine.add([5, 6, 7], DecodeParams(target=8, ceiling=60), matcher)
    told: list[int] = []
    output = None
    while output is None:
        (update,) = engine.step()
        told += update.final
        output = update.output
    assert tuple(told) == output.tokens


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
    alone = one(Engine(FAMILY), PROMPTS[2], params)
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


class Breaking(RouterFamily):
    """The toy, which raises where the test says so."""

    def __init__(self, *, block_len: int = 8) -> None:
        toy = toy_family(block_len=block_len)
        super().__init__(toy.model, toy.traits)
        self.breaks: set[str] = set()

    def run(self, ids, *, positions, mask, past):
        is_stored = past and not (ids == MASK).any()
        kind = "prefill" if not past else "append" if is_stored else "denoise"
        if kind in self.breaks and (kind != "prefill" or PROMPTS[0][0] in ids[:, 0]):
            raise RuntimeError("out of memory")
        return super().run(ids, positions=positions, mask=mask, past=past)


def test_a_prefill_that_fails_ends_its_own_sequence_alone() -> None:
    family = Breaking()
    family.breaks.add("prefill")
    engine = Engine(family)
    params = DecodeParams(target=8, ceiling=32)
    first, second = engine.add(PROMPTS[0], params), engine.add(PROMPTS[2], params)
    errors, outputs = {}, {}
    while engine.busy:
        for update in engine.step():
            if update.error is not None:
                errors[update.sequence] = update.error
            elif update.output is not None:
                outputs[update.sequence] = update.output
    assert str(errors.pop(first)) == "out of memory"
    assert not errors
    assert outputs[second].tokens == one(Engine(FAMILY), PROMPTS[2], params).tokens
    with pytest.raises(RuntimeError, match="out of memory"):
        one(engine, PROMPTS[0], params)
    assert not engine.busy


def test_a_grammar_that_fails_ends_its_own_sequence_alone(monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no valid fill keeps the pins at positions [0]")

    engine = Engine(FAMILY)
    grammar = compile_schema(SCHEMA, VOCABULARY)
    params = DecodeParams(target=8, ceiling=40)
    broken = grammar.start(40)
    monkeypatch.setattr(broken, "propose", fail)
    numbers = [
        engine.add(PROMPTS[0], params, grammar.start(40)),
        engine.add(PROMPTS[1], params, broken),
        engine.add(PROMPTS[2], params, grammar.start(40)),
    ]
    ends = {}
    while engine.busy:
        ends |= {u.sequence: u for u in engine.step() if u.output or u.error}
    assert sorted(ends) == numbers
    assert isinstance(ends[numbers[1]].error, ValueError)
    for place in (0, 2):
        alone = one(Engine(FAMILY), PROMPTS[place], params, grammar.start(40))
        output = ends[numbers[place]].output
        assert output is not None
        assert output.tokens == alone.tokens


@pytest.mark.parametrize("where", ["denoise", "append"])
def test_a_forward_that_fails_changes_no_sequence(where: str) -> None:
    family = Breaking()
    engine = Engine(family)
    params = DecodeParams(target=8, ceiling=24)
    numbers = [engine.add(prompt, params) for prompt in PROMPTS]
    written: dict[int, list[int]] = {number: [] for number in numbers}
    outputs = {}
    failures = 0
    for turn in range(1000):
        family.breaks = {where} if turn % 3 == 1 else set()
        try:
            updates = engine.step()
        except RuntimeError:
            failures += 1
            continue
        for update in updates:
            written[update.sequence] += update.final
            if update.output is not None:
                outputs[update.sequence] = update.output
        if not engine.busy:
            break
    assert failures
    for number, prompt in zip(numbers, PROMPTS, strict=True):
        assert outputs[number].tokens == one(Engine(FAMILY), prompt, params).tokens
        assert tuple(written[number]) == outputs[number].tokens


def test_no_sequence_is_decoded_beyond_the_context() -> None:
    engine = Engine(FAMILY)
    prompt = [7] * 500
    output = one(engine, prompt, DecodeParams(target=4, ceiling=100))
    assert len(output.tokens) <= 12
    grammar = compile_schema({"type": "string"}, VOCABULARY)
    with pytest.raises(ConfigurationError, match="may write 100 tokens, but the reply ends"):
        engine.add(prompt, DecodeParams(target=4, ceiling=100), grammar.start(100))
    with pytest.raises(ConfigurationError, match="may write 41 tokens, but the reply ends"):
        engine.add(PROMPTS[0], DecodeParams(target=4, ceiling=40), grammar.start(41))
    output = one(engine, prompt, DecodeParams(target=4, ceiling=12), grammar.start(12))
    assert isinstance(json.loads(b"".join(VOCABULARY.tokens[t] or b"" for t in output.tokens)), str)
    assert not engine.busy


@pytest.mark.parametrize("constrained", [False, True])
def test_a_temperature_next_to_zero_is_zero(constrained: bool) -> None:
    def tokens(temperature: float) -> tuple[int, ...]:
        matcher = compile_schema(SCHEMA, VOCABULARY).start(24) if constrained else None
        params = DecodeParams(target=8, ceiling=24, temperature=temperature, seed=3)
        return one(Engine(FAMILY), PROMPTS[0], params, matcher).tokens

    assert tokens(1e-310) == tokens(1e-8) == tokens(0.0)
    for wrong in (float("inf"), float("nan"), -0.1):
        with pytest.raises(ConfigurationError, match="`temperature`"):
            DecodeParams(target=8, ceiling=24, temperature=wrong)


def test_the_end_is_not_counted_among_the_forced_tokens() -> None:
    matcher = compile_schema({"const": "abc"}, VOCABULARY).start(30)
    family = toy_family(block_len=16)
    output = one(Engine(family), PROMPTS[0], DecodeParams(target=8, ceiling=30), matcher)
    assert output.stats.forced_tokens == len(output.tokens) == 5


def test_a_model_that_wants_its_mask_back_is_scored_without_it() -> None:
    """Confidence is a probability among the tokens that may be written."""
    sure = {}

    class Seen(Threshold):
        def choose(self, view):
            sure.setdefault("confidence", view.confidence.copy())
            return super().choose(view)

    class Masked(RouterFamily):
        def head(self, hidden):
            scores = torch.full((*hidden.shape[:-1], self.traits.vocab_size), -30.0)
            scores[..., MASK], scores[..., 5], scores[..., 6] = 3.0, 1.0, 0.0
            return scores

    masked = Masked(FAMILY.model, FAMILY.traits)
    params = DecodeParams(target=4, ceiling=4, policy=Seen(0.7))
    output = one(Engine(masked), PROMPTS[0], params)
    assert set(output.tokens) == {5}
    assert sure["confidence"] == pytest.approx(1 / (1 + np.exp(-1)))
    assert output.stats.forwards == 2
