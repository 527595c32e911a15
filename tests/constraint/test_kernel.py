"""The compiled kernel against the numpy reference: the same fills, the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.constraint.draws import Draw
from agentdiff.constraint.lattice import Fill, Infeasible, Lattices
from agentdiff.constraint.step_scores import StepScores
from tests.constraint.doubles import SCHEMAS, TREE, WORDS, log_softmax, noise

pytest.importorskip("numba", reason="numba (the `fast` extra) is not installed")

from agentdiff.constraint.kernel import Kernel

ROUNDING = 1e-9
ROUNDING_32 = 2e-5
"""What a confidence is worth when the scores come in single precision."""


@pytest.fixture(autouse=True)
def sets_are_written_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is not in them, and by other sets, as happens in large vocabularies."""
    monkeypatch.setattr("agentdiff.constraint.sets._LARGE", 16)
    monkeypatch.setattr("agentdiff.constraint.sets._SHARES", 2)


def both(
    schema: Any,
    vocabulary: Vocabulary,
    log_probs: Any,
    pins: Mapping[int, int],
    *,
    budget: int,
    old_path: list[int] | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> tuple[Fill | None, Fill | None]:
    """The fill of the reference and that of the kernel; None where there is none."""
    fills: list[Fill | None] = []
    for kind in (Lattices, Kernel):
        grammar = compile_schema(schema, vocabulary)
        numbers = np.random.default_rng(seed).random((len(log_probs), 2))
        try:
            fills.append(
                kind(grammar._tokens).solve(
                    grammar._tokens.start,
                    StepScores.whole(log_probs),
                    pins,
                    begin=0,
                    budget=budget,
                    old_path=old_path or [],
                    draw=Draw(temperature, top_p, numbers) if temperature else None,
                )
            )
        except Infeasible:
            fills.append(None)
    return fills[0], fills[1]


def check(
    reference: Fill | None, compiled: Fill | None, *, rounding: float = ROUNDING
) -> Fill | None:
    assert (reference is None) == (compiled is None)
    if reference is not None and compiled is not None:
        assert compiled.tokens.tolist() == reference.tokens.tolist()
        assert len(compiled.path) == len(reference.path)
        assert np.abs(compiled.confidence - reference.confidence).max() <= rounding
        assert compiled.forced.tolist() == reference.forced.tolist()
    return compiled


@settings(max_examples=80, deadline=None)
@given(
    schema=st.one_of(SCHEMAS, st.just(TREE)),
    seed=st.integers(0, 2**32),
    slack=st.sampled_from([0, 1, 6, 60]),
    length=st.sampled_from([1, 7, 12]),
    temperature=st.sampled_from([0.0, 0.0, 1.0, 0.6, 2.5]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.05, 1 - 1e-7]),
    sigma=st.sampled_from([0.5, 3.0, 30.0]),
)
def test_kernel_and_reference_agree(
    schema: Any,
    seed: int,
    slack: int,
    length: int,
    temperature: float,
    top_p: float,
    sigma: float,
) -> None:
    rng = np.random.default_rng(seed)
    budget = compile_schema(schema, WORDS).min_tokens + slack
    first = check(*both(schema, WORDS, noise(rng, length, WORDS, sigma), {}, budget=budget))
    assert first is not None
    chosen = rng.choice(length, int(rng.integers(0, length + 1)), replace=False).tolist()
    pins = {i: int(first.tokens[i]) for i in chosen}
    if rng.random() < 0.2:
        pins[int(rng.integers(length))] = int(rng.integers(len(WORDS)))
    check(
        *both(
            schema,
            WORDS,
            noise(rng, length, WORDS, sigma),
            pins,
            budget=budget,
            old_path=None,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
        )
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_they_agree_on_single_precision(temperature: float) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 1}
    for seed in range(4):
        log_probs = noise(np.random.default_rng(seed), 12, WORDS).astype(np.float32)
        fills = both(schema, WORDS, log_probs, {}, budget=30, temperature=temperature, seed=seed)
        assert check(*fills, rounding=ROUNDING_32) is not None


MANY = Vocabulary(
    [*(bytes([b]) for b in range(256)), *(f"{i:x}".encode() for i in range(4096, 24_000)), None],
    [256 + 24_000 - 4096],
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sureness", [8.0, 20.0, 60.0])
def test_they_agree_on_a_large_vocabulary_and_a_model_that_is_nearly_certain(
    sureness: float, dtype: Any
) -> None:
    text = b'["an example", "ab12", 7, {"a": "c"}]'
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((len(text), len(MANY)))
    scores[np.arange(len(text)), list(text)] += sureness
    log_probs = log_softmax(scores).astype(dtype)
    schemas = ({}, {"type": "array"}, {"items": {"type": ["string", "object"], "maxLength": 40}})
    for schema in schemas:
        for pins in ({}, {3: ord("n"), 20: ord('"')}):
            fill = check(
                *both(schema, MANY, log_probs, pins, budget=48),
                rounding=ROUNDING_32 if dtype is np.float32 else 1e-7,
            )
            assert fill is not None
            if sureness > 50 and schema != schemas[2]:
                assert bytes(fill.tokens.tolist()) == text


def test_they_agree_where_only_a_wider_search_keeps_the_pins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("lattice", "kernel"):
        monkeypatch.setattr(f"agentdiff.constraint.{module}.WIDTHS", (1, 2, 64))
    schema = {"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 2}
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pins = {8: ord("]"), 5: ord('"')}
        fill = check(*both(schema, WORDS, noise(rng, 9, WORDS), pins, budget=20))
        found += fill is not None
    assert found > 10


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "maxLength": 5}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, -np.nan])
def test_what_is_no_number_is_refused_by_both(schema: Any, dtype: Any, value: float) -> None:
    log_probs = noise(np.random.default_rng(0), 6, WORDS).astype(dtype)
    log_probs[3, ord("a")] = value
    for kind in (Lattices, Kernel):
        tokens: Any = compile_schema(schema, WORDS)._tokens
        with pytest.raises(ValueError, match="NaN"):
            kind(tokens).solve(
                tokens.start,
                StepScores.whole(log_probs),
                {},
                begin=0,
                budget=9,
                old_path=[],
                draw=None,
            )
