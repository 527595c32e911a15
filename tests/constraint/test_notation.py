"""Arguments as Gemma's models write them: bare keys, strings between special tokens, no escapes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentdiff.constraint.matcher import Grammar
from agentdiff.constraint.tools import ToolSyntax, compile_tool_calls
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import ConfigurationError, SchemaError

OPEN, CLOSE, EOS, QUOTE = 256, 257, 258, 259
_PIECES = (b"Oslo", b'"', b",", b"days:", b"a\n")
GEMMA = Vocabulary([*(bytes([b]) for b in range(256)), None, None, None, None, *_PIECES], [EOS])
"""Every byte, two tags, EOS, the quote, and pieces that reach over ends of things."""
SYNTAX = ToolSyntax(
    before_name=(OPEN, "call:"),
    before_arguments=(),
    after_arguments=(CLOSE,),
    between=(),
    quote=QUOTE,
)
_TAGS = {"<|tool_call>": OPEN, "<tool_call|>": CLOSE, '<|"|>': QUOTE}


def grammar_of(parameters: Any, **options: Any) -> Grammar:
    return compile_tool_calls({"f": parameters}, GEMMA, syntax=SYNTAX, **options)


def tokens_of(text: str) -> list[int]:
    parts = re.split("(" + "|".join(map(re.escape, _TAGS)) + ")", text)
    return [t for part in parts for t in ([_TAGS[part]] if part in _TAGS else part.encode())]


def takes(grammar: Grammar, arguments: str) -> bool:
    """Whether a call with these arguments is one whole text; `'` stands for the quote token."""
    matcher = grammar.start(10_000)
    written = arguments.replace("'", '<|"|>')
    try:
        matcher.advance(tokens_of(f"<|tool_call>call:f{written}<tool_call|>"))
    except ValueError:
        return False
    return matcher.can_stop


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def test_keys_are_bare_and_sorted_whatever_their_case() -> None:
    grammar = grammar_of(an_object(b={"type": "integer"}, C={"type": "null"}, a={}))
    assert takes(grammar, "{a:true,b:3,C:null}")
    for other in ("{C:null,a:1,b:3}", "{b:3,a:1,C:null}", "{a: 1,b:3,C:null}", "{a:1,b:3,C:null,}"):
        assert not takes(grammar, other)
    assert not takes(grammar, "{'a':1,'b':3,'C':null}")
    any_order = grammar_of(an_object(b={"const": 1}, a={"const": 2}), key_order="free")
    assert takes(any_order, "{a:2,b:1}")
    assert takes(any_order, "{b:1,a:2}")


def test_a_string_holds_anything_as_it_is_and_ends_at_a_token() -> None:
    grammar = grammar_of(an_object(t={"type": "string"}))
    for text in ("", 'a "b" \\ {c:[1],}\n\tä日😀', "f{t:1}", "call:f{", "\\"):
        assert takes(grammar, "{t:'" + text + "'}")
    assert not takes(grammar, '{t:"a"}')
    assert not takes(grammar, "{t:'a\x01'}")  # no reader of JSON would take it either
    matcher = grammar.start(100)
    matcher.advance(tokens_of('<|tool_call>call:f{t:<|"|>a'))
    for token in (OPEN, CLOSE, EOS, 255):
        with pytest.raises(ValueError, match="forbids"):
            matcher.advance([token])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["'a\"'", "'日本語'"], ["'a'", "'abcd'"]),
        ({"type": "string", "pattern": '^a"+\\\\$'}, ["'a\"\"\\'"], ["'a\"\"\\\\'", "'a'"]),
        ({"type": "string", "format": "date"}, ["'2026-11-30'"], ["'2026-13-30'", "2026-11-30"]),
        ({"type": "string", "pattern": "^[a]"}, ["'ab\"'", "'a'"], ["''", "'b'", "ab"]),
        ({"enum": ['a"', "b\n", 3, True, None]}, ["'a\"'", "'b\n'", "3", "true", "null"], ["'a'"]),
        ({"const": {"b": [1, "x"], "A": {}}}, ["{A:{},b:[1,'x']}"], ["{b:[1,'x'],A:{}}"]),
        ({"not": {"const": "a"}, "type": "string"}, ["'b'", "''", "'aa'"], ["'a'"]),
        ({"type": ["number", "boolean"]}, ["1.5", "-2", "false"], ["'1'", "nul", "1."]),
        ({"type": "array", "items": {"type": "string"}}, ["[]", "['a','b']"], ["['a',]", "[a]"]),
        (
            {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
            ["['a','b']", "['b']"],
            ["['a','a']"],
        ),
        ({}, ["{k:{l:['x',null,1]}}", "{user-id:1,日 本:2}"], ["{'k':1}", "{a b :1}", "{:1}"]),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1},
            ["{}", "{b:1}"],
            ["{b:'x'}", "{a:1,b:2}"],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a", 'b"']}, "minProperties": 1},
            ["{a:1}"],
            ["{}", '{b":1}'],
        ),
        (
            {"type": "object", "patternProperties": {"^x-": {"type": "null"}},
             "additionalProperties": False, "propertyNames": {"maxLength": 4}},
            ["{x-a:null}", "{x-a:null,x-ab:null}"],
            ["{x-abc:null}", "{y:null}", "{x-a:1}"],
        ),
    ],
)  # fmt: skip
def test_what_a_schema_asks_holds_for_the_text_between_the_quotes(
    schema: Any, good: list[str], bad: list[str]
) -> None:
    grammar = grammar_of(an_object(v=schema))
    assert [takes(grammar, f"{{v:{value}}}") for value in good] == [True] * len(good)
    assert [takes(grammar, f"{{v:{value}}}") for value in bad] == [False] * len(bad)


def test_a_grounded_string_is_a_span_of_a_text_as_it_stands_there() -> None:
    told = 'meet "Bo" in Oslo'
    grammar = grammar_of(an_object(who={"type": "string"}), grounding={"f": {"/who": [told]}})
    assert takes(grammar, "{who:'\"Bo\" in Oslo'}")
    assert takes(grammar, "{who:'Oslo'}")
    assert not takes(grammar, "{who:'Bergen'}")
    assert not takes(grammar, "{who:'Osl'}")


def test_tokens_may_reach_over_the_parts_of_a_call_but_not_over_a_quote() -> None:
    grammar = grammar_of(an_object(city={"type": "string"}, days={"type": "integer"}))
    oslo, comma, days = 260, 262, 263
    matcher = grammar.start(100)
    matcher.advance([OPEN, *b"call:f{city:", QUOTE, oslo, 261, QUOTE, comma, days, *b"3}", CLOSE])
    assert matcher.can_stop
    assert grammar.min_tokens <= len(b"call:f{city:") + 8


def test_an_answer_beside_the_calls_is_json() -> None:
    grammar = grammar_of(an_object(t={"type": "string"}), response_schema=an_object(a={}))
    assert grammar.accepts(b'{"a": "b\\n"}')
    assert takes(grammar, "{t:'b\n'}")


@pytest.mark.parametrize("name", ["", 'a"b', "a:b", "a,b", "a{b", " a", "a ", "a\nb", "a\u2028b"])
def test_a_name_that_cannot_stand_without_quotes_is_named(name: str) -> None:
    with pytest.raises(SchemaError, match="cannot be written without quotes") as caught:
        grammar_of(an_object(**{name: {}}))
    assert repr(name) in str(caught.value)
    with pytest.raises(SchemaError, match="cannot be written without quotes"):
        compile_tool_calls({name: {}}, GEMMA, syntax=SYNTAX)
    with pytest.raises(SchemaError, match="cannot be written without quotes"):
        grammar_of(an_object(v={"const": {name: 1}}))


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(SchemaError, match="lone surrogate"):
        grammar_of(an_object(v={"const": "\ud800"}))
    with pytest.raises(ConfigurationError, match="special token"):
        compile_tool_calls({"f": {}}, GEMMA, syntax=ToolSyntax(quote=65))
