"""What is large is served or refused at once, never slowly."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from agentdiff.constraint import Grammar, compile_choice, compile_schema
from agentdiff.constraint.automaton import (
    END,
    INFINITE,
    Node,
    Rule,
    byte_range,
    call,
    choice,
    literal,
)
from agentdiff.constraint.closing import Closing
from agentdiff.errors import SchemaError
from tests.constraint.doubles import BYTES, WORDS, noise


def nth_last_is_a(n: int) -> Node:
    """`[ab]*a[ab]{n}`: a deterministic automaton needs 2**n states."""
    tail = END
    for _ in range(n):
        tail = byte_range(ord("a"), ord("b"), tail)
    start = Node(n + 1)
    start.arcs += [(ord("a"), ord("b"), start), (ord("a"), ord("a"), tail)]
    return start


def test_a_pattern_that_explodes_is_built_only_where_somebody_looks() -> None:
    grammar = Grammar(nth_last_is_a(13), BYTES)
    assert grammar.accepts(b"ab" * 100 + b"a" + b"b" * 13)
    assert not grammar.accepts(b"b" * 14)
    assert len(grammar._tokens.automaton) < 1000


def test_too_many_states_are_an_error_that_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentdiff.constraint.states.MAX_STATES", 100)
    grammar = Grammar(nth_last_is_a(13), BYTES)
    text = bytes(np.random.default_rng(0).integers(97, 99, 4000, dtype=np.uint8))
    with pytest.raises(SchemaError, match="100 states"):
        grammar.accepts(text)


def test_the_places_of_a_counted_string_take_little_memory() -> None:
    grammar = compile_schema({"type": "string", "maxLength": 5000}, BYTES)
    text = b'"' + "日".encode() * 2000
    tracemalloc.start()
    try:
        with grammar._tokens.lock:
            state = grammar._tokens.automaton.step(grammar._tokens.start, text)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grammar._tokens.automaton.costs[state] == 1
    states = len(grammar._tokens.automaton)
    assert states > 10_000  # nine to a character
    assert taken < 120 * states
    assert taken / 2 < grammar.nbytes < 2 * taken


def test_calls_may_follow_by_the_thousand() -> None:
    rule = Rule(2)
    rule.start = literal(b"ab", END)
    node = END
    for _ in range(20_000):
        node = call(rule, node)
    assert Closing(BYTES).price(node) == 40_000
    deep = Rule(2)
    deep.start = literal(b"ab", END)
    for _ in range(20_000):
        outer = Rule(deep.near + 1)
        outer.start = byte_range(ord("x"), ord("x"), call(deep, END))
        deep = outer
    assert Closing(BYTES).price(call(deep, END)) == 20_002


def test_what_cannot_be_spelled_has_no_price() -> None:
    letters = compile_schema({"const": 1}, WORDS).vocabulary
    assert Closing(letters).price(choice([])) == INFINITE


def test_ten_thousand_choices_take_little() -> None:
    texts = [f"item {i:05d} of the catalogue" for i in range(10_000)]
    grammar = compile_choice(texts, WORDS)
    proposal = grammar.start(60).propose(noise(np.random.default_rng(0), 24, WORDS), {})
    text = b"".join(WORDS.tokens[t] or b"" for t in proposal.tokens.tolist())
    assert any(choice.encode().startswith(text) for choice in texts)
    assert grammar.nbytes < 4_000_000
