# ruff: noqa: E501  (tables read better on long lines)
"""What a schema takes and refuses, and what it cannot say."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import compile_schema
from agentdiff.errors import SchemaError
from tests.constraint.doubles import BYTES, SCHEMAS, TREE, WORDS, dumps, noise

ANY_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from([1.5, -0.25]), st.sampled_from(["a", "é", 'q"', ""])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(schema=SCHEMAS, value=ANY_VALUES)
def test_nothing_invalid_is_taken(schema: Any, value: Any) -> None:
    grammar = compile_schema(schema, BYTES)
    if grammar.accepts(dumps(value)):
        jsonschema.Draft202012Validator(schema).validate(value)


@settings(max_examples=60)
@given(value=ANY_VALUES)
def test_the_empty_schema_takes_any_json(value: Any) -> None:
    for schema in ({}, True, {"title": "anything", "description": "at all"}):
        assert compile_schema(schema, BYTES).accepts(dumps(value))


def obj(required: Any = None, **properties: Any) -> Any:
    return {"type": "object", "properties": properties, "required": required or []}


INT: Any = {"type": "integer"}
STR: Any = {"type": "string"}

TABLE: list[tuple[str, Any, list[str], list[str]]] = [
    ("separators are fixed", obj(a=INT, b=INT), ['{"a": 1, "b": 2}', "{}", '{"b": 2}'],
     ['{"a":1}', '{ "a": 1}', '{"a": 1,"b": 2}', '{"a": 1 }', '{"a": 1, }', '{"a": 1}\n', ' {}', '{"a" : 1}']),
    ("keys come in order, once", obj(a=INT, b=INT), [], ['{"b": 1, "a": 2}', '{"a": 1, "a": 1}', '{"a": 1, "b": 1, "a": 1}']),
    ("required keys are there", obj(["b"], a=INT, b=INT), ['{"b": 1}', '{"a": 1, "b": 1}'], ["{}", '{"a": 1}']),
    ("objects with properties are closed", obj(a=INT), ["{}"], ['{"c": 1}', '{"a": 1, "c": 1}']),
    ("additionalProperties opens", obj(a=INT) | {"additionalProperties": STR},
     ['{"a": 1, "c": "x", "d": "y"}', '{"c": ""}', '{"aa": ""}', '{"": ""}', '{"é": "é"}'], ['{"c": 1}', '{"c": "x", "a": 1}', '{"a": "x"}']),
    ("without properties an object is open", {"type": "object"}, ["{}", '{"x": {"y": []}}'], ["[]", '{x: 1}']),
    ("required without properties", {"type": "object", "required": ["k"]}, ['{"k": 1}', '{"k": [], "m": 1}'], ["{}", '{"m": 1}', '{"m": 1, "k": 1}']),
    ("required but undeclared in a closed object", obj(["k"], a=INT), ['{"a": 1, "k": null}', '{"k": 1}'], ['{"a": 1}', '{"k": 1, "x": 1}']),
    ("required and forbidden is unsatisfiable for objects", {"anyOf": [{"type": "object", "required": ["k"], "additionalProperties": False}, INT]}, ["1"], ['{"k": 1}', "{}"]),
    ("an impossible optional key drops out", obj(a=INT, b=False), ['{"a": 1}', "{}"], ['{"b": 1}']),
    ("and stays out of the open tail", obj(a=INT, b=False) | {"additionalProperties": True}, ['{"c": 1}'], ['{"b": 1}', '{"c": 1, "b": 1}']),
    ("keys are spelled in one way", obj(**{'q"\\é\n': INT}), ['{"q\\"\\\\é\\n": 1}'], ['{"q\\"\\\\\\u00e9\\n": 1}']),
    ("items", {"type": "array", "items": INT, "minItems": 1, "maxItems": 3}, ["[1]", "[1, 2, 3]"], ["[]", "[1, 2, 3, 4]", '["a"]', "[1,2]", "[1, ]"]),
    ("no items", {"type": "array", "items": False}, ["[]"], ["[1]"]),
    ("prefixItems", {"type": "array", "prefixItems": [INT, STR], "items": {"type": "null"}}, ["[]", "[1]", '[1, "a", null, null]'], ['["a"]', '[1, "a", 1]', "[null]"]),
    ("an impossible item ends the list", {"type": "array", "prefixItems": [INT, False]}, ["[]", "[1]"], ["[1, 2]"]),
    ("maxItems 0", {"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ("string lengths count characters", {"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"日本語"', '"\\n\\""', '"😀é"'], ['"a"', '"日"', '"abcd"', '"😀"', '""']),
    ("strings have one spelling", STR, ['""', '"a/b"', '"\\t\\\\"', '"é\u2028"'], ['"\\/"', '"\\u0041"', '"\t"', '"\x1f"', '"a', "a", '"""', '"\\x"']),
    ("enum", {"enum": ["red", 1, None, [1, "é"], {"k": True}]}, ['"red"', "1", "null", '[1, "é"]', '{"k": true}'], ['"re"', '"redd"', "11", "true", '[1, "\\u00e9"]']),
    ("enum is filtered by its siblings", {"enum": ["a", "abc", 1, 2.0, True], "type": ["string", "integer"], "minLength": 2}, ['"abc"', "1", "2.0"], ['"a"', "true"]),
    ("const", {"const": {"a": [1.5, "x"]}}, ['{"a": [1.5, "x"]}'], ["{}", '{"a": [1.5, "x"], "b": 1}']),
    ("non-ASCII values and keys", {"type": "object", "properties": {"größe": {"enum": ["大", "小", "😀"]}}}, ['{"größe": "大"}', '{"größe": "😀"}'], ['{"größe": "中"}', '{"gr\\u00f6ße": "大"}']),
    ("type lists", {"type": ["string", "null", "boolean"]}, ['"x"', "null", "true"], ["1", "[]"]),
    ("keywords without type speak of their own type", {"maxLength": 1, "minItems": 1}, ['"a"', "[1]"], ['"ab"', "[]", "1"]),
    ("anyOf", {"anyOf": [INT, STR]}, ["1", '"a"'], ["null", "1.5"]),
    ("anyOf beside other keywords", {"type": "object", "properties": {"a": INT, "b": INT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
     ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'], ["{}"]),
    ("an impossible branch falls away", {"anyOf": [False, {"enum": []}, INT]}, ["1"], ['"a"']),
    ("recursion", TREE, ['{"value": 1, "next": null}', '{"value": 1, "children": [{"value": 2, "next": null}], "next": {"value": 3, "next": null}}'], ['{"value": 1}', '{"value": 1, "next": {"value": 3}}']),
    ("mutual recursion", {"$ref": "#/definitions/a", "definitions": {"a": obj(["b"], b={"anyOf": [{"$ref": "#/definitions/b"}, {"type": "null"}]}), "b": obj(["a"], a={"$ref": "#/definitions/a"})}},
     ['{"b": null}', '{"b": {"a": {"b": null}}}'], ["{}", '{"b": {}}']),
    ("escaped pointers", {"$ref": "#/$defs/a~1b%20~0", "$defs": {"a/b ~": INT}}, ["1"], ['"a"']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_is_taken_and_what_is_not(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = compile_schema(schema, BYTES)
    assert [t for t in good if not grammar.accepts(t.encode())] == []
    assert [t for t in bad if grammar.accepts(t.encode())] == []
    for text in good:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_a_reference_to_itself_without_a_step_adds_nothing() -> None:
    grammar = compile_schema({"anyOf": [{"$ref": "#"}, INT]}, BYTES)
    assert grammar.accepts(b"1")
    assert not grammar.accepts(b'"a"')


def test_ill_formed_utf8_is_never_taken() -> None:
    grammar = compile_schema(STR, BYTES)
    for bad in (
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\x80",
        b"\xe6\x97",
        b"\xff",
        b"\xf0\x80\x80\x80",
    ):
        assert not grammar.accepts(b'"' + bad + b'"')
    for good in (
        "\x7f",
        "\x80",
        "\u07ff",
        "\u0800",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        "\U0010ffff",
    ):
        assert grammar.accepts(dumps(good))


def test_the_compact_style_has_no_spaces() -> None:
    grammar = compile_schema(
        obj(a={"type": "array"}, b=INT, c={"const": [1, {"x": 2}]}), BYTES, style="compact"
    )
    assert grammar.accepts(b'{"a":[1,{"x":[]}],"b":2,"c":[1,{"x":2}]}')
    assert not grammar.accepts(b'{"a": [1], "b":2}')


def test_open_objects_take_further_keys_unless_the_schema_closes_them() -> None:
    grammar = compile_schema(
        obj(a=INT, b=obj(c=INT) | {"additionalProperties": False}), BYTES, open_objects=True
    )
    assert grammar.accepts(b'{"a": 1, "x": []}')
    assert grammar.accepts(b'{"b": {"c": 1}, "x": 1}')
    assert not grammar.accepts(b'{"b": {"x": 1}}')
    assert not grammar.accepts(b'{"x": 1, "a": 1}')


@pytest.mark.parametrize(
    "keyword", ["nullable", "x-order", "discriminator", "contentEncoding", "$comment"]
)
def test_words_that_json_schema_does_not_know_are_annotations(keyword: str) -> None:
    assert compile_schema({"type": "string", keyword: True}, BYTES).accepts(b'"x"')


@pytest.mark.parametrize("keyword", ["minlength", "oneof", "AdditionalProperties", "maxitems"])
def test_a_misspelled_keyword_is_an_error(keyword: str) -> None:
    schema = obj(
        **{"a/b": {"type": "array", "items": {"anyOf": [INT, {"type": "string", keyword: 1}]}}}
    )
    with pytest.raises(SchemaError, match="did you mean") as error:
        compile_schema(schema, BYTES)
    assert error.value.keyword == keyword
    assert error.value.path == "/properties/a~1b/items/anyOf/1"


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        ({"properties": []}, "properties", ""),
        ({"required": "a"}, "required", ""),
        ({"properties": {"a": {"type": "int"}}}, "type", "/properties/a"),
        ({"enum": "a"}, "enum", ""),
        ({"anyOf": {}}, "anyOf", ""),
        ({"minLength": -1}, "minLength", ""),
        ({"maxItems": 1.5}, "maxItems", ""),
        ({"items": [{}]}, "items", ""),
        ({"prefixItems": {}}, "prefixItems", ""),
        ({"$ref": "#/$defs/none"}, "$ref", ""),
        ({"$ref": "other.json"}, "$ref", ""),
        ({"pattern": 1}, "pattern", ""),
        ({"pattern": "("}, "pattern", ""),
        ({"multipleOf": 0}, "multipleOf", ""),
        ({"not": 1}, None, "/not"),
        ({"dependentRequired": {"a": [1]}}, "dependentRequired", ""),
        ({"$ref": "#nowhere"}, "$ref", ""),
        ({"$ref": 1}, "$ref", ""),
        ({"properties": {"a": 3}}, None, "/properties/a"),
        ({"const": float("nan")}, None, ""),
    ],
)
def test_malformed_schemas_are_refused(schema: Any, keyword: str | None, path: str) -> None:
    with pytest.raises(SchemaError) as error:
        compile_schema(schema, BYTES)
    assert (error.value.keyword, error.value.path) == (keyword, path)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "string", "const": 1},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "array", "items": False, "minItems": 1},
        obj(["a"], a=False),
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": obj(["a"], a={"$ref": "#/$defs/a"})}},
        {"anyOf": []},
    ],
)
def test_a_schema_that_nothing_satisfies_is_an_error(schema: Any) -> None:
    with pytest.raises(SchemaError, match="nothing"):
        compile_schema(schema, BYTES)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: Any = INT
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError, match="deep"):
        compile_schema(schema, BYTES)


