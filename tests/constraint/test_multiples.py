"""Multiples are exactly those, between bounds and with few digits."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentdiff.constraint.automaton import END
from agentdiff.constraint.matcher import Grammar
from agentdiff.constraint.numbers import Bound, number
from tests.constraint.doubles import BYTES, WORDS, decode, text_of

STEPS = st.one_of(
    st.integers(1, 40).map(Decimal),
    st.sampled_from([*map(Decimal, ("0.1", "0.01", "0.5", "0.25", "2.5", "1.5", "0.03", "1E+2"))]),
    st.sampled_from([Decimal(10**9 + 7), Decimal(2**31), Decimal("0.001"), Decimal("1E-9")]),
)
VALUES = st.one_of(st.integers(-300, 300).map(Decimal), st.decimals(-99, 99, places=2))
BOUNDS = st.one_of(st.none(), st.builds(Bound, VALUES, st.booleans()))


def grammar_of(step: Decimal, low: Bound | None, high: Bound | None, whole: bool) -> Grammar | None:
    start = number(low, high, whole=whole, after=END, multiple_of=step)
    return None if start.is_dead else Grammar(start, BYTES)


def holds(value: Decimal, step: Decimal, low: Bound | None, high: Bound | None) -> bool:
    return (
        Fraction(value) % Fraction(step) == 0
        and (low is None or value > low.value or (value == low.value and not low.is_open))
        and (high is None or value < high.value or (value == high.value and not high.is_open))
    )


@settings(max_examples=50, deadline=None)
@given(
    step=STEPS,
    low=BOUNDS,
    high=BOUNDS,
    whole=st.booleans(),
    values=st.lists(VALUES, min_size=5, max_size=5),
    factors=st.lists(st.integers(-200, 200), min_size=5, max_size=5),
)
@example(Decimal(7), Bound(Decimal(50)), Bound(Decimal(55)), True, [], [7, 8])
@example(Decimal("0.1"), None, Bound(Decimal(10)), False, [Decimal("10.0"), Decimal("0.3")], [])
def test_a_number_is_taken_exactly_when_it_is_a_multiple_in_bounds(
    step: Decimal,
    low: Bound | None,
    high: Bound | None,
    whole: bool,
    values: list[Decimal],
    factors: list[int],
) -> None:
    grammar = grammar_of(step, low, high, whole)
    places = 0 if whole else max(0, -int(step.normalize().as_tuple().exponent))
    for value in [*values, *(step * factor for factor in factors)]:
        short = value.normalize() if value else Decimal(0)
        for spelled in {format(short, "f"), format(value if value else value.copy_abs(), "f")}:
            behind = len(spelled.partition(".")[2])
            expected = (
                holds(value, step, low, high)
                and behind <= places
                and sum(c.isdecimal() for c in spelled) <= 15
            )
            taken = grammar is not None and grammar.accepts(spelled.encode())
            assert taken == expected, spelled


@settings(max_examples=12, deadline=None)
@given(step=STEPS, low=BOUNDS, high=BOUNDS, whole=st.booleans(), seed=st.integers(0, 99))
def test_whatever_is_written_is_a_multiple_and_closes_in_time(
    step: Decimal, low: Bound | None, high: Bound | None, whole: bool, seed: int
) -> None:
    start = number(low, high, whole=whole, after=END, multiple_of=step)
    if start.is_dead:
        return
    grammar = Grammar(start, WORDS)
    rng = np.random.default_rng(seed)
    for extra in (0, 2):
        matcher = grammar.start(grammar.min_tokens + extra)
        text = text_of(decode(matcher, WORDS, rng, block=6, choose=lambda c, o: o), WORDS).decode()
        assert holds(Decimal(text), step, low, high)
        assert not text.startswith(("-0", "00")) or text.startswith("-0.")


@pytest.mark.parametrize(
    ("step", "low", "high"),
    [("10", 1, 9), ("0.5", "0.1", "0.4"), ("7", 50, 55), ("1E+20", 1, None)],
)
def test_no_multiple_is_no_node(step: str, low: str, high: str | None) -> None:
    upper = None if high is None else Bound(Decimal(high))
    assert grammar_of(Decimal(step), Bound(Decimal(low)), upper, whole=False) is None


def test_beginnings_with_the_same_future_are_one_state() -> None:
    grammar = grammar_of(Decimal(3), None, None, whole=True)
    assert grammar is not None
    for text in (b"1", b"4", b"7"):
        grammar.accepts(text)
    start = number(None, None, whole=True, after=END, multiple_of=Decimal(3)).ready()
    positive = start.skips[0].ready()
    targets = {byte: node for byte, _, node in positive.arcs}
    assert targets[0x31] is targets[0x34] is targets[0x37]
    assert targets[0x31] is not targets[0x32]
