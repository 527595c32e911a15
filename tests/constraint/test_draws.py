"""Samples of a nucleus: which tokens they may hold, and how often."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentdiff.constraint import compile_schema
from agentdiff.constraint.draws import draw_of_nucleus
from tests.constraint.doubles import SCHEMAS, TINY, WORDS, every_fill, log_softmax, noise, text_of
from tests.constraint.test_lattice import SCHEMAS as SMALL

Fills = list[tuple[int, ...]]


def weights(fills: Fills, log_probs: NDArray[np.float64], temperature: float) -> list[float]:
    """The probability of each fill under the tempered model, given that one of them is written."""
    scores = np.array([log_probs[range(len(f)), f].sum() for f in fills]) / temperature
    shares = np.exp(scores - scores.max())
    return (shares / shares.sum()).tolist()


def nucleus(shares: dict[int, float], top_p: float) -> dict[int, float]:
    """The likeliest tokens that together have probability `top_p`, normalised."""
    kept: dict[int, float] = {}
    for token in sorted(shares, key=lambda token: -shares[token]):
        if sum(kept.values()) >= top_p:
            break
        kept[token] = shares[token]
    whole = sum(kept.values())
    return {token: share / whole for token, share in kept.items()}


def in_nucleus(
    fills: Fills, shares: list[float], top_p: float, start: tuple[int, ...] = ()
) -> dict[tuple[int, ...], float]:
    """Fill → probability when every token is drawn from the nucleus of what may follow."""
    if len(start) == len(fills[0]):
        return {start: 1.0}
    following: dict[int, float] = {}
    for fill, share in zip(fills, shares, strict=True):
        if fill[: len(start)] == start:
            following[fill[len(start)]] = following.get(fill[len(start)], 0.0) + share
    whole = sum(following.values())
    kept = nucleus({token: share / whole for token, share in following.items()}, top_p)
    return {
        fill: share * probability
        for token, share in kept.items()
        for fill, probability in in_nucleus(fills, shares, top_p, (*start, token)).items()
    }


@pytest.mark.parametrize("name", ["object", "string", "values"])
@pytest.mark.parametrize("top_p", [0.9, 0.6, 0.2])
def test_every_token_is_drawn_from_the_nucleus_of_what_may_follow(name: str, top_p: float) -> None:
    rng = np.random.default_rng(3)
    grammar = compile_schema(SMALL[name], TINY)
    length, budget, temperature, draws = 4, grammar.min_tokens + 1, 0.8, 500
    log_probs = log_softmax(rng.standard_normal((length, len(TINY))))
    fills = every_fill(grammar, TINY, length, budget)
    expected = in_nucleus(fills, weights(fills, log_probs, temperature), top_p)
    matcher = grammar.start(budget)
    seen = Counter(
        tuple(
            matcher.propose(
                log_probs, {}, temperature=temperature, top_p=top_p, rng=rng
            ).tokens.tolist()
        )
        for _ in range(draws)
    )
    assert set(seen) <= set(expected)
    for fill, probability in expected.items():
        spread = (draws * probability * (1 - probability)) ** 0.5
        assert abs(seen[fill] - draws * probability) <= 5 * spread + 1


def test_a_nucleus_of_all_is_the_whole_distribution() -> None:
    shares = np.array([0.5, 0.25, 0.125, 0.125])
    assert [draw_of_nucleus(shares, 1.0, u) for u in (0.0, 0.6, 0.8, 0.99)] == [0, 1, 2, 3]
    assert {draw_of_nucleus(shares, 0.75, u) for u in np.linspace(0, 0.999, 50)} == {0, 1}
    assert {draw_of_nucleus(shares, 0.1, u) for u in np.linspace(0, 0.999, 50)} == {0}


@settings(max_examples=30, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), top_p=st.sampled_from([0.01, 0.5, 0.9]))
def test_a_seed_reproduces_and_what_is_drawn_is_valid(schema: Any, seed: int, top_p: float) -> None:
    grammar = compile_schema(schema, WORDS)
    rows = noise(np.random.default_rng(seed), 12, WORDS)
    drawn: list[list[int]] = []
    for _ in range(2):
        matcher, rng = grammar.start(grammar.min_tokens + 8), np.random.default_rng(seed)
        text: list[int] = []
        while not matcher.must_stop:
            fill = matcher.propose(rows, {}, temperature=1.0, top_p=top_p, rng=rng)
            matcher.advance(fill.tokens.tolist())
            text += fill.tokens.tolist()
        assert grammar.accepts(text_of(text, WORDS))
        drawn.append(text)
    assert drawn[0] == drawn[1]


def test_the_confidence_of_a_draw_is_that_of_the_whole_distribution() -> None:
    grammar = compile_schema(SMALL["values"], TINY)
    log_probs = log_softmax(np.random.default_rng(1).standard_normal((4, len(TINY))))
    fills = every_fill(grammar, TINY, 4, grammar.min_tokens + 2)
    posterior = weights(fills, log_probs, 1.0)
    matcher = grammar.start(grammar.min_tokens + 2)
    fill = matcher.propose(log_probs, {}, temperature=0.5, top_p=0.3, rng=np.random.default_rng(0))
    for i, token in enumerate(fill.tokens.tolist()):
        exact = sum(p for f, p in zip(fills, posterior, strict=True) if f[i] == token)
        assert fill.confidence[i] == pytest.approx(exact, abs=1e-9)


def test_the_likeliest_fill_knows_no_nucleus() -> None:
    grammar = compile_schema(SMALL["free string"], TINY)
    rows = noise(np.random.default_rng(4), 8, TINY)
    plain = grammar.start(8).propose(rows, {})
    cut = grammar.start(8).propose(rows, {}, top_p=0.01)
    assert plain.tokens.tolist() == cut.tokens.tolist()
    assert plain.confidence.tolist() == cut.confidence.tolist()


def test_a_nucleus_that_the_model_rules_out_is_drawn_all_the_same() -> None:
    grammar = compile_schema(SMALL["object"], TINY)
    rows = np.full((5, len(TINY)), -np.inf)
    rows[:, 1] = 0.0  # sure of a closing brace everywhere
    fill = grammar.start(5).propose(
        rows, {}, temperature=0.7, top_p=0.5, rng=np.random.default_rng(0)
    )
    assert grammar.accepts(text_of(fill.tokens.tolist(), TINY))


@pytest.mark.parametrize("top_p", [0.0, -0.5, 1.5])
def test_a_wrong_nucleus_is_named(top_p: float) -> None:
    matcher = compile_schema({"type": "string"}, TINY).start(4)
    with pytest.raises(ValueError, match="`top_p` must be in"):
        matcher.propose(np.zeros((2, len(TINY))), {}, top_p=top_p)
