"""Grounded strings are spans of the texts, cut at word boundaries."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import Grammar, compile_schema
from agentdiff.errors import ConfigurationError, SchemaError
from tests.constraint.doubles import BYTES, WORDS, decode, dumps, text_of

STRING: Any = {"type": "string"}
CITY: Any = {"type": "object", "properties": {"city": STRING, "note": STRING}, "required": ["city"]}


def joints(text: str) -> set[int]:
    """Positions inside of what is written as one, where no span begins or ends."""
    inside = {m.start() + 1 for m in re.finditer(r"(?=\w\w)", text)}
    for m in re.finditer(r"(?=\w[-/'’.@&+]\w|\d[:,]\d)", text):
        is_possessive = re.match(r".['’]s(?!\w)", text[m.start() :]) is not None
        inside |= {m.start() + 2} if is_possessive else {m.start() + 1, m.start() + 2}
    return inside


def spans(text: str) -> set[str]:
    """All spans of a text, by the definition."""
    found: set[str] = set()
    inside = joints(text)
    for i in range(len(text)):
        for j in range(i + 1, len(text) + 1):
            span = text[i:j]
            if (
                i not in inside
                and j not in inside
                and not span[0].isspace()
                and not span[-1].isspace()
                and all(unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"} for c in span)
            ):
                found.add(span)
    return found


def substrings(text: str) -> set[str]:
    return {text[i:j] for i in range(len(text)) for j in range(i, len(text) + 1)}


def takes(grammar: Grammar, value: Any) -> bool:
    return grammar.accepts(dumps(value))


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(
        st.text(st.sampled_from("as_1é日 .,:-'\"\\\n\t\u2028😀"), max_size=9),
        min_size=1,
        max_size=2,
    ),
    lengths=st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(0, 5))),
)
def test_exactly_the_spans_are_taken(texts: list[str], lengths: tuple[int, int] | None) -> None:
    expected = {s for text in texts for s in spans(text)}
    schema = dict(STRING)
    if lengths is not None:
        schema |= {"minLength": lengths[0], "maxLength": lengths[0] + lengths[1]}
        expected = {s for s in expected if lengths[0] <= len(s) <= lengths[0] + lengths[1]}
    if not expected:
        with pytest.raises(SchemaError):
            compile_schema(schema, BYTES, grounding={"": texts})
        return
    grammar = compile_schema(schema, BYTES, grounding={"": texts})
    assert grammar.min_tokens == min(len(dumps(s)) for s in expected)
    for candidate in {c for text in texts for c in substrings(text)} | {"", "b a", "zz"}:
        if "\u2028" in candidate or not candidate.isprintable():
            continue  # spelled in more than one way by `json`
        assert takes(grammar, candidate) == (candidate in expected), candidate


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.text(st.sampled_from('ab_1é日 .,-"\\\n'), min_size=1, max_size=40),
        min_size=1,
        max_size=2,
    ),
    seed=st.integers(0, 999),
    slack=st.integers(0, 12),
)
def test_decoded_values_are_spans(texts: list[str], seed: int, slack: int) -> None:
    expected = {s for text in texts for s in spans(text)}
    if not expected:
        return
    rng = np.random.default_rng(seed)
    grammar = compile_schema(CITY, WORDS, grounding={"/*": texts})
    budget = grammar.min_tokens + slack
    tokens = decode(
        grammar.start(budget), WORDS, rng, block=8, choose=lambda c, o: [int(rng.choice(o))]
    )
    value = json.loads(text_of(tokens, WORDS))
    assert set(value.values()) <= expected


def test_words_are_not_cut() -> None:
    grammar = compile_schema(
        CITY, BYTES, grounding={"/city": ["fly to New York, please (from Zürich_2)"]}
    )
    for good in (
        "New York",
        "New",
        "York",
        "fly",
        "(",
        "New York, please",
        "Zürich_2",
        "(from Zürich_2)",
    ):
        assert takes(grammar, {"city": good}), good
    for bad in (
        "New Yor",
        "ew York",
        "New York ",
        " New York",
        "new york",
        "Paris",
        "",
        "Zürich",
        "rich_2",
        "to  New",
    ):
        assert not takes(grammar, {"city": bad}), bad
    assert takes(grammar, {"city": "New", "note": "anything"})


@pytest.mark.parametrize(
    ("text", "whole", "part"),
    [
        ("at six o'clock sharp", "o'clock", "clock"),
        ("from 7:30 on", "7:30", "7"),
        ("pay 1,250 now", "1,250", "250"),
        ("write to a.b@c.org, please", "a.b@c.org", "c.org"),
        ("read src/main-2.py", "src/main-2.py", "main-2.py"),
        ("dig up **/*.go now", "**/*.go", "**/*"),
        ("a **bold** word", "bold", "*bold"),
    ],
)
def test_what_is_written_as_one_stays_whole(text: str, whole: str, part: str) -> None:
    grammar = compile_schema(STRING, BYTES, grounding={"": [text]})
    assert takes(grammar, whole)
    assert not takes(grammar, part)


def test_a_possessive_comes_off() -> None:
    grammar = compile_schema(STRING, BYTES, grounding={"": ["call Ana's mother"]})
    assert takes(grammar, "Ana")
    assert not takes(grammar, "s mother")


def test_quotes_and_backslashes_in_texts_are_escaped() -> None:
    grammar = compile_schema(STRING, BYTES, grounding={"": ['open "C:\\temp" now']})
    assert grammar.accepts(rb'"open \"C:\\temp\" now"')
    assert grammar.accepts(rb'"\"C:\\temp\""')
    assert not grammar.accepts(rb'"C:\temp"')
    assert not grammar.accepts(rb'"open "C"')


def test_lines_are_not_crossed() -> None:
    grammar = compile_schema(STRING, BYTES, grounding={"": ["one two\nthree\tfour\x00five"]})
    for good in ("one two", "three", "four", "five"):
        assert takes(grammar, good)
    for bad in (
        b'"two\\nthree"',
        b'"three\\tfour"',
        b'"two three"',
        b'"two\nthree"',
        b'"fourfive"',
    ):
        assert not grammar.accepts(bad)


def test_only_plain_strings_at_the_named_places_are_bound() -> None:
    schema: Any = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": STRING},
            "pair": {"type": "array", "prefixItems": [STRING, STRING], "items": False},
            "kind": {"enum": ["x"]},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [STRING, {"type": "integer"}]},
            "deep": {"$ref": "#/$defs/deep"},
            "free": {"$ref": "#/$defs/deep"},
            "a/b": STRING,
        },
        "$defs": {"deep": {"type": "object", "properties": {"name": STRING}}},
    }
    grounding = {
        "/list/*": ["red blue"],
        "/pair/1": ["red blue"],
        "/kind": ["red blue"],
        "/maybe": ["red blue"],
        "/either": ["red blue"],
        "/deep/name": ["red blue"],
        "/a~1b": ["red blue"],
    }
    grammar = compile_schema(schema, BYTES, grounding=grounding)
    for good in (
        {"list": ["red", "blue", "red"]},
        {"pair": ["other", "red"]},
        {"kind": "x"},
        {"maybe": None},
        {"maybe": "blue"},
        {"either": 5},
        {"deep": {"name": "red"}},
        {"free": {"name": "other"}},
        {"a/b": "red blue"},
    ):
        assert takes(grammar, good), good
    for bad in (
        {"list": ["red", "other"]},
        {"pair": ["red", "other"]},
        {"kind": "red"},
        {"maybe": "other"},
        {"either": "other"},
        {"deep": {"name": "other"}},
        {"a/b": "other"},
    ):
        assert not takes(grammar, bad), bad


def test_a_named_index_differs_from_the_rest_of_a_list() -> None:
    schema: Any = {"type": "array", "items": STRING}
    grammar = compile_schema(schema, BYTES, grounding={"/1": ["red"]})
    assert takes(grammar, ["any", "red", "any", "any"])
    assert not takes(grammar, ["any", "any"])


def test_a_named_key_cannot_come_back_as_an_additional_one() -> None:
    schema: Any = {"type": "object", "additionalProperties": STRING}
    grammar = compile_schema(schema, BYTES, grounding={"/city": ["red"], "/*": ["blue"]})
    assert takes(grammar, {"other": "blue"})
    assert not takes(grammar, {"other": "red"})
    assert not takes(grammar, {"city": "any"})


def test_without_a_span_a_string_is_unsatisfiable() -> None:
    for texts in ([], [""], [" \n "]):
        with pytest.raises(SchemaError, match="nothing"):
            compile_schema(CITY, BYTES, grounding={"/city": texts})
        grammar = compile_schema(CITY | {"required": ["note"]}, BYTES, grounding={"/city": texts})
        assert takes(grammar, {"note": "x"})
        assert not takes(grammar, {"city": "x", "note": "x"})


def test_a_dropped_property_stays_out_of_an_open_tail() -> None:
    schema = CITY | {"required": [], "additionalProperties": True}
    grammar = compile_schema(schema, BYTES, grounding={"/city": [""]})
    assert takes(grammar, {"note": "x", "more": 1})
    assert not takes(grammar, {"note": "x", "city": "x"})


def test_malformed_grounding_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="begins with"):
        compile_schema(CITY, BYTES, grounding={"city": ["x"]})
    with pytest.raises(ConfigurationError, match="list of texts"):
        compile_schema(CITY, BYTES, grounding={"/city": "x"})


def test_a_long_text_costs_only_what_is_looked_at() -> None:
    words = [f"word{i} of" for i in range(900)]
    text = " ".join(words)
    assert len(text) > 8000
    grammar = compile_schema(CITY, WORDS, grounding={"/city": [text]})
    matcher = grammar.start(60)
    matcher.propose(np.log(np.full((8, len(WORDS)), 1 / len(WORDS))), {})
    assert len(grammar._tokens.automaton) < 4000
    assert takes(grammar, {"city": " ".join(words[300:600])})
    assert not takes(grammar, {"city": " ".join([*words[300:600], "x"])})


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(st.sampled_from('ab1 ,."é\n'), max_size=12),
    pattern=st.sampled_from(["^[ab]+$", "b", "^.{2,3}$", "^(?!a).*[a1]$", "[0-9]", "^é?$"]),
    excluded=st.sampled_from([[], ["a", "b"], ["ab", "1"]]),
    lengths=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 4))),
)
def test_spans_keep_their_patterns(
    text: str, pattern: str, excluded: list[str], lengths: tuple[int, int] | None
) -> None:
    schema: Any = {"type": "string", "pattern": pattern}
    low, high = (0, 99) if lengths is None else (lengths[0], lengths[0] + lengths[1])
    if lengths is not None:
        schema |= {"minLength": low, "maxLength": high}
    if excluded:
        schema["not"] = {"enum": excluded}
    expected = {
        s
        for s in spans(text)
        if re.search(pattern, s) and s not in excluded and low <= len(s) <= high
    }
    try:
        grammar = compile_schema(schema, BYTES, grounding={"": [text]})
    except SchemaError:
        assert not expected
        return
    assert {s for s in substrings(text) if takes(grammar, s)} == expected


def test_a_grounded_address_is_one_that_is_an_address() -> None:
    schema = {"type": "string", "format": "email"}
    text = "Write to ann@example.org or to bob at example.org, not to @home."
    grammar = compile_schema(schema, BYTES, grounding={"": [text]})
    assert {s for s in substrings(text) if takes(grammar, s)} == {"ann@example.org"}
    with pytest.raises(SchemaError):
        compile_schema(schema, BYTES, grounding={"": ["no address here"]})
