import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentdiff.length import schema_bounds

NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "pinned": {"type": "boolean"}},
    "required": ["text"],
}


def bytes_of(schema):
    bounds = schema_bounds(schema, bytes_per_token=1)
    return bounds.min_tokens, bounds.max_tokens


@pytest.mark.parametrize(
    ("schema", "shortest"),
    [
        (NOTE, '{"text":""}'),
        ({"enum": ["north", "east"]}, '"east"'),
        ({"const": None}, "null"),
        ({"type": "string", "minLength": 3}, '"abc"'),
        ({"type": "integer", "minimum": 100}, "100"),
        ({"type": "number", "maximum": -1}, "-1"),
        ({"type": ["null", "integer"]}, "0"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "[true,true]"),
        ({"anyOf": [NOTE, {"type": "null"}]}, "null"),
        ({"allOf": [{"type": "string"}, {"minLength": 3, "type": "string"}]}, '"abc"'),
        ({"type": "object", "required": ["a", "b"]}, '{"a":0,"b":0}'),
    ],
)
def test_the_lower_bound_is_the_canonical_minimal_instance(schema, shortest):
    assert bytes_of(schema)[0] == len(shortest)


@pytest.mark.parametrize(
    ("schema", "longest"),
    [
        ({"enum": ["north", "east"]}, '"north"'),
        ({"type": ["boolean", "null"]}, "false"),
        ({"type": "integer", "minimum": -100, "maximum": 9}, "-100"),
        (
            {"type": "object", "properties": {"on": {"type": "boolean"}}},
            '{"on":false}',
        ),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 2}, "[null,null]"),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, "[1]"),
    ],
)
def test_the_upper_bound_is_the_longest_instance(schema, longest):
    assert bytes_of(schema)[1] == len(longest)


@pytest.mark.parametrize(
    "schema",
    [
        NOTE,
        True,
        {},
        {"type": "object"},
        {"type": "number"},
        {"type": "array", "items": {"const": 1}},
        {"$ref": "https://elsewhere.example/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"type": "string", "pattern": "^a$", "format": "date"},
    ],
)
def test_a_schema_without_a_limit_has_no_upper_bound(schema):
    assert schema_bounds(schema).max_tokens is None


def test_a_recursive_schema_is_bounded_below_by_its_way_out():
    tree = {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                },
                "required": ["left"],
            }
        },
    }
    assert bytes_of(tree) == (len('{"left":null}'), None)


def test_references_that_need_each_other_are_sized_in_any_order():
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 2},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/c"}]},
            "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1},
            "d": {"const": 7},
        },
    }
    assert bytes_of(schema) == (len("[[7],[7]]"), None)


def test_a_schema_that_no_finite_value_satisfies_is_bounded_like_any_value():
    schema = {"type": "array", "items": {"$ref": "#"}, "minItems": 1}
    assert bytes_of(schema) == (1, None)


def test_a_very_deep_schema_is_bounded_without_running_out_of_stack():
    schema = {"type": "boolean"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    assert schema_bounds(schema).max_tokens is None


@given(st.integers(1, 10**9))
def test_a_large_count_costs_no_time(count):
    schema = {"type": "array", "items": {"const": 1}, "minItems": count, "maxItems": count}
    assert bytes_of(schema) == (2 * count + 1, 2 * count + 1)


scalars = st.one_of(
    st.just({"type": "boolean"}),
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
              st.integers(-300, 300), st.integers(0, 300)),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
              st.integers(0, 3), st.integers(0, 3)),
    st.builds(lambda values: {"enum": values},
              st.lists(st.text(max_size=4) | st.integers() | st.none(), min_size=1, max_size=3)),
)  # fmt: skip
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(lambda item, low, more: {
            "type": "array", "items": item, "minItems": low, "maxItems": low + more},
            inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda properties, required: {
            "type": "object", "properties": properties, "additionalProperties": False,
            "required": sorted(required & properties.keys())},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc"))),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)  # fmt: skip


@st.composite
def cases(draw):
    schema = draw(schemas)
    return schema, draw(instances(schema))


def instances(schema):
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([instances(branch) for branch in schema["anyOf"]])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "string":
            letters = st.characters(codec="utf-8")
            return st.text(letters, min_size=schema["minLength"], max_size=schema["maxLength"])
        case "array":
            low, high = schema["minItems"], schema["maxItems"]
            return st.lists(instances(schema["items"]), min_size=low, max_size=high)
        case _:
            properties = {name: instances(value) for name, value in schema["properties"].items()}
            required = {name: properties.pop(name) for name in schema["required"]}
            return st.fixed_dictionaries(required, optional=properties)


@given(cases())
def test_no_instance_lies_outside_the_bounds(case):
    schema, instance = case
    Draft202012Validator(schema).validate(instance)
    written = len(json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode())
    shortest, longest = bytes_of(schema)
    assert longest is not None
    assert shortest <= written <= longest