def test_annotations_are_ignored() -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", "$comment": "c", "title": "t",
              "properties": {"title": {"type": "integer", "default": 3, "examples": [1], "deprecated": True, "readOnly": True, "writeOnly": False}}}  # fmt: skip
    assert compile_schema(schema, BYTES).accepts(b'{"title": 1}')


def test_the_schema_is_not_changed() -> None:
    before = json.dumps(TREE)
    grammar = compile_schema(TREE, WORDS)
    grammar.start(60).propose(noise(np.random.default_rng(0), 16, WORDS), {})
    assert json.dumps(TREE) == before


def test_the_shortest_text_of_a_recursive_schema_is_found() -> None:
    assert compile_schema(TREE, BYTES).min_tokens == len('{"value": 0, "next": null}')
    chain: Any = {
        "$ref": "#/$defs/n0",
        "$defs": {f"n{i}": obj(["x"], x={"$ref": f"#/$defs/n{i + 1}"}) for i in range(30)},
    }
    chain["$defs"]["n30"] = {"anyOf": [obj(["y"], y={"$ref": "#/$defs/n0"}), INT]}
    assert compile_schema(chain, BYTES).min_tokens == 30 * len('{"x": }') + 1


HEAVY = [
    ("length and item caps", obj(**{f"k{i}": {"type": "array", "maxItems": 1000, "minItems": 100, "items": {"type": "string", "minLength": 20, "maxLength": 65535}} for i in range(10)})),
    ("nested caps", {"type": "array", "maxItems": 5000, "items": {"type": "array", "maxItems": 5000, "items": {"type": "array", "maxItems": 5000, "items": STR}}}),
    ("large enum", {"enum": [f"value-{i * 7919 % 10007}" for i in range(10_000)]}),
    ("many optional keys", obj(**{f"key{i}": STR for i in range(200)})),
    ("nested unions", {"anyOf": [obj(kind={"const": i}, of={"anyOf": [obj(k={"const": j}, v={"anyOf": [INT, STR, {"type": "null"}]}) for j in range(12)]}) for i in range(12)]}),
]  # fmt: skip


@pytest.mark.parametrize("schema", [h[1] for h in HEAVY], ids=[h[0] for h in HEAVY])
def test_heavy_schemas_compile_fast_since_nothing_is_built_ahead(schema: Any) -> None:
    start = time.process_time()
    grammar = compile_schema(schema, WORDS)
    matcher = grammar.start(grammar.min_tokens + 20)
    matcher.propose(noise(np.random.default_rng(0), 16, WORDS), {})
    assert (
        time.process_time() - start < 1.5
    )  # tens of ms on an idle core; eager automata take minutes
    assert len(grammar._tokens.automaton) < 10_000
