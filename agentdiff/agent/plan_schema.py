"""The JSON Schema of the plans that a model may write, made from the tools on offer.

Steps are called `s1`, `s2`, … in order and refer only to steps before them, so a plan that satisfies the schema has
unique ids, existing tools, arguments of the right types and no circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from agentdiff.agent.schemas import Schema
from agentdiff.messages import Json, ToolSpec

MAX_STEPS = 8


def plan_schema(tools: Sequence[ToolSpec], *, first: int = 1, max_steps: int = MAX_STEPS) -> Schema:
    """The schema of a plan over `tools`.

    Args:
        tools: What steps may call, at least one.
        first: The number of the first step; those below it have run and may be referred to.
        max_steps: How many steps at most.
    """
    steps = [_step(number, tools) for number in range(first, first + max_steps)]
    return {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "prefixItems": steps, "items": False, "minItems": 1}
        },
        "required": ["steps"],
        "additionalProperties": False,
    }


def _step(number: int, tools: Sequence[ToolSpec]) -> Schema:
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "id": {"const": f"s{number}"},
                    "tool": {"const": tool.name},
                    "arguments": _with_refs(tool.parameters, number),
                },
                "required": ["id", "tool", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def _with_refs(parameters: Mapping[str, Json], number: int) -> Schema:
    """Parameters any of which may also be a reference to a step before `number`."""
    if number == 1:
        return dict(parameters)
    properties = cast("dict[str, Schema]", parameters.get("properties", {}))
    return {
        **parameters,
        "properties": {name: _or_ref(schema, number) for name, schema in properties.items()},
    }


def _or_ref(schema: Schema, number: int) -> Schema:
    if schema.get("type") == "string" and not schema.keys() & {
        "enum", "const", "pattern", "format", "minLength", "maxLength",
    }:  # fmt: skip
        return schema  # may hold references already
    return {"anyOf": [schema, {"type": "string", "pattern": _pattern(number)}]}


def _pattern(number: int) -> str:
    earlier = "|".join(str(n) for n in range(1, number))
    return rf"^\$s({earlier})(\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]\])*$"
