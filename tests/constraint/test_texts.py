"""Texts without a schema: regex, choice, free text with a stop."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint.texts import compile_choice, compile_regex, compile_text
from agentdiff.errors import ConfigurationError, SchemaError
from tests.constraint.doubles import BYTES, WORDS, decode, text_of

SHORT = ["".join(letters) for n in range(6) for letters in product("ab", repeat=n)]


def test_a_regex_holds_for_the_whole_text() -> None:
    grammar = compile_regex("a+|b", BYTES)
    assert [t for t in SHORT if grammar.accepts(t.encode())] == [
        "a",
        "b",
        "aa",
        "aaa",
        "aaaa",
        "aaaaa",
    ]
    assert compile_regex(r"x\n\x01\"", BYTES).accepts(b'x\n\x01"')
    assert compile_regex(".*", BYTES).accepts("é😀".encode())
    assert not compile_regex(".*", BYTES).accepts(b"\xc3")
    assert compile_regex("[0-9]{3}-[0-9]{4}", WORDS).min_tokens <= 8
    with pytest.raises(SchemaError, match="no text"):
        compile_regex("[]", BYTES)
    with pytest.raises(SchemaError, match="back-reference"):
        compile_regex(r"(a)\1", BYTES)


def test_a_regex_that_could_go_on_may_go_on() -> None:
    """`[0-9]+` is complete after one digit, but need not stop."""
    grammar = compile_regex("[0-9]+", BYTES)
    matcher = grammar.start(9)
    matcher.advance([ord("1")])
    assert matcher.can_stop
    assert not matcher.must_stop
    grammar = compile_regex("[0-9]{2}", BYTES)
    matcher = grammar.start(9)
    matcher.advance([ord("1")])
    assert not matcher.can_stop
    matcher.advance([ord("1")])
    assert matcher.must_stop


def test_a_choice_is_one_of_its_texts() -> None:
    grammar = compile_choice(["yes", "no", "nö", ""], BYTES)
    assert all(grammar.accepts(t.encode()) for t in ("yes", "no", "nö", ""))
    assert not any(grammar.accepts(t.encode()) for t in ("ye", "yesno", "n", "maybe"))
    assert grammar.min_tokens == 0
    large = compile_choice([f"item {i}" for i in range(10_000)], WORDS)
    assert large.accepts(b"item 9999")
    for bad in ([], "yes", ["\ud800"]):
        with pytest.raises(ConfigurationError):
            compile_choice(bad, BYTES)


@pytest.mark.parametrize("stop", ["a", "aa", "ab", "aab", "aba", "abab"])
def test_a_stop_is_where_it_can_first_be_read(stop: str) -> None:
    grammar = compile_text(BYTES, stop=stop)
    expected = [t for t in SHORT if stop not in t or t.index(stop) + len(stop) == len(t)]
    assert [t for t in SHORT if grammar.accepts(t.encode())] == expected


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), stop=st.sampled_from(["\n\n", "END", "é", "</a>", "aa"]))
def test_free_text_is_well_formed_and_ends_at_its_stop(seed: int, stop: str) -> None:
    rng = np.random.default_rng(seed)
    tokens = decode(
        compile_text(WORDS, stop=stop).start(12), WORDS, rng, block=6, choose=lambda c, o: o
    )
    text = text_of(tokens, WORDS).decode()
    assert stop not in text[:-1]


def test_text_without_a_stop_takes_everything_but_broken_characters() -> None:
    grammar = compile_text(BYTES)
    assert grammar.min_tokens == 0
    assert grammar.accepts("anything\n\x00 <tool_call> é😀".encode())
    assert not grammar.accepts(b"\xff")
    assert not grammar.accepts("é".encode()[:1])
    with pytest.raises(ConfigurationError):
        compile_text(BYTES, stop="")
