"""The measurements: a small run of them is a test of validity on the tightest budgets."""

from __future__ import annotations

import pytest

from agentdiff.constraint import bench
from agentdiff.constraint.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return bench.bench_vocabulary(3000)[0]


def test_texts_written_by_noise_are_valid_and_within_budget(vocabulary: Vocabulary) -> None:
    figures = bench.measure_validity(bench.sample_schemas(), vocabulary, block=16, seeds=1, slack=4)
    assert not figures.refused
    assert not figures.wrong
    assert figures.texts == figures.valid == 2 * len(bench.sample_schemas())
    assert figures.over_budget == 0


def test_costs_are_counted_for_every_schema(vocabulary: Vocabulary) -> None:
    schemas = {"weather": bench.sample_schemas()["weather"], "nothing": False}
    figures = bench.measure_costs(schemas, vocabulary, block=8)
    assert [name for name, _ in figures.refused] == ["nothing"]
    assert len(figures.compile_s) == len(figures.cold_s) == len(figures.warm_s) == 1
    assert figures.cold_s[0] >= figures.compile_s[0] > 0
    assert len(figures.step_s) == len(figures.fresh_step_s) > 1
    assert figures.texts == figures.valid == 2
    assert 0 < figures.grammar_bytes[0] < 2e6


def test_what_is_not_valid_is_told(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "required": ["a"]}
    tokens = [vocabulary.tokens.index(bytes([b])) for b in b'{"b": 1}']
    assert not bench.is_valid(tokens, vocabulary, schema)
    assert bench.is_valid(tokens, vocabulary, {"type": "object"})
    assert not bench.is_valid(tokens[:-1], vocabulary, {})


def test_quantiles() -> None:
    assert bench.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert bench.quantile([3.0, 1.0], 1.0) == 3.0
    assert bench.quantile([], 0.5) == 0.0
