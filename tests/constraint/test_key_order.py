# ruff: noqa: E501  (tables read better on long lines)
"""Keys in any order: what is taken, and the laws under it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import compile_schema, compile_tool_calls
from agentdiff.constraint.objects import MAX_FREE_KEYS
from agentdiff.errors import ConfigurationError, SchemaError
from tests.constraint.doubles import (
    BYTES,
    SCHEMAS,
    TINY,
    TREE,
    WORDS,
    Json,
    decode,
    dumps,
    every_fill,
    log_softmax,
    text_of,
    written,
)

INT: Json = {"type": "integer"}
STR: Json = {"type": "string"}


def obj(required: Any = None, **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required or []}


TABLE: list[tuple[str, Json, list[str], list[str]]] = [
    ("each key once, in any order", obj(["a", "b"], a=INT, b=INT, c=INT),
     ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"c": 3, "b": 2, "a": 1}', '{"b": 2, "c": 3, "a": 1}'],
     ["{}", '{"a": 1}', '{"b": 2, "c": 3}', '{"a": 1, "b": 2, "a": 1}', '{"b": 1, "b": 2}', '{"c": 3, "b": 2, "c": 3, "a": 1}', '{"b": 2, "a": 1, "x": 1}']),
    ("all the way down", obj(o=obj(["q"], p=INT, q=INT)), ['{"o": {"q": 1, "p": 2}}', "{}"], ['{"o": {"p": 2}}', '{"o": {"q": 1, "q": 1}}']),
    ("values keep to their keys", obj(a=INT, b=STR), ['{"b": "x", "a": 1}'], ['{"b": 1, "a": "x"}', '{"b": 1}']),
    ("keys that begin alike", obj(a=INT, ab=STR, abc={"type": "null"}),
     ['{"abc": null, "ab": "", "a": 0}', '{"ab": "", "abc": null}'], ['{"abc": 1}', '{"ab": "", "ab": ""}']),
    ("other keys stand anywhere, the declared ones are not among them", obj(["a"], a=INT, b=STR) | {"additionalProperties": STR},
     ['{"x": "", "a": 1}', '{"x": "", "b": "", "y": "", "a": 1, "z": ""}'], ['{"x": 1, "a": 1}', '{"x": ""}', '{"a": 1, "x": "", "a": 1}', '{"b": 1, "a": 1}']),
    ("required and undeclared", obj(["k"], a=INT), ['{"k": [], "a": 1}', '{"a": 1, "k": {}}'], ['{"a": 1}', '{"k": 1, "x": 1}']),
    ("at least so many", obj(["a"], a=INT, b=INT, c=INT) | {"minProperties": 2}, ['{"c": 1, "a": 1}', '{"a": 1, "b": 1}', '{"c": 1, "b": 1, "a": 1}'], ['{"a": 1}', '{"b": 1, "c": 1}']),
    ("at most so many", obj(["b"], a=INT, b=INT, c=INT) | {"maxProperties": 2}, ['{"b": 1}', '{"c": 1, "b": 1}', '{"b": 1, "a": 1}'], ['{"a": 1, "c": 1, "b": 1}', '{"a": 1, "c": 1}', "{}"]),
    ("so many with others", obj(["a"], a=INT, b=INT) | {"minProperties": 4, "maxProperties": 4, "additionalProperties": INT},
     ['{"x": 1, "a": 1, "y": 1, "b": 1}', '{"x": 1, "y": 1, "z": 1, "a": 1}'], ['{"x": 1, "x": 1, "a": 1, "b": 1}', '{"x": 1, "x": 1, "y": 1, "a": 1}', '{"x": 1, "a": 1, "b": 1}', '{"x": 1, "y": 1, "z": 1, "a": 1, "b": 1}']),
    ("fewer others the more of the optional ones", obj(a=INT, b=INT) | {"minProperties": 3, "additionalProperties": INT},
     ['{"b": 1, "x": 1, "a": 1}', '{"x": 1, "y": 1, "z": 1}', '{"a": 1, "b": 1, "x": 1, "x": 1}'], ['{"a": 1, "b": 1}', '{"x": 1, "x": 1, "a": 1}', '{"x": 1, "a": 1, "x": 1}']),
    ("keys by pattern", {"type": "object", "properties": {"a": INT}, "patternProperties": {"^x": STR}, "additionalProperties": False},
     ['{"x1": "", "a": 1, "x2": ""}'], ['{"x1": 1}', '{"y": ""}', '{"a": 1, "x": "", "a": 1}']),
    ("one key needs another", obj(a=INT, b=INT) | {"dependentRequired": {"a": ["b"]}}, ['{"b": 1, "a": 1}', '{"a": 1, "b": 1}', '{"b": 1}'], ['{"a": 1}', '{"b": 1, "b": 1}']),
    ("a tag may come last", {"oneOf": [obj(["k", "v"], k={"const": "i"}, v=INT), obj(["k", "v"], k={"const": "s"}, v=STR)]},
     ['{"v": 1, "k": "i"}', '{"v": "", "k": "s"}', '{"k": "s", "v": ""}'], ['{"v": 1, "k": "s"}', '{"v": "", "k": "i"}']),
    ("a key without values drops out", obj(["a"], a=INT, b=False), ['{"a": 1}'], ['{"b": 1, "a": 1}', '{"a": 1, "b": null}']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_is_taken_in_any_order(schema: Json, good: list[str], bad: list[str]) -> None:
    grammar = compile_schema(schema, BYTES, key_order="free")
    assert [text for text in good if not grammar.accepts(text.encode())] == []
    assert [text for text in bad if grammar.accepts(text.encode())] == []


def shuffled(value: Json, rng: random.Random) -> Json:
    """The same value with the keys of its objects in another order."""
    if isinstance(value, list):
        return [shuffled(item, rng) for item in value]
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}
    return value


@settings(max_examples=25, deadline=None)
@given(
    schema=SCHEMAS,
    seed=st.integers(0, 2**32),
    style=st.sampled_from(["spaced", "compact", "indented"]),
)
def test_what_is_taken_in_one_order_is_taken_in_all(schema: Json, seed: int, style: Any) -> None:
    # Two texts of the schema's own order, in another order.
    ordered = compile_schema(schema, WORDS)
    free = compile_schema(schema, WORDS, key_order="free", style=style)
    rng = np.random.default_rng(seed)
    for slack in (0, 12):
        tokens = decode(
            ordered.start(ordered.min_tokens + slack), WORDS, rng, block=16,
            choose=lambda _, still_open: still_open,
        )  # fmt: skip
        value = shuffled(json.loads(text_of(tokens, WORDS)), random.Random(seed))
        separators = {"spaced": (", ", ": "), "compact": (",", ":"), "indented": (",", ": ")}
        text = json.dumps(
            value,
            ensure_ascii=False,
            separators=separators[style],
            indent=2 if style == "indented" else None,
        )
        assert free.accepts(text.encode()) or "e" in text.lower()  # a float read and written anew


@settings(max_examples=30, deadline=None)
@given(
    schema=SCHEMAS,
    seed=st.integers(0, 2**32),
    slack=st.sampled_from([0, 2, 25]),
    temperature=st.sampled_from([0.0, 1.0]),
    style=st.sampled_from(["spaced", "compact", "indented"]),
)
def test_any_part_of_any_fill_in_any_order_keeps_a_valid_end_within_the_budget(
    schema: Json, seed: int, slack: int, temperature: float, style: Any
) -> None:
    rng = np.random.default_rng(seed)
    grammar = compile_schema(schema, WORDS, key_order="free", style=style)
    budget = grammar.min_tokens + slack

    def some(_: Any, still_open: list[int]) -> list[int]:
        count = int(rng.integers(1, len(still_open) + 1))
        return rng.choice(still_open, count, replace=False).tolist()

    tokens = decode(
        grammar.start(budget), WORDS, rng, block=8, choose=some, temperature=temperature
    )
    assert written(tokens, WORDS) <= budget
    text = text_of(tokens, WORDS)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert grammar.accepts(text)


@settings(max_examples=50, deadline=None)
@given(
    counts=st.tuples(st.integers(0, 3), st.integers(0, 4)),
    required=st.sets(st.sampled_from("abc")),
    rest=st.sampled_from([False, INT, {"type": "boolean"}]),
    keys=st.lists(st.sampled_from("abcxyz"), max_size=5),
)
def test_counted_keys_are_counted_without_the_repeated_ones(
    counts: tuple[int, int], required: set[str], rest: Json, keys: list[str]
) -> None:
    schema = obj(sorted(required), a=INT, b=INT, c=INT) | {
        "minProperties": counts[0], "maxProperties": counts[1], "additionalProperties": rest,
    }  # fmt: skip
    try:
        grammar = compile_schema(schema, BYTES, key_order="free")
    except SchemaError:
        return
    text = "{" + ", ".join(f'"{key}": 1' for key in keys) + "}"
    if grammar.accepts(text.encode()):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        assert all(keys.count(key) < 2 for key in "abc")


FREE: Json = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]}  # fmt: skip


@pytest.mark.parametrize("pinned", [(), (1,)])
def test_fill_and_marginals_equal_those_of_every_sequence(pinned: tuple[int, ...]) -> None:
    grammar, rng = compile_schema(FREE, TINY, key_order="free"), np.random.default_rng(len(pinned))
    length, budget = 4, grammar.min_tokens + 4
    fills = every_fill(grammar, TINY, length, budget)
    pins = {i: fills[len(fills) // 2][i] for i in pinned}
    fills = [fill for fill in fills if all(fill[i] == token for i, token in pins.items())]
    log_probs = log_softmax(rng.standard_normal((length, len(TINY))) * 2)
    scores = np.array([sum(log_probs[i, t] for i, t in enumerate(f) if i not in pins) for f in fills])  # fmt: skip
    proposal = grammar.start(budget).propose(log_probs, pins)
    best = scores.max()
    assert sum(log_probs[i, t] for i, t in enumerate(proposal.tokens) if i not in pins) == pytest.approx(best, abs=1e-9)  # fmt: skip
    weights = np.exp(scores - best) / np.exp(scores - best).sum()
    for i in range(length):
        token = int(proposal.tokens[i])
        expected = sum(w for w, f in zip(weights, fills, strict=True) if f[i] == token)
        assert proposal.confidence[i] == pytest.approx(expected, abs=1e-9)


def test_with_many_keys_the_order_of_the_schema_holds() -> None:
    for count, is_free in ((MAX_FREE_KEYS, True), (MAX_FREE_KEYS + 1, False)):
        names = [f"key_{i:02}" for i in range(count)]
        schema = obj(names[::3], **dict.fromkeys(names, INT))
        grammar = compile_schema(schema, WORDS, key_order="free")
        assert grammar.accepts(dumps(dict.fromkeys(names, 7)))
        assert grammar.accepts(dumps(dict.fromkeys(reversed(names), 7))) is is_free


def test_recursive_objects_in_any_order() -> None:
    grammar = compile_schema(TREE, BYTES, key_order="free")
    assert grammar.accepts(b'{"next": {"next": null, "value": 1}, "children": [], "value": 2}')
    assert not grammar.accepts(b'{"next": {"value": 1}, "value": 2}')


def test_the_arguments_of_tools_may_stand_in_any_order() -> None:
    tools = {"move": obj(["x", "y"], x=INT, y=INT)}
    text = b'<tool_call>\n{"name": "move", "arguments": {"y": 2, "x": 1}}\n</tool_call>'
    assert compile_tool_calls(tools, BYTES, key_order="free").accepts(text)
    assert not compile_tool_calls(tools, BYTES).accepts(text)


def test_an_unknown_key_order_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="`key_order` must be"):
        compile_schema({}, BYTES, key_order="any")  # pyright: ignore[reportArgumentType]
