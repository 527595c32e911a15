"""The laws of a matcher, whatever the model says and whatever the engine commits."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentdiff.constraint import Grammar, Matcher, Vocabulary, compile_schema
from agentdiff.constraint.automaton import DONE
from agentdiff.errors import BudgetTooSmall
from tests.constraint.doubles import (
    BYTES,
    SCHEMAS,
    TREE,
    WORDS,
    decode,
    dumps,
    log_softmax,
    noise,
    text_of,
    written,
)

TOOL: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days"],
}


def threshold(rng: np.random.Generator):
    def choose(confidence: NDArray[np.float64], still_open: list[int]) -> list[int]:
        sure = [i for i in still_open if confidence[i] >= 0.9]
        return sure or [max(still_open, key=lambda i: confidence[i])]

    return choose


def one_by_one(rng: np.random.Generator):
    return lambda confidence, still_open: [int(rng.choice(still_open))]


def some(rng: np.random.Generator):
    def choose(confidence: NDArray[np.float64], still_open: list[int]) -> list[int]:
        return rng.choice(
            still_open, int(rng.integers(1, len(still_open) + 1)), replace=False
        ).tolist()

    return choose


def backwards(rng: np.random.Generator):
    return lambda confidence, still_open: still_open[-2:]


ORDERS = {"threshold": threshold, "one by one": one_by_one, "some": some, "backwards": backwards}


def check(
    schema: Any, vocabulary: Vocabulary, grammar: Grammar, tokens: list[int], budget: int
) -> Any:
    """The text is within the budget, parses, and satisfies the schema."""
    assert written(tokens, vocabulary) <= budget
    text = text_of(tokens, vocabulary)
    value = json.loads(text.decode())
    jsonschema.Draft202012Validator(schema).validate(value)
    assert grammar.accepts(text)
    return value


@settings(max_examples=60, deadline=None)
@given(
    schema=SCHEMAS,
    seed=st.integers(0, 2**32),
    order=st.sampled_from(sorted(ORDERS)),
    slack=st.sampled_from([0, 2, 2, 25]),
    block=st.sampled_from([3, 8, 16]),
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    style=st.sampled_from(["spaced", "compact"]),
)
def test_every_text_parses_validates_and_keeps_its_budget(
    schema: Any, seed: int, order: str, slack: int, block: int, temperature: float, style: Any
) -> None:
    rng = np.random.default_rng(seed)
    grammar = compile_schema(schema, WORDS, style=style)
    budget = grammar.min_tokens + slack
    tokens = decode(
        grammar.start(budget),
        WORDS,
        rng,
        block=block,
        choose=ORDERS[order](rng),
        temperature=temperature,
    )
    check(schema, WORDS, grammar, tokens, budget)


@pytest.mark.parametrize("slack", [2, 40])
@pytest.mark.parametrize(
    "schema",
    [TREE, {}, TOOL, TOOL | {"additionalProperties": True}],
    ids=["tree", "any", "tool", "open"],
)
def test_recursive_and_open_schemas_keep_the_law(schema: Any, slack: int) -> None:
    grammar = compile_schema(schema, WORDS)
    for seed, order in itertools.product(range(2), sorted(ORDERS)):
        rng = np.random.default_rng(seed)
        budget = grammar.min_tokens + slack
        tokens = decode(grammar.start(budget), WORDS, rng, block=12, choose=ORDERS[order](rng))
        check(schema, WORDS, grammar, tokens, budget)


@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_each_open_state_has_a_token_that_brings_it_closer_to_the_end(
    schema: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    grammar = compile_schema(schema, WORDS)
    automaton = grammar._tokens
    state = automaton.start
    for _ in range(30):
        targets, sets = automaton.edges(state)
        costs = [automaton.cost(t) for t in targets.tolist()]
        cost = automaton.cost(state)
        assert cost == 0 or min(costs) <= cost - 1
        if state == DONE:
            break
        assert (cost == 0) == automaton.automaton.may_end(state)
        # What an edge says is what the bytes say.
        k = int(rng.integers(len(targets)))
        token = int(rng.choice(automaton.sets.members(int(sets[k]))))
        assert automaton.step(state, token) == targets[k]
        assert sum(token in automaton.sets.members(s) for s in sets.tolist()) == 1
        state = int(targets[k])


@settings(max_examples=25, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_edges_hold_exactly_the_tokens_whose_bytes_go_on(schema: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    automaton = compile_schema(schema, WORDS)._tokens
    state = automaton.start
    for _ in range(8):
        targets, sets = automaton.edges(state)
        listed = {
            t: q
            for q, s in zip(targets.tolist(), sets.tolist(), strict=True)
            for t in automaton.sets.members(s).tolist()
        }
        for token in range(len(WORDS)):
            assert automaton.step(state, token) == listed.get(token, -1)
        if state == DONE:
            break
        state = int(rng.choice(targets))


@settings(max_examples=30, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), slack=st.integers(0, 12))
def test_pins_from_any_earlier_fill_are_feasible_for_any_model(
    schema: Any, seed: int, slack: int
) -> None:
    rng = np.random.default_rng(seed)
    grammar = compile_schema(schema, WORDS)
    matcher = grammar.start(grammar.min_tokens + slack)
    first = matcher.propose(noise(rng, 10, WORDS), {})
    second = matcher.propose(noise(rng, 10, WORDS), {})
    for fill in (second, first, second):
        chosen = rng.choice(10, int(rng.integers(0, 11)), replace=False).tolist()
        pins = {i: int(fill.tokens[i]) for i in chosen}
        proposal = matcher.propose(noise(rng, 10, WORDS), pins)
        assert all(proposal.tokens[i] == t for i, t in pins.items())
        matcher.copy().advance(proposal.tokens.tolist())


@settings(max_examples=40, deadline=None)
@given(
    schema=SCHEMAS,
    seed=st.integers(0, 2**32),
    slack=st.integers(0, 12),
    pull=st.sampled_from([-40.0, 0.0, 40.0]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_the_end_stands_only_behind_a_whole_text(
    schema: Any, seed: int, slack: int, pull: float, temperature: float
) -> None:
    """However much the model wants EOS, or anything but EOS."""
    rng = np.random.default_rng(seed)
    grammar = compile_schema(schema, WORDS)
    matcher = grammar.start(grammar.min_tokens + slack)
    while not matcher.must_stop:
        scores = noise(rng, 6, WORDS)
        scores[:, list(WORDS.eos_ids)] += pull
        proposal = matcher.propose(log_softmax(scores), {}, temperature=temperature, rng=rng)
        for token in proposal.tokens.tolist():
            may_stop = matcher.can_stop
            if token in WORDS.eos_ids:
                assert may_stop
            elif not may_stop:
                with pytest.raises(ValueError, match="forbids"):
                    matcher.copy().advance([WORDS.eos_ids[0]])
            matcher.advance([token])
    assert matcher.can_stop


def test_infeasible_pins_are_named() -> None:
    grammar = compile_schema(TOOL, BYTES)
    matcher = grammar.start(60)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"positions \[0\]"):
        matcher.propose(noise(rng, 8, BYTES), {0: ord("x"), 5: ord('"')})
    with pytest.raises(ValueError, match=r"positions \[2, 3\]"):
        matcher.propose(noise(rng, 8, BYTES), {2: ord("c"), 3: ord("x"), 7: ord(":")})
    with pytest.raises(ValueError, match="lie outside"):
        matcher.propose(noise(rng, 8, BYTES), {8: 0})
    # A refused step leaves the matcher as it was.
    proposal = matcher.propose(noise(rng, 8, BYTES), {2: ord("c")})
    assert text_of(proposal.tokens.tolist(), BYTES) == b'{"city":'


def test_malformed_steps_are_refused() -> None:
    matcher = compile_schema(TOOL, BYTES).start(60)
    good = noise(np.random.default_rng(0), 4, BYTES)
    for wrong in (good[0], good[:0], good[:, :-1]):
        with pytest.raises(ValueError, match="must be"):
            matcher.propose(wrong, {})
    with pytest.raises(ValueError, match="temperature"):
        matcher.propose(good, {}, temperature=1.0)
    with pytest.raises(ValueError, match="NaN"):
        matcher.propose(np.full_like(good, np.nan), {})


def test_a_budget_below_the_shortest_text_is_refused_with_the_number() -> None:
    grammar = compile_schema(TOOL, BYTES)
    shortest = len('{"city": "", "days": 1}')
    assert grammar.min_tokens == shortest
    with pytest.raises(BudgetTooSmall) as error:
        grammar.start(shortest - 1)
    assert (error.value.needed, error.value.budget) == (shortest, shortest - 1)
    assert grammar.start(shortest).tokens_left == shortest


def test_the_shortest_text_is_counted_in_the_longest_tokens() -> None:
    grammar = compile_schema(
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, WORDS
    )
    # {"  city  ":_"  "}
    assert grammar.min_tokens == 4


def test_tokens_after_the_end_are_eos_and_cost_no_budget() -> None:
    grammar = compile_schema({"const": True}, WORDS)
    matcher = grammar.start(5)
    rng = np.random.default_rng(0)
    proposal = matcher.propose(noise(rng, 6, WORDS), {})
    assert set(proposal.tokens[5:].tolist()) <= set(WORDS.eos_ids)
    matcher.advance(proposal.tokens.tolist())
    assert matcher.must_stop
    assert matcher.can_stop
    assert matcher.min_tokens_left == 0
    assert matcher.tokens_left == 5 - written(proposal.tokens.tolist(), WORDS)
    again = matcher.propose(noise(rng, 4, WORDS), {1: WORDS.eos_ids[1]})
    assert set(again.tokens.tolist()) <= set(WORDS.eos_ids)
    assert again.tokens[1] == WORDS.eos_ids[1]
    assert again.forced.all()
    assert again.confidence.tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="no valid fill"):
        matcher.propose(noise(rng, 4, WORDS), {2: 65})


def test_a_block_longer_than_the_budget_ends_in_eos() -> None:
    grammar = compile_schema({"type": "array", "items": {"type": "integer"}}, BYTES)
    for seed in range(10):
        proposal = grammar.start(7).propose(noise(np.random.default_rng(seed), 12, BYTES), {})
        assert written(proposal.tokens.tolist(), BYTES) <= 7
        assert grammar.accepts(text_of(proposal.tokens.tolist(), BYTES))


def test_advance_refuses_what_the_grammar_forbids_and_stays() -> None:
    grammar = compile_schema(TOOL, BYTES)
    matcher = grammar.start(grammar.min_tokens + 1)
    with pytest.raises(ValueError, match="position 2"):
        matcher.advance(list(b'{"x'))
    with pytest.raises(ValueError, match="forbids"):
        matcher.advance([BYTES.eos_ids[0]])
    with pytest.raises(ValueError, match="needed to close"):
        matcher.advance(list(b'{"city": "ab'))
    assert matcher.min_tokens_left == grammar.min_tokens
    matcher.advance(list(b'{"city": "a'))
    assert matcher.min_tokens_left == matcher.tokens_left


def test_stopping_may_be_possible_without_being_necessary() -> None:
    grammar = compile_schema({"type": "integer", "minimum": 0, "maximum": 25}, BYTES)
    matcher = grammar.start(5)
    assert not matcher.can_stop
    matcher.advance(b"2")
    assert matcher.can_stop
    assert not matcher.must_stop
    other = matcher.copy()
    other.advance(b"5")
    assert other.must_stop
    assert not matcher.must_stop
    tight = grammar.start(1)
    tight.advance(b"2")
    assert tight.must_stop  # no budget for a second digit


def test_a_grammar_that_is_fixed_needs_no_model() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"const": "Bern"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    grammar = compile_schema(schema, BYTES)
    text = b'{"city": "Bern"}'
    proposal = grammar.start(40).propose(noise(np.random.default_rng(0), 20, BYTES), {})
    assert proposal.tokens.tolist() == [*text, *[256] * 4]
    assert proposal.forced.all()
    assert grammar.start(40).forced_prefix(6) == list(text[:6])
    assert grammar.start(40).forced_prefix(99) == list(text)
    assert compile_schema(TOOL, BYTES).start(40).forced_prefix(99) == list(b'{"city": "')


def test_a_position_with_two_spellings_is_sure_but_not_forced() -> None:
    schema = {"const": {"name": 1}}
    proposal = (
        compile_schema(schema, WORDS)
        .start(20)
        .propose(noise(np.random.default_rng(0), 12, WORDS), {})
    )
    assert not proposal.forced[0]  # `{` or `{"`
    assert proposal.forced[-1]


def test_a_long_block_of_any_json_is_filled_with_what_the_model_wants() -> None:
    grammar = compile_schema({}, BYTES)
    wanted = dumps({"a": [1, {"b": "naïve 日本"}], "c": -0.5, "d": [True, None, [[]]]})
    scores = np.full((len(wanted) + 4, len(BYTES)), -12.0)
    for i, byte in enumerate([*wanted, *[256] * 4]):
        scores[i, byte] = 0.0
    proposal = grammar.start(200).propose(scores, {})
    assert text_of(proposal.tokens.tolist(), BYTES) == wanted


def test_matchers_of_one_grammar_do_not_disturb_each_other() -> None:
    grammar = compile_schema(TOOL, WORDS)
    rngs = [np.random.default_rng(s) for s in range(3)]
    matchers: list[Matcher] = [grammar.start(30) for _ in rngs]
    together = [
        m.propose(noise(r, 8, WORDS), {}).tokens.tolist()
        for m, r in zip(matchers, rngs, strict=True)
    ]
    for seed, expected in enumerate(together):
        alone = compile_schema(TOOL, WORDS).start(30)
        assert (
            alone.propose(noise(np.random.default_rng(seed), 8, WORDS), {}).tokens.tolist()
            == expected
        )


def test_the_dtype_of_the_scores_does_not_matter() -> None:
    grammar = compile_schema(TOOL, WORDS)
    scores = noise(np.random.default_rng(3), 8, WORDS)
    wide, narrow = (grammar.start(30).propose(s, {}) for s in (scores, scores.astype(np.float32)))
    assert wide.tokens.tolist() == narrow.tokens.tolist()
    assert np.allclose(wide.confidence, narrow.confidence, atol=1e-4)
