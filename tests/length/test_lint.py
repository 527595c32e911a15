import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.length import schema_bounds, unbounded_fields

TEXT = {"type": "string"}


def closed(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        (closed(side={"enum": ["left"]}), {}),
        (closed(text={"type": "string", "maxLength": 9}), {}),
        (closed(text=TEXT), {"text": "add `maxLength`, or an `enum`"}),
        (closed(at=closed(street=TEXT)), {"at.street": "add `maxLength`, or an `enum`"}),
        (
            closed(tags={"type": "array", "items": TEXT}),
            {"tags[]": "add `maxItems`"},
        ),
        (
            closed(tags={"type": "array", "items": TEXT, "maxItems": 3}),
            {"tags[]": "add `maxLength`, or an `enum`"},
        ),
        (closed(count={"type": "integer"}), {"count": "add `minimum` and `maximum`"}),
        (closed(share={"type": ["number", "null"]}), {"share": "a number has no last digit"}),
        (closed(note={"anyOf": [TEXT, {"type": "null"}]}), {"note": "add `maxLength`"}),
        (closed(any={}), {"any": "anything may stand here"}),
        (closed(any=True), {"any": "anything may stand here"}),
        (closed(map={"type": "object"}), {"map": "any key may stand here"}),
        (closed(mixed={"type": ["string", "integer"]}), {"mixed": "bound each of string"}),
        (
            {"type": "object", "properties": {}, "additionalProperties": True},
            {"": "any other key may stand here"},
        ),
        (closed(at={"$ref": "#/$defs/a"}) | {"$defs": {"a": TEXT}}, {"at": "add `maxLength`"}),
        (closed(at={"$ref": "#/$defs/b"}), {"at": "`#/$defs/b` leads nowhere"}),
        (
            {"$ref": "#/$defs/t", "$defs": {"t": closed(sub={"$ref": "#/$defs/t"})}},
            {"sub": "it contains itself"},
        ),
        (True, {"": "anything may stand here"}),
        (False, {}),
    ],
)
def test_the_fields_that_make_a_schema_unbounded_are_named(schema, fields):
    found = {field.path: field.advice for field in unbounded_fields(schema)}
    assert found.keys() == fields.keys()
    assert all(found[path].startswith(advice) for path, advice in fields.items())


leaves = st.sampled_from(
    [TEXT, {"type": "string", "maxLength": 5}, {"type": "boolean"}, {"type": "integer"}, {}, True]
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda p: closed(**p)),
        inner.map(lambda item: {"type": "array", "items": item}),
        inner.map(lambda item: {"type": "array", "items": item, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=2).map(lambda branches: {"anyOf": branches}),
    ),
    max_leaves=6,
)


@given(schemas)
def test_a_schema_has_a_longest_output_exactly_where_no_field_is_named(schema):
    assert (schema_bounds(schema).max_tokens is None) == bool(unbounded_fields(schema))
