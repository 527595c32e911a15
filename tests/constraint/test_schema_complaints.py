# ruff: noqa: E501  (tables read better on long lines)
"""What users of other engines complain about, as far as it concerns schemas."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest

from agentdiff.constraint.schema import compile_to_nodes
from agentdiff.errors import SchemaError
from tests.constraint.test_schema_keywords import INT, STR, Language, obj, tag

TABLE: list[tuple[str, Any, list[str], list[str]]] = [
    ("endless white space (omlx 2990, outlines 690)", {"type": "array", "items": obj(a=INT)}, ['[{"a": 1}]'], ['[ {"a": 1}]', '[\n{"a": 1}]', '[{"a":  1}]', '[{"a": 1}\t]', '[{"a": 1 }]']),
    ("maxLength is ignored beside a pattern on items (vllm 45592)", {"type": "array", "items": {"type": "string", "pattern": "^[a-z]*$", "maxLength": 3}}, ['["abc"]'], ['["abcd"]', '["A"]']),
    ("minItems and maxItems are ignored (vllm 12201, 16880)", {"type": "array", "items": STR, "minItems": 2, "maxItems": 3}, ['["a", "b"]', '["a", "b", "c"]'], ['["a"]', '["a", "b", "c", "d"]']),
    ("an optional key out of order passes for another key (guidance 1039)", obj(["b"], a=INT, b=INT) | {"additionalProperties": True}, ['{"a": 1, "b": 2}', '{"b": 2, "c": "x"}'], ['{"b": 2, "a": "x"}', '{"b": 2, "c": 1, "a": "x"}']),
    ("an enum behind $ref becomes a free object (llama.cpp 8073)", obj(["c"], c={"$ref": "#/$defs/color"}) | {"$defs": {"color": {"enum": ["red", "green"]}}}, ['{"c": "red"}'], ['{"c": {}}', '{"c": "blue"}']),
    ("a recursive array of $ref crashes (xgrammar 207)", {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}, ["[]", "[[], [[]]]"], ["[1]"]),
    ("a maximum of 2e10 crashes (vllm 17894)", {"type": "integer", "minimum": 0, "maximum": 2e10}, ["20000000000", "0"], ["20000000001", "-1"]),
    ("Chinese values are broken (xgrammar 418)", {"type": "object", "properties": {"天气": {"enum": ["晴", "多云", "🌧️"]}}, "required": ["天气"]}, ['{"天气": "晴"}', '{"天气": "🌧️"}'], ['{"天气": "雨"}', '{"\\u5929\\u6c14": "晴"}', "{}"]),
    ("a list is never closed (formatron 31)", {"type": "array", "items": {"enum": ["a", "aa"]}, "uniqueItems": True}, ['["a", "aa"]', '["aa"]'], ['["a", "a"]', '["a", "aa", "a"]']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_complaint_is_met(schema: Any, good: list[str], bad: list[str]) -> None:
    language = Language(schema)
    assert [text for text in good if not language.takes(text)] == []
    assert [text for text in bad if language.takes(text)] == []


def nested_one_of(depth: int, width: int) -> Any:
    schema: Any = INT
    for level in range(depth):
        schema = {"oneOf": [tag(f"{level}.{i}", of=schema) for i in range(width)]}
    return schema


def overlapping(width: int) -> Any:
    """Branches that differ only in what they require, each in three ways."""
    keys = [f"k{i}" for i in range(width)]
    branches = [
        obj([k], **dict.fromkeys(keys, STR)) | {"minProperties": i} for i, k in enumerate(keys)
    ]
    return {"oneOf": branches}


HEAVY: list[tuple[str, Any]] = [
    ("lengths and counts together (outlines 658)", obj(**{f"k{i}": {"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 65535}} for i in range(20)})),
    ("the pattern that blows up (sglang 40373)", {"type": "string", "pattern": "^[ab]*a[ab]{13}$"}),
    ("unions inside unions (vllm 54003)", nested_one_of(3, 6)),
    ("unions inside unions by $ref", {"$ref": "#/$defs/u0", "$defs": {f"u{i}": {"oneOf": [tag(f"{i}.{j}", of={"$ref": f"#/$defs/u{(i + 1) % 12}"}) for j in range(6)] + [INT]} for i in range(12)}}),
    ("one union of many tags", {"oneOf": [tag(f"tool-{i}", a=INT, b=STR) for i in range(60)]}),
    ("an enum of 10,000", {"type": "array", "items": {"enum": [f"value-{i}" for i in range(10_000)]}, "uniqueItems": True}),
    ("unions side by side", {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]}),
    ("branches that overlap", overlapping(12)),
    ("conditions side by side", {"allOf": [{"if": {"required": [f"a{i}"]}, "then": {"required": [f"b{i}"]}} for i in range(40)]}),
    ("a oneOf in its own contrary", {"$ref": "#/$defs/a", "$defs": {"a": {"oneOf": [{"not": {"$ref": "#/$defs/b"}}, {"$ref": "#/$defs/c"}]}, "b": {"oneOf": [{"$ref": "#/$defs/c"}, STR]}, "c": obj(["x"], x={"$ref": "#/$defs/a"})}}),
]  # fmt: skip


@pytest.mark.parametrize("schema", [row[1] for row in HEAVY], ids=[row[0] for row in HEAVY])
def test_a_heavy_schema_is_compiled_or_refused_but_never_stalls(schema: Any) -> None:
    started = time.process_time()
    with suppress(SchemaError):
        compile_to_nodes(schema)
    assert time.process_time() - started < 3  # most take milliseconds


def test_plain_tool_schemas_compile_in_milliseconds() -> None:
    schema = obj(
        ["city"],
        city=STR,
        days=INT,
        unit={"enum": ["C", "F"]},
        tags={"type": "array", "items": STR},
    )
    times: list[float] = []
    for _ in range(5):
        started = time.process_time()
        compile_to_nodes(schema)
        times.append(time.process_time() - started)
    assert min(times) < 0.01  # a tenth of that on an idle core
