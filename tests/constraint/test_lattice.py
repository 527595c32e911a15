"""The lattice against trying every sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from agentdiff.constraint import Vocabulary, compile_schema
from tests.constraint.doubles import TINY, WORDS, every_fill, log_softmax, text_of

SCHEMAS = {
    "object": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 30}},
        "required": ["a"],
    },
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"const": True}},
    },
    "string": {"type": "string", "maxLength": 3},
    "free string": {"type": "string"},
    "values": {"enum": ["a", "ab", "b", True, 1, 12, 112, {"a": 1}]},
    "open": {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "additionalProperties": {"const": 2},
    },
}


def score_of(fill: tuple[int, ...], log_probs: NDArray[np.float64], pins: dict[int, int]) -> float:
    return float(sum(log_probs[i, t] for i, t in enumerate(fill) if i not in pins))


CASES = [
    (name, length, slack, pinned)
    for (name, (length, slack)), pinned in itertools.product(
        [("object", (5, 3)), ("object", (4, 1)), ("optional", (4, 3)), ("string", (4, 0)),
         ("string", (3, 2)), ("free string", (3, 1)), ("values", (4, 2)), ("open", (4, 4))],
        [(), (1,), (2,), (0, 2)],
    )
]  # fmt: skip


@pytest.mark.parametrize(("name", "length", "slack", "pinned"), CASES)
def test_witness_and_marginals_equal_those_of_every_sequence(
    name: str, length: int, slack: int, pinned: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(len(name) + length + sum(pinned))
    grammar = compile_schema(SCHEMAS[name], TINY)
    budget = grammar.min_tokens + slack
    fills = every_fill(grammar, TINY, length, budget)
    assert fills
    log_probs = log_softmax(rng.standard_normal((length, len(TINY))) * 2)
    chosen = fills[int(rng.integers(len(fills)))]
    pins = {i: chosen[i] for i in pinned}
    fills = [f for f in fills if all(f[i] == t for i, t in pins.items())]
    scores = np.array([score_of(f, log_probs, pins) for f in fills])
    posterior = np.exp(scores - scores.max())
    posterior /= posterior.sum()

    proposal = grammar.start(budget).propose(log_probs, pins)

    witness = tuple(proposal.tokens.tolist())
    assert witness in set(fills)
    assert score_of(witness, log_probs, pins) == pytest.approx(float(scores.max()), abs=1e-9)
    for i in range(length):
        exact = sum(p for f, p in zip(fills, posterior, strict=True) if f[i] == witness[i])
        assert proposal.confidence[i] == pytest.approx(exact, abs=1e-9)
        assert proposal.forced[i] == (len({f[i] for f in fills}) == 1)


def test_samples_follow_the_exact_posterior() -> None:
    schema = {"enum": ["a", "ab", "b", True, 1, 12, 112]}
    rng = np.random.default_rng(5)
    grammar = compile_schema(schema, TINY)
    length, budget, temperature = 4, grammar.min_tokens + 3, 0.7
    log_probs = log_softmax(rng.standard_normal((length, len(TINY))))
    fills = every_fill(grammar, TINY, length, budget)
    scores = np.array([score_of(f, log_probs, {}) for f in fills]) / temperature
    expected = np.exp(scores - scores.max())
    expected /= expected.sum()
    matcher = grammar.start(budget)
    draws = 4000
    counts = dict.fromkeys(fills, 0)
    for _ in range(draws):
        counts[
            tuple(matcher.propose(log_probs, {}, temperature=temperature, rng=rng).tokens.tolist())
        ] += 1
    observed = np.array([counts[f] for f in fills])
    common = expected * draws >= 5
    rest_observed, rest_expected = observed[~common].sum(), expected[~common].sum() * draws
    statistic = (
        (observed[common] - expected[common] * draws) ** 2 / (expected[common] * draws)
    ).sum()
    if rest_expected > 0:
        statistic += (rest_observed - rest_expected) ** 2 / rest_expected
    degrees = int(common.sum())
    # The 99.9 % point of chi-square, by Wilson and Hilferty.
    assert degrees > 5
    assert statistic < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3


def test_large_token_sets_give_the_same_numbers_as_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    words = sorted(
        {bytes(rng.integers(97, 123, int(n)).tolist()) for n in rng.integers(2, 6, 14_000)}
    )
    vocabulary = Vocabulary([*(bytes([b]) for b in range(256)), *words, None], [256 + len(words)])
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string", "maxLength": 9}},
    }
    log_probs = log_softmax(rng.standard_normal((8, len(vocabulary))) * 4)
    log_probs[3, 34] = log_probs[3].max() + 1  # a quote ahead of every word
    log_probs = log_softmax(log_probs)

    def propose(temperature: float) -> tuple[list[int], list[float]]:
        matcher = compile_schema(schema, vocabulary).start(30)
        matcher.advance([ord(c) for c in '{"a": "'])
        proposal = matcher.propose(
            log_probs, {}, temperature=temperature, rng=np.random.default_rng(0)
        )
        return proposal.tokens.tolist(), proposal.confidence.tolist()

    summed = {t: propose(t) for t in (0.0, 1.3)}
    monkeypatch.setattr("agentdiff.constraint.sets._LARGE", 10**9)
    for temperature, (tokens, confidence) in summed.items():
        gathered = propose(temperature)
        assert gathered[0] == tokens
        assert gathered[1] == pytest.approx(confidence, abs=1e-9)


def test_a_sample_bears_the_confidence_of_the_untempered_model() -> None:
    rng = np.random.default_rng(1)
    grammar = compile_schema(SCHEMAS["values"], TINY)
    budget, length = grammar.min_tokens + 2, 4
    log_probs = log_softmax(rng.standard_normal((length, len(TINY))))
    fills = every_fill(grammar, TINY, length, budget)
    posterior = np.exp([score_of(f, log_probs, {}) for f in fills])
    posterior /= posterior.sum()
    proposal = grammar.start(budget).propose(log_probs, {}, temperature=2.0, rng=rng)
    for i, token in enumerate(proposal.tokens.tolist()):
        exact = sum(p for f, p in zip(fills, posterior, strict=True) if f[i] == token)
        assert proposal.confidence[i] == pytest.approx(exact, abs=1e-9)


def test_a_model_that_rules_out_what_the_grammar_demands_gets_a_valid_fill_all_the_same() -> None:
    grammar = compile_schema(SCHEMAS["object"], TINY)
    log_probs = np.full((5, len(TINY)), -np.inf)
    log_probs[:, 1] = 0.0  # sure of a closing brace everywhere
    matcher = grammar.start(5)
    proposal = matcher.propose(log_probs, {})
    assert grammar.accepts(text_of(proposal.tokens.tolist(), TINY))
    assert np.isfinite(proposal.confidence).all()


def test_confidence_survives_scores_too_small_for_a_double() -> None:
    grammar = compile_schema({"type": "string"}, TINY)
    log_probs = np.full((12, len(TINY)), -200.0)
    log_probs[:, 1] = 0.0
    log_probs[:, 3] = -190.0
    proposal = grammar.start(12).propose(log_probs, {11: TINY.eos_ids[0]})
    assert np.isfinite(proposal.confidence).all()
    assert proposal.confidence.max() <= 1.0
    assert grammar.accepts(text_of(proposal.tokens.tolist(), TINY))


def test_what_the_budget_forces_is_sure_even_where_the_model_rules_it_out() -> None:
    grammar = compile_schema({"type": "integer", "minimum": 0}, WORDS)
    log_probs = np.full((3, len(WORDS)), -np.inf)
    log_probs[:, ord("1")] = 0.0  # ends neither by the one nor by the other end token
    proposal = grammar.start(1).propose(log_probs, {})
    assert text_of(proposal.tokens.tolist(), WORDS) == b"1"
    assert proposal.confidence.tolist() == [1.0] * 3
