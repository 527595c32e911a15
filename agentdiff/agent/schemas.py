"""What pydantic says about a type and about a fault, made short enough for a small model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from agentdiff.messages import Json

Schema = dict[str, Json]

_SHOWN_CHARS = 60

_MAPS = frozenset(("properties", "patternProperties"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SINGLES = frozenset(("items", "additionalProperties", "contains", "propertyNames", "not"))
_NOISE = frozenset(("title", "discriminator", "$defs"))
_REF = "#/$defs/"


class QuietJsonSchema(GenerateJsonSchema):
    """Leaves out a default that is not JSON without a warning: the function still has it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def tidy(schema: Schema) -> Schema:
    """A schema of pydantic without its noise.

    Titles go; objects with `properties` are closed unless the schema opens them; definitions stand
    where they are used, so that a small model sees an enum where it needs it. Definitions that
    refer to themselves stay in `$defs`.
    """
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))
    recursive = {name for name in definitions if name in _reachable(definitions, name)}
    plain = _tidied(schema, definitions, recursive)
    kept = {name: _tidied(definitions[name], definitions, recursive) for name in sorted(recursive)}
    return {**plain, "$defs": kept} if kept else plain


def faults_of(error: ValidationError) -> Iterator[str]:
    """One line for each fault: where, what, and the value at fault, shortened."""
    for fault in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in fault["loc"])
        line = f"`{where}`: {fault['msg']}" if where else fault["msg"]
        if fault["type"] not in ("missing", "json_invalid"):
            shown = repr(fault["input"])
            line += f", got {shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + '…'}"
        yield line


def _tidied(node: Schema, definitions: dict[str, Schema], recursive: set[str]) -> Schema:
    def again(value: Json) -> Json:
        if not isinstance(value, dict):
            return value
        return _tidied(cast("Schema", value), definitions, recursive)

    name = str(node.get("$ref", "")).removeprefix(_REF)
    if name in definitions and name not in recursive:
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _tidied({**definitions[name], **siblings}, definitions, recursive)
    plain: Schema = {}
    for key, value in node.items():
        if key in _NOISE:
            continue
        if key in _MAPS:
            value = {inner: again(schema) for inner, schema in value.items()}
        elif key in _LISTS:
            value = [again(schema) for schema in value]
        elif key in _SINGLES:
            value = again(value)
        plain[key] = value
    if "properties" in plain:
        plain.setdefault("additionalProperties", False)
    return plain


def _reachable(definitions: dict[str, Schema], start: str) -> set[str]:
    """The definitions that `start` leads to; itself only through a circle."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in _refs(definitions[todo.pop()]):
            if name in definitions and name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def _refs(node: Json) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in cast("dict[str, Json]", node).items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(_REF)
            else:
                yield from _refs(value)
    elif isinstance(node, list):
        for value in cast("list[Json]", node):
            yield from _refs(value)
