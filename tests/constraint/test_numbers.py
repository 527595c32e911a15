# ruff: noqa: E501  (tables read better on long lines)
"""Numbers stay in their bounds, in one short form."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agentdiff.constraint import compile_schema
from agentdiff.errors import SchemaError
from tests.constraint.doubles import BYTES, decode, text_of

FORM = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
SCIENTIFIC = re.compile(rb"-?[1-9](\.[0-9]+)?e[+-]?[0-9]{1,2}")
LOWER = ("minimum", "exclusiveMinimum")
UPPER = ("maximum", "exclusiveMaximum")

BOUNDS = st.one_of(
    st.integers(-(10**4), 10**4),
    st.integers(-(10**16), 10**16),
    st.decimals(-100, 100, places=3).map(float),
    st.floats(-1e6, 1e6),
    st.sampled_from(
        [
            0,
            -0.0,
            0.0,
            0.1,
            -0.1,
            0.30000000000000004,
            1e-7,
            -1e-7,
            1e15,
            999999999999999,
            1e300,
            2e10,
        ]
    ),
)


def texts(grammar: Any, seed: int, count: int) -> list[bytes]:
    found: list[bytes] = []
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        matcher = grammar.start(grammar.min_tokens + int(rng.integers(0, 20)))
        tokens = decode(matcher, BYTES, rng, block=20, choose=lambda c, o: o)
        found.append(text_of(tokens, BYTES))
    return found


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["integer", "number"]),
    lower=st.one_of(st.none(), st.tuples(st.sampled_from(LOWER), BOUNDS)),
    upper=st.one_of(st.none(), st.tuples(st.sampled_from(UPPER), BOUNDS)),
    seed=st.integers(0, 1000),
)
@example(kind="number", lower=("exclusiveMinimum", 0), upper=("exclusiveMaximum", 1e-7), seed=0)
@example(kind="number", lower=("minimum", -0.0), upper=("maximum", 0), seed=0)
@example(kind="integer", lower=("exclusiveMinimum", -1), upper=("exclusiveMaximum", 1), seed=0)
@example(kind="integer", lower=None, upper=("maximum", 2e10), seed=0)
@example(kind="number", lower=("exclusiveMinimum", 99.95), upper=("maximum", 100), seed=0)
def test_each_number_lies_in_its_bounds_and_has_the_one_form(
    kind: str, lower: Any, upper: Any, seed: int
) -> None:
    schema = {"type": kind} | dict(b for b in (lower, upper) if b)
    try:
        grammar = compile_schema(schema, BYTES)
    except SchemaError:
        assume(False)
        return
    validator = jsonschema.Draft202012Validator(schema)
    for text in texts(grammar, seed, 4):
        if kind == "number" and lower is None and upper is None and SCIENTIFIC.fullmatch(text):
            continue
        assert FORM.fullmatch(text), text
        assert sum(c in b"0123456789" for c in text) <= 15
        assert not re.fullmatch(rb"-0(\.0+)?", text)
        validator.validate(json.loads(text))


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["integer", "number"]),
    lower=st.one_of(st.none(), st.tuples(st.sampled_from(LOWER), BOUNDS)),
    upper=st.one_of(st.none(), st.tuples(st.sampled_from(UPPER), BOUNDS)),
    value=st.one_of(BOUNDS, st.sampled_from(["low", "high"])),
    nudge=st.sampled_from([0, 1, -1]),
)
def test_a_number_of_at_most_15_digits_is_taken_exactly_when_it_is_in_bounds(
    kind: str, lower: Any, upper: Any, value: Any, nudge: int
) -> None:
    schema = {"type": kind} | dict(b for b in (lower, upper) if b)
    if isinstance(value, str):
        bound = lower if value == "low" else upper
        assume(bound)
        value = bound[1]
    decimal = Decimal(repr(value))
    decimal += nudge * Decimal(1).scaleb(int(decimal.as_tuple().exponent))
    text = format(decimal, "f")
    if decimal == decimal.to_integral_value():
        text = str(int(decimal))
    assume(kind == "number" or "." not in text)
    is_short = sum(c.isdigit() for c in text) <= 15
    try:
        grammar = compile_schema(schema, BYTES)
    except SchemaError:
        assert not is_short or not jsonschema.Draft202012Validator(schema).is_valid(
            json.loads(text)
        )
        return
    in_bounds = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert grammar.accepts(text.encode()) == (is_short and in_bounds)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, ["0", "7", "-7", "100", "999999999999999"], ["", "-", "-0", "00", "01", "+1", "1.0", "1e3", "1000000000000000", "1 "]),
        ({"type": "number"}, ["0", "0.0", "1.50", "-0.5", "-10.25"], ["-0", "-0.0", "-0.000", ".5", "5.", "-", "-.5", "00.1", "NaN", "0.123456789012345"]),
        ({"type": "integer", "minimum": 5, "maximum": 123}, ["5", "9", "10", "99", "100", "123"], ["4", "124", "-5", "1000", "1"]),
        ({"type": "integer", "minimum": -12, "maximum": -3}, ["-3", "-9", "-10", "-12"], ["-2", "-13", "3", "0", "-1"]),
        ({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"]),
        ({"type": "number", "maximum": 10}, ["10", "10.0", "9.99", "-5"], ["10.01", "11"]),
        ({"type": "number", "exclusiveMaximum": 10}, ["9.99", "9"], ["10", "10.0", "10.00"]),
        ({"type": "number", "minimum": 0.1, "maximum": 0.3}, ["0.1", "0.10", "0.2", "0.3", "0.30"], ["0.09", "0.31", "0", "0.301", "1"]),
        ({"type": "number", "exclusiveMinimum": 0.1}, ["0.11", "0.10001", "1"], ["0.1", "0.100", "0"]),
        ({"type": "number", "minimum": -1, "maximum": 1}, ["0", "-1", "-1.0", "1", "0.5", "-0.5"], ["-1.01", "1.01", "-0.0"]),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, ["0.1", "1"], ["0", "0.0"]),
        ({"type": ["integer", "number"]}, ["1", "1.5"], []),
        ({"minimum": 3}, ["3", "4.5"], ["2", '"a"']),
    ],
)  # fmt: skip
def test_the_edges_of_ranges(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = compile_schema(schema, BYTES)
    assert [t for t in good if not grammar.accepts(t.encode())] == []
    assert [t for t in bad if grammar.accepts(t.encode())] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
        {"type": "integer", "minimum": 10**15},
        {"type": "number", "minimum": 0.1234567890123456, "maximum": 0.1234567890123457},
    ],
)
def test_a_range_without_a_short_number_is_an_error(schema: Any) -> None:
    with pytest.raises(SchemaError, match="nothing"):
        compile_schema(schema, BYTES)


def test_a_bound_that_is_no_number_is_named() -> None:
    for bad in ("1", None, float("inf"), float("nan"), True):
        with pytest.raises(SchemaError) as error:
            compile_schema({"properties": {"x": {"type": "number", "minimum": bad}}}, BYTES)
        assert (error.value.keyword, error.value.path) == ("minimum", "/properties/x")


@pytest.mark.parametrize("text", [b"1.256e-06", b"5e+20", b"-3e7", b"9.99999999999999e99"])
def test_a_number_without_bounds_may_have_an_exponent(text: bytes) -> None:
    assert compile_schema({"type": "number"}, BYTES).accepts(text)
    assert not compile_schema({"type": "number", "minimum": -1e9}, BYTES).accepts(text)
    assert not compile_schema({"type": "integer"}, BYTES).accepts(text)


@pytest.mark.parametrize("text", [b"0e1", b"01e2", b"1e", b"1e100", b"1.e5", b"12e3", b"1E5"])
def test_exponents_have_one_form(text: bytes) -> None:
    assert not compile_schema({"type": "number"}, BYTES).accepts(text)
