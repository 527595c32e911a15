"""Scores by parts: the same fills as from whole rows, with the reference and with the kernel."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import Grammar, Vocabulary, compile_schema
from agentdiff.constraint import step as module
from agentdiff.constraint.parts import Parts
from agentdiff.constraint.step import StepSolver
from agentdiff.constraint.step_scores import StepScores
from tests.constraint.doubles import SCHEMAS, TINY, TREE, WORDS, log_softmax, noise, text_of

KINDS = ["reference"] + (["kernel"] if importlib.util.find_spec("numba") else [])


@pytest.fixture(autouse=True, params=KINDS)
def small_sets_are_groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentdiff.constraint.parts._FEW", 3)
    monkeypatch.setattr("agentdiff.constraint.parts._LEAST", 2)
    monkeypatch.setattr("agentdiff.constraint.sets._LARGE", 16)
    pays_from = 1 if request.param == "kernel" else 10**9
    monkeypatch.setattr(module, "_PAYS_FROM", pays_from)


def fresh(grammar: Grammar) -> Grammar:
    """The same grammar with a solver of its own, so that the one asked for is taken."""
    grammar._solver = StepSolver(grammar._tokens)
    return grammar


@settings(max_examples=40, deadline=None)
@given(
    schema=st.one_of(SCHEMAS, st.just(TREE), st.just({"type": "string", "pattern": "^[a-z ]*$"})),
    seed=st.integers(0, 2**32),
    slack=st.sampled_from([0, 1, 6, 60]),
    sigma=st.sampled_from([0.5, 3.0, 30.0]),
    is_cold=st.booleans(),
)
def test_parts_of_rows_give_the_proposal_of_the_rows(
    schema: Any, seed: int, slack: int, sigma: float, is_cold: bool
) -> None:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 12))
    grammar = fresh(compile_schema(schema, WORDS))
    other = fresh(compile_schema(schema, WORDS)) if is_cold else grammar
    whole, parted = (g.start(grammar.min_tokens + slack) for g in (grammar, other))
    pins: dict[int, int] = {}
    for _ in range(2):
        rows = noise(rng, length, WORDS, sigma)
        one = whole.propose(rows, pins)
        two = parted.propose(StepScores.reduced(rows, parted.parts), pins)
        assert one.tokens.tolist() == two.tokens.tolist()
        assert np.abs(one.confidence - two.confidence).max() <= 1e-6
        assert one.forced.tolist() == two.forced.tolist()
        chosen = rng.choice(length, int(rng.integers(0, length + 1)), replace=False).tolist()
        pins = {i: int(one.tokens[i]) for i in chosen}


def test_draws_by_parts_follow_the_same_distribution() -> None:
    grammar = fresh(compile_schema({"type": "string", "maxLength": 3}, TINY))
    rng = np.random.default_rng(2)
    rows = log_softmax(rng.standard_normal((4, len(TINY))))
    temperature, draws = 0.7, 1200
    matcher = grammar.start(4)
    seen: list[Counter[tuple[int, ...]]] = [Counter(), Counter()]
    for _ in range(draws):
        for counter, is_parted in zip(seen, (False, True), strict=True):
            scores: Any = rows
            if is_parted:
                parts = matcher.parts
                scores = StepScores.reduced(rows, parts, temperature=temperature, rng=rng)
            fill = matcher.propose(scores, {}, temperature=temperature, rng=rng)
            counter[tuple(fill.tokens.tolist())] += 1
    # Two samples of one distribution: chi-square of their difference, by Wilson and Hilferty.
    common = [f for f in seen[0] | seen[1] if seen[0][f] + seen[1][f] >= 10]
    differences = [(seen[0][f] - seen[1][f]) ** 2 / (seen[0][f] + seen[1][f]) for f in common]
    degrees = len(common)
    assert degrees > 10
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert sum(differences) < limit


def test_a_draw_bears_the_confidence_of_the_untempered_model() -> None:
    grammar = fresh(compile_schema({"type": "string"}, WORDS))
    rng = np.random.default_rng(0)
    rows = noise(rng, 9, WORDS)
    matcher = grammar.start(20)
    matcher.propose(rows, {})
    scores = StepScores.reduced(rows, matcher.parts, temperature=1.5, rng=rng)
    fill = matcher.propose(scores, {}, temperature=1.5, rng=np.random.default_rng(1))
    pinned = grammar.start(20)
    # The fill as the best one: where nothing else is likely, its confidence is the same.
    for i, token in enumerate(fill.tokens.tolist()):
        rival = rows.copy()
        rival[i, token] += 60
        best = pinned.propose(log_softmax(rival), {})
        assert best.tokens[i] == token
        share = best.confidence[i] / np.exp(60)
        exact = fill.confidence[i] / (1 - fill.confidence[i] + np.exp(60) * fill.confidence[i])
        assert share == pytest.approx(exact, rel=1e-5)


def test_a_seed_draws_the_same_from_a_grammar_that_is_known_and_from_one_that_is_not() -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": "^[a-z ]{1,9}$"}}
    warm = fresh(compile_schema(schema, WORDS))
    for turn in range(3):
        rows = noise(np.random.default_rng(turn), 12, WORDS)
        drawn: list[list[int]] = []
        for grammar in (warm, fresh(compile_schema(schema, WORDS))):
            matcher, rng = grammar.start(20), np.random.default_rng(turn)
            scores = StepScores.reduced(rows, matcher.parts, temperature=1.0, rng=rng)
            fill = matcher.propose(scores, {}, temperature=1.0, rng=rng)
            drawn.append(fill.tokens.tolist())
        assert drawn[0] == drawn[1]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(schema=st.one_of(SCHEMAS, st.just(TREE)), seed=st.integers(0, 2**32))
def test_a_grammar_that_is_not_known_yet_hardly_asks_twice(schema: Any, seed: int) -> None:
    asked = 0

    def counted(scores: StepScores) -> StepScores:
        def renew(parts: Parts) -> StepScores:
            nonlocal asked
            asked += 1
            assert scores.renew is not None
            return counted(scores.renew(parts))

        return replace(scores, renew=renew)

    rows = noise(np.random.default_rng(seed), 16, WORDS)
    grammar = fresh(compile_schema(schema, WORDS))
    matcher = grammar.start(grammar.min_tokens + 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentdiff.constraint.parts._FEW", 512)  # as it is for real vocabularies
        matcher.propose(counted(StepScores.reduced(rows, matcher.parts)), {})
    assert asked <= 1


def test_positions_that_are_pinned_need_no_scores() -> None:
    grammar = fresh(compile_schema({"type": "array", "items": {"type": "string"}}, WORDS))
    rng = np.random.default_rng(5)
    rows = noise(rng, 10, WORDS)
    first = grammar.start(30).propose(rows, {})
    pins = {i: int(first.tokens[i]) for i in (0, 3, 4, 8)}
    places = np.array([1, 2, 5, 6, 7, 9])
    whole = grammar.start(30).propose(rows, pins)
    some = grammar.start(30).propose(StepScores.whole(rows[places], places=places, length=10), pins)
    assert whole.tokens.tolist() == some.tokens.tolist()
    assert whole.confidence.tolist() == some.confidence.tolist()
    blind = StepScores.whole(rows[places[1:]], places=places[1:], length=10)
    with pytest.raises(ValueError, match=r"positions \[1\] have neither scores nor a pin"):
        grammar.start(30).propose(blind, pins)


def test_what_the_model_rules_out_is_written_where_the_grammar_demands_it() -> None:
    grammar = fresh(compile_schema({"type": "string", "minLength": 2}, WORDS))
    rows = np.full((5, len(WORDS)), -np.inf)
    rows[:, ord("{")] = 0.0
    matcher = grammar.start(5)
    whole = matcher.propose(rows, {})
    parted = matcher.propose(StepScores.reduced(rows, matcher.parts), {})
    assert parted.tokens.tolist() == whole.tokens.tolist()
    assert parted.confidence == pytest.approx(whole.confidence, abs=1e-6)
    assert grammar.accepts(text_of(parted.tokens.tolist(), WORDS))


def test_what_is_no_number_is_refused() -> None:
    grammar = fresh(compile_schema({"type": "string", "maxLength": 5}, WORDS))
    rows = noise(np.random.default_rng(0), 6, WORDS)
    matcher = grammar.start(9)
    matcher.propose(rows, {})
    rows[3, ord("a")] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        matcher.propose(StepScores.reduced(rows, matcher.parts), {})


def test_scores_are_asked_by_token() -> None:
    grammar = fresh(compile_schema({"enum": ["a", "b"]}, WORDS))
    rows = noise(np.random.default_rng(0), 2, WORDS)
    matcher = grammar.start(4)
    matcher.propose(rows, {})
    tokens = matcher.parts.columns.tolist()[:3]
    for scores in (StepScores.whole(rows), StepScores.reduced(rows, matcher.parts)):
        assert scores.at(1, tokens).tolist() == rows[1, tokens].tolist()
    with pytest.raises(ValueError, match="not among"):
        StepScores.reduced(rows, matcher.parts).at(1, [ord("Z")])


def test_the_score_of_any_token_of_a_proposal_is_known() -> None:
    grammar = fresh(compile_schema({"type": "string"}, WORDS))
    rng = np.random.default_rng(3)
    rows = noise(rng, 12, WORDS)
    matcher = grammar.start(20)
    matcher.propose(rows, {})
    scores = StepScores.reduced(rows, matcher.parts, temperature=1.0, rng=rng)
    for temperature in (0.0, 1.0):
        tokens = matcher.propose(scores, {}, temperature=temperature, rng=rng).tokens.tolist()
        for i, token in enumerate(tokens):
            assert scores.at(i, [token]) == pytest.approx(rows[i, [token]])
    column = int(matcher.parts.columns[0])
    assert scores.without(0, column).at(0, [column]) < -50
    assert scores.at(0, [column]) > -50


def test_what_parts_cannot_do_is_named() -> None:
    grammar = fresh(compile_schema({"type": "string"}, WORDS))
    rows, rng = noise(np.random.default_rng(0), 4, WORDS), np.random.default_rng(0)
    matcher = grammar.start(9)
    scores = StepScores.reduced(rows, matcher.parts, temperature=0.5, rng=rng)
    with pytest.raises(ValueError, match=r"hold draws at 0\.5"):
        matcher.propose(scores, {}, temperature=0.7, rng=rng)
    with pytest.raises(ValueError, match="needs whole rows"):
        matcher.propose(scores, {}, temperature=0.5, top_p=0.9, rng=rng)
    matcher.propose(scores, {})  # the best fill needs no draws


def test_groups_are_shared_by_all_grammars_of_a_vocabulary() -> None:
    vocabulary = Vocabulary([*(bytes([b]) for b in range(256)), None], [256])
    one, two = (
        compile_schema({"type": kind}, vocabulary).start(9).parts for kind in ("string", "array")
    )
    assert one.shared is two.shared
    assert sum(len(ids) for ids in one.shared.ids) > 90
