# ruff: noqa: E501  (tables read better on long lines)
"""Keyword by keyword: what is taken and what is not, and that the validators agree."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for

from agentdiff.constraint.automaton import DEAD, END, way_out
from agentdiff.constraint.schema import compile_to_nodes
from agentdiff.constraint.states import Automaton
from agentdiff.errors import SchemaError

INT: Any = {"type": "integer"}
STR: Any = {"type": "string"}
OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}


def obj(required: Any = None, **properties: Any) -> Any:
    return {"type": "object", "properties": properties, "required": required or []}


def tag(name: str, **properties: Any) -> Any:
    return obj(["kind", *properties], kind={"const": name}, **properties)


class Language:
    """What a schema takes, byte by byte."""

    def __init__(self, schema: Any, **options: Any) -> None:
        self._start = compile_to_nodes(schema, **options)
        self._automaton = Automaton(self._start, lambda node: 0)

    def takes(self, text: str) -> bool:
        automaton = self._automaton
        state = automaton.step(automaton.start, text.encode())
        return state != DEAD and automaton.may_end(state)

    def shortest(self) -> str:
        """The text that is found by always taking the shortest way out."""
        text, node = bytearray(), self._start
        stack: list[Any] = []
        while node is not END or stack:
            if node is END:
                node = stack.pop()
                continue
            byte, after, rule = way_out(node)
            if byte >= 0:
                text.append(byte)
            if rule is not None:
                stack.append(after)
            node = after if rule is None else rule.start
        assert len(text) == self._start.near
        return text.decode()


TABLE: list[tuple[str, Any, list[str], list[str]]] = [
    ("allOf merges", {"allOf": [obj(["a"], a=INT), {"properties": {"a": {"minimum": 3}, "b": STR}}]}, ['{"a": 3}', '{"a": 4, "b": ""}'], ['{"a": 2}', '{"b": ""}', "{}", '{"a": 3, "c": 1}']),
    ("allOf beside other keywords", {"type": "integer", "allOf": [{"minimum": 2}, {"maximum": 4}], "maximum": 3}, ["2", "3"], ["1", "4", "2.5"]),
    ("allOf of closed objects", {"allOf": [obj(a=INT) | {"additionalProperties": False}, obj(a=INT, b=INT)]}, ["{}", '{"a": 1}'], ['{"b": 1}', '{"a": 1, "b": 1}']),
    ("allOf of unions", {"allOf": [{"anyOf": [INT, STR]}, {"anyOf": [STR, {"type": "null"}]}]}, ['"x"'], ["1", "null"]),
    ("allOf of enums", {"allOf": [{"enum": [1, 2, "a"]}, {"enum": [2.0, "a", None]}]}, ["2", '"a"'], ["1", "null"]),
    ("keywords beside $ref", {"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": INT}}, ["5"], ["6", '"a"']),
    ("in draft-07 $ref stands alone", OLD | {"$ref": "#/definitions/a", "maximum": 5, "definitions": {"a": INT}}, ["6"], ['"a"']),
    ("oneOf by type", {"oneOf": [INT, STR]}, ["1", '"a"'], ["null", "1.5"]),
    ("oneOf by tag", {"oneOf": [tag("a", x=INT), tag("b", y=STR)]}, ['{"kind": "a", "x": 1}', '{"kind": "b", "y": ""}'], ['{"kind": "a", "y": ""}', '{"kind": "c"}']),
    ("oneOf by a tag that is declared outside", {"type": "object", "required": ["t"], "properties": {"t": STR}, "oneOf": [{"properties": {"t": {"const": "a"}, "x": INT}}, {"properties": {"t": {"enum": ["b", "c"]}}}]},
     ['{"t": "a", "x": 1}', '{"t": "c"}'], ['{"t": "d"}', '{"t": "a", "x": ""}']),
    ("oneOf by required keys", obj(a=INT, b=INT, c=INT) | {"oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]},
     ['{"a": 1}', '{"a": 1, "b": 1}', '{"b": 1, "c": 1}'], ["{}", '{"b": 1}', '{"a": 1, "b": 1, "c": 1}']),
    ("oneOf that overlaps in numbers", {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, ["2", "6"], ["3", "5", "4"]),
    ("oneOf that overlaps in enums", {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, ['"a"', '"c"'], ['"b"']),
    ("oneOf that overlaps in strings", {"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ['"ac"', '"cb"'], ['"ab"', '"c"']),
    ("oneOf of closed objects", {"oneOf": [obj(a=INT) | {"additionalProperties": False}, obj(b=INT) | {"additionalProperties": False}]}, ['{"a": 1}', '{"b": 1}'], ["{}", '{"a": 1, "b": 1}']),
    ("oneOf where both may hold", {"oneOf": [obj(["a"], a=INT), obj(["b"], b=INT)]}, ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}', "{}"]),
    ("a oneOf branch that is true", {"oneOf": [True, STR]}, ["1", "null"], ['"a"']),
    ("not of types", {"not": {"type": ["string", "object"]}}, ["1", "[]", "null"], ['"a"', "{}"]),
    ("not of an enum", {"type": "string", "not": {"enum": ["a", "bc", 1]}}, ['"b"', '"bcd"', '""'], ['"a"', '"bc"', "1"]),
    ("not of numbers", {"type": "integer", "not": {"enum": [0, 7]}}, ["1", "-7", "70"], ["0", "7"]),
    ("not of a constant object", {"type": "object", "not": {"const": {}}}, ['{"a": 1}'], ["{}"]),
    ("not required", obj(a=INT, b=INT) | {"not": {"required": ["a", "b"]}}, ["{}", '{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}']),
    ("not any of", obj(a=INT, b=INT) | {"not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, ["{}"], ['{"a": 1}', '{"b": 1}']),
    ("not of a property's value", obj(["a"], a=STR) | {"not": {"properties": {"a": {"const": "x"}}}}, ['{"a": "y"}'], ['{"a": "x"}']),
    ("not of bounds", {"type": "integer", "not": {"minimum": 3}}, ["2"], ["3"]),
    ("not of a pattern", {"type": "string", "not": {"pattern": "^a"}}, ['"b"', '""'], ['"a"', '"ab"']),
    ("not not", {"not": {"not": INT}}, ["1"], ['"a"']),
    ("not of lengths", {"type": "string", "not": {"minLength": 2}}, ['""', '"a"'], ['"ab"']),
    ("if, then, else", {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "x": INT, "y": INT}, "required": ["k"], "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"required": ["y"]}},
     ['{"k": "a", "x": 1}', '{"k": "b", "y": 1}', '{"k": "b", "x": 1, "y": 1}'], ['{"k": "a"}', '{"k": "a", "y": 1}', '{"k": "b", "x": 1}']),
    ("if that asks for a key", obj(a=INT, b=INT) | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, ["{}", '{"b": 1}', '{"a": 1, "b": 1}'], ['{"a": 1}']),
    ("if by type", {"type": ["string", "integer"], "if": STR, "then": {"minLength": 2}, "else": {"minimum": 5}}, ['"ab"', "5"], ['"a"', "4"]),
    ("if without then or else", {"type": "integer", "if": {"minimum": 3}}, ["1", "4"], ['"a"']),
    ("dependentRequired", obj(a=INT, b=INT, c=INT) | {"dependentRequired": {"a": ["b", "c"]}}, ["{}", '{"b": 1}', '{"a": 1, "b": 1, "c": 1}'], ['{"a": 1}', '{"a": 1, "b": 1}']),
    ("dependentSchemas", obj(a=INT, b=INT) | {"dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}}, ['{"b": 1}', '{"a": 1, "b": 5}', '{"a": 1}'], ['{"a": 1, "b": 4}']),
    ("dependencies", OLD | obj(a=INT, b=INT) | {"dependencies": {"a": ["b"], "b": {"maxProperties": 2}}}, ["{}", '{"a": 1, "b": 1}'], ['{"a": 1}']),
    ("patternProperties", {"type": "object", "patternProperties": {"^n": INT, "s$": STR}, "additionalProperties": False}, ["{}", '{"n": 1}', '{"as": ""}', '{"n": 1, "n2": 2}'], ['{"n": ""}', '{"x": 1}', '{"ns": 1}', '{"ns": ""}']),
    ("patternProperties and others", {"type": "object", "patternProperties": {"^n": INT}, "additionalProperties": STR}, ['{"n": 1}', '{"x": ""}'], ['{"n": ""}', '{"x": 1}']),
    ("a declared key and a pattern", {"type": "object", "properties": {"n": {"maximum": 3}}, "patternProperties": {"n": INT}}, ['{"n": 3}'], ['{"n": 4}', '{"n": ""}', '{"x": 1}']),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "additionalProperties": INT}, ["{}", '{"ab": 1}'], ['{"a": 1}', '{"abc": 1}']),
    ("propertyNames of an enum", {"type": "object", "propertyNames": {"enum": ["x", "yy"]}, "additionalProperties": INT}, ['{"x": 1, "yy": 2}', '{"yy": 2}'], ['{"y": 1}', '{"z": 1}']),
    ("propertyNames against declared keys", obj(ab=INT, c=INT) | {"propertyNames": {"maxLength": 1}}, ["{}", '{"c": 1}'], ['{"ab": 1}']),
    ("minProperties", obj(a=INT, b=INT, c=INT) | {"minProperties": 2}, ['{"a": 1, "c": 1}', '{"a": 1, "b": 1, "c": 1}'], ["{}", '{"b": 1}']),
    ("minProperties of any keys", {"type": "object", "additionalProperties": INT, "minProperties": 2}, ['{"a": 1, "b": 1}', '{"x": 1, "a": 1, "x": 2}'], ["{}", '{"a": 1}', '{"a": 1, "a": 2}']),
    ("maxProperties", obj(a=INT, b=INT, c=INT) | {"maxProperties": 1}, ["{}", '{"b": 1}'], ['{"a": 1, "c": 1}']),
    ("maxProperties of any keys", {"type": "object", "maxProperties": 1}, ["{}", '{"z": []}'], ['{"a": 1, "z": 1}']),
    ("uniqueItems of an enum", {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True}, ["[]", '["b", "a", 1]', "[1]"], ['["a", "a"]', '["a", 1, 1]', '["c"]']),
    ("uniqueItems with minItems", {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2}, ["[true, false]"], ["[true]", "[true, true]"]),
    ("uniqueItems of strings", {"type": "array", "items": STR, "uniqueItems": True}, ["[]", '["red", "green"]', '["", "a"]'], ['["a", "a"]', '["", ""]']),
    ("uniqueItems of numbers", {"type": "array", "items": INT, "uniqueItems": True}, ["[1, 2, 15]"], ["[1, 1]"]),
    ("contains", {"type": "array", "items": {"type": ["integer", "string"]}, "contains": {"type": "string"}}, ['["a"]', '[1, "a", 2]', '["a", "b"]'], ["[]", "[1]", "[null]"]),
    ("minContains and maxContains", {"type": "array", "items": INT, "contains": {"minimum": 5}, "minContains": 2, "maxContains": 3, "maxItems": 4}, ["[5, 6]", "[1, 5, 7, 9]"], ["[5]", "[5, 5, 5, 5]", "[1, 2]"]),
    ("multipleOf", {"type": "integer", "multipleOf": 15, "allOf": [{"multipleOf": 6}]}, ["0", "30", "-60"], ["15", "6", "45"]),
    ("multipleOf of fractions", {"type": "number", "multipleOf": 0.25, "minimum": 0}, ["0", "1.5", "0.25"], ["0.1", "-0.25"]),
    ("items of draft-07", OLD | {"type": "array", "items": [INT, STR], "additionalItems": {"type": "null"}}, ["[]", '[1, "a", null]'], ['["a"]', "[1, 2]", '[1, "a", 1]']),
    ("boolean items", {"type": "array", "prefixItems": [INT], "items": False}, ["[]", "[1]"], ["[1, 2]"]),
    ("unevaluatedProperties", {"type": "object", "allOf": [obj(a=INT)], "properties": {"b": INT}, "unevaluatedProperties": False}, ['{"a": 1, "b": 1}', "{}"], ['{"c": 1}', '{"a": ""}']),
    ("unevaluatedProperties of a union", {"type": "object", "anyOf": [obj(["a"], a=INT), obj(["b"], b=INT)], "unevaluatedProperties": {"type": "null"}}, ['{"a": 1}', '{"b": 2, "c": null}'], ['{"a": 1, "c": 1}']),
    ("unevaluatedItems", {"type": "array", "allOf": [{"prefixItems": [INT]}], "unevaluatedItems": STR}, ['[1, "a"]'], ["[1, 2]", '["a"]']),
    ("$anchor", {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}}, ["1"], ['"a"']),
    ("$id", {"$id": "https://example.com/root", "$ref": "other#/$defs/x", "$defs": {"o": {"$id": "other", "$defs": {"x": INT}}}}, ["1"], ['"a"']),
    ("an $id of draft-07 that is an anchor", OLD | {"allOf": [{"$ref": "#here"}], "definitions": {"a": {"$id": "#here", "type": "integer"}}}, ["1"], ['"a"']),
    ("$dynamicRef with one place to go", {"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", "type": "integer"}}}, ["1"], ['"a"']),
    ("a name in an enum is no $id", {"properties": {"a": {"enum": [{"$id": "x", "$anchor": "y"}]}}}, ['{"a": {"$id": "x", "$anchor": "y"}}'], []),
    ("recursion through allOf", {"$ref": "#/$defs/n", "$defs": {"b": obj(["v"], v=INT), "n": {"allOf": [{"$ref": "#/$defs/b"}], "properties": {"next": {"$ref": "#/$defs/n"}}}}},
     ['{"v": 1}', '{"v": 1, "next": {"v": 2, "next": {"v": 3}}}'], ["{}", '{"v": 1, "next": {}}']),
    ("recursion through two schemas at once", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"c": {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/m"}]}}}, "m": {"required": ["d"], "properties": {"d": INT, "c": {"$ref": "#/$defs/m"}}}}},
     ["{}", '{"c": {"d": 1}}'], ['{"c": {}}']),
    ("recursion of arrays", {"type": "array", "items": {"$ref": "#"}}, ["[]", "[[], [[]]]"], ["[1]"]),
    ("draft-04 bounds", {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    ("an optional key that nothing satisfies stays out", {"type": "object", "properties": {"a": {"allOf": [INT, STR]}}, "additionalProperties": True}, ["{}", '{"b": 1}'], ['{"a": 1}', '{"a": ""}']),
    ("enum filtered by a pattern", {"enum": ["ab", "b", 1], "type": "string", "pattern": "^a"}, ['"ab"'], ['"b"', "1"]),
    ("enum filtered by objects", {"enum": [{"a": 1}, {"a": "x"}, {}], "properties": {"a": INT}, "required": ["a"]}, ['{"a": 1}'], ['{"a": "x"}', "{}"]),
    ("formats", {"type": "string", "format": "ipv4"}, ['"1.2.3.4"'], ['"1.2.3"', '"256.1.1.1"']),
    ("a format and a length", {"type": "string", "format": "email", "maxLength": 6}, ['"a@b.co"'], ['"a"', '"ab@b.co"']),
    ("formats that are not known", {"type": "string", "format": "password"}, ['"x"'], ["1"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_each_keyword(schema: Any, good: list[str], bad: list[str]) -> None:
    language = Language(schema)
    assert [text for text in good if not language.takes(text)] == []
    assert [text for text in bad if language.takes(text)] == []
    good = [*good, language.shortest()]
    validator = validator_for(schema, jsonschema.Draft202012Validator)
    for text in good:
        validator(schema).validate(json.loads(text))


REFUSED: list[tuple[Any, str, str]] = [
    ({"oneOf": [{"format": "ipv4"}, {"format": "ipv6"}], "type": "string"}, "oneOf", ""),
    ({"type": "string", "not": {"format": "date"}}, "not", "/not"),
    ({"type": "array", "items": STR, "not": {"uniqueItems": True}}, "not", "/not"),
    ({"if": {"format": "date"}, "then": {"maxLength": 3}, "type": "string"}, "if", ""),
    ({"$ref": "https://example.com/other.json"}, "$ref", ""),
    ({"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n"}, "b": {"$id": "b", "$dynamicAnchor": "n"}}}, "$dynamicRef", ""),
    ({"type": "string", "pattern": "(a)\\1"}, "pattern", ""),
    ({"type": "array", "prefixItems": [STR, STR], "minItems": 2, "uniqueItems": True}, "uniqueItems", ""),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "keyword", "path"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(SchemaError) as error:
        compile_to_nodes(schema)
    assert (error.value.keyword, error.value.path) == (keyword, path)


def test_one_of_is_a_union_where_somebody_validates_afterwards() -> None:
    schema = {"oneOf": [{"format": "ipv4"}, {"format": "ipv6"}], "type": "string"}
    language = Language(schema, one_of="validate")
    assert language.takes('"1.2.3.4"')
    assert language.takes('"::1"')
    assert not language.takes('"x"')


def test_the_indented_style_has_one_spelling() -> None:
    schema = obj(
        a={"type": "array", "items": INT}, b=obj(c=STR), d={"const": {"x": [1, {}], "y": []}}
    )
    language = Language(schema, style="indented")
    for value in (
        {},
        {"a": []},
        {"a": [1, 2], "b": {}},
        {"b": {"c": "x"}, "d": {"x": [1, {}], "y": []}},
    ):
        assert language.takes(json.dumps(value, indent=2))
        assert not value or not language.takes(json.dumps(value))
    assert not language.takes('{\n    "a": []\n}')
    anything = Language({}, style="indented")
    assert anything.takes(json.dumps([[], {"a": [1, {"b": None}]}], indent=2))
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    assert Language(tree, style="indented").takes(json.dumps({"child": {"child": {}}}, indent=2))


def test_a_grounded_string_meets_its_schema_too() -> None:
    texts = {"/id": ["orders A-1 and B-22"], "/any": ["yes"]}
    id_schema = {"type": "string", "pattern": "^[A-Z]-", "not": {"const": "A-1"}}
    language = Language(
        {"type": "object", "properties": {"id": id_schema, "any": {}}}, grounding=texts
    )
    assert language.takes('{"id": "B-22", "any": "yes"}')
    assert language.takes('{"any": 1}')
    assert not language.takes('{"any": "no"}')
    assert not language.takes('{"id": "A-1"}')
    assert not language.takes('{"id": "orders"}')
    assert not language.takes('{"id": "C-3"}')


# -- no invalid value is ever taken, whatever is combined ------------------------------------------

_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from([0.5, 2.5]), st.sampled_from(["", "a", "ab", "b", "ba"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)),
    max_leaves=5,
)  # fmt: skip
_TYPE = st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean"])
_KEY = st.sampled_from(["a", "b", "c"])
_COUNT = st.integers(0, 2)


def _word(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A schema of one or two keywords over smaller schemas."""
    keys = st.lists(_KEY, max_size=2, unique=True)
    some = st.lists(inner, min_size=1, max_size=3)
    by_key = st.dictionaries(_KEY, inner, max_size=2)
    single = {
        "type": _TYPE, "required": keys, "properties": by_key, "additionalProperties": inner,
        "minProperties": _COUNT, "maxProperties": _COUNT, "propertyNames": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "^[ab]$"]), inner, max_size=2),
        "dependentRequired": st.dictionaries(_KEY, keys, max_size=2), "dependentSchemas": by_key,
        "items": inner, "prefixItems": some, "minItems": _COUNT, "maxItems": _COUNT, "contains": inner,
        "uniqueItems": st.just(True), "unevaluatedProperties": inner, "unevaluatedItems": inner,
        "minimum": st.integers(-2, 3), "exclusiveMaximum": st.integers(0, 5), "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": _COUNT, "maxLength": _COUNT, "pattern": st.sampled_from(["^a", "b$", "a", "^ab?$"]),
        "enum": st.lists(_VALUES, min_size=1, max_size=3), "const": _VALUES,
        "anyOf": some, "oneOf": some, "allOf": some, "not": inner, "if": inner, "then": inner, "else": inner,
    }  # fmt: skip
    return st.lists(st.sampled_from(sorted(single)), min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: single[name] for name in names})
    )


_SCHEMAS = st.recursive(
    st.one_of(st.booleans(), _TYPE.map(lambda t: {"type": t})), _word, max_leaves=6
)


def check(schema: Any, values: list[Any], **options: Any) -> None:
    try:
        language = Language(schema, **options)
    except SchemaError:
        return
    validator = jsonschema.Draft202012Validator(schema)
    shortest = language.shortest()
    assert language.takes(shortest)
    assert validator.is_valid(json.loads(shortest)), (schema, shortest)
    for value in values:
        if language.takes(json.dumps(value)):
            assert validator.is_valid(value), (schema, value)


@settings(max_examples=200)
@given(_SCHEMAS, st.lists(_VALUES, min_size=3, max_size=12), st.booleans())
def test_no_invalid_value_is_taken_whatever_is_combined(
    schema: Any, values: list[Any], open_objects: bool
) -> None:
    check(schema, values, open_objects=open_objects)
