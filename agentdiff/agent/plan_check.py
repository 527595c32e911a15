"""A plan held against tools before anything runs: every fault at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator, ValidationError

from agentdiff.agent.plan import Plan, PlanStep, Ref, refs_in
from agentdiff.agent.schemas import Schema
from agentdiff.agent.tools import AnyTool
from agentdiff.errors import PlanInvalid
from agentdiff.messages import Json

_SHOWN_CHARS = 60
_BRANCHING = frozenset(
    ("anyOf", "oneOf", "allOf", "not", "if", "contains", "uniqueItems", "enum", "const")
)
"""Keywords that look at more than one place, so that a reference below decides them only when it is known."""


def check_plan(
    plan: Plan, tools: Mapping[str, AnyTool], *, known: Mapping[str, str] | None = None
) -> None:
    """Pass when the plan can run.

    Ids are unique, tools exist, nothing waits in a circle, arguments satisfy the tool's schema as far as they are
    known, and references name a part that the tool before returns, of a type that the argument takes.

    Args:
        plan: What is to run.
        tools: By name.
        known: Id -> tool of steps that have run before and may be referred to.

    Raises:
        PlanInvalid: It cannot; names every fault.
    """
    faults = list(faults_of(plan, tools, known=known or {}))
    if faults:
        raise PlanInvalid(tuple(faults))


def faults_of(
    plan: Plan, tools: Mapping[str, AnyTool], *, known: Mapping[str, str]
) -> Iterator[str]:
    """One line for each fault, in the order of the steps."""
    counts = Counter(step.id for step in plan.steps)
    named = dict(known) | {step.id: step.tool for step in plan.steps}
    for step in plan.steps:
        if counts[step.id] > 1 or step.id in known:
            yield f"step `{step.id}`: the id is taken; give each step its own"
        yield from step_faults(step, tools, named)
    yield from _circles(plan)


def step_faults(
    step: PlanStep, tools: Mapping[str, AnyTool], named: Mapping[str, str]
) -> Iterator[str]:
    """One line for each fault of one step.

    Args:
        step: The step.
        tools: By name.
        named: Id -> tool of every step that may be referred to.
    """
    tool = tools.get(step.tool)
    if tool is None:
        there = ", ".join(f"`{name}`" for name in tools)
        yield f"step `{step.id}`: there is no tool `{step.tool}`; there are {there}"
    for need in step.needs:
        if need not in named:
            yield f"step `{step.id}`: there is no step `{need}` (a plain dollar is written `$$`)"
    if tool is not None:
        yield from _argument_faults(step, tool, named, tools)


def _argument_faults(
    step: PlanStep, tool: AnyTool, named: Mapping[str, str], tools: Mapping[str, AnyTool]
) -> Iterator[str]:
    refs = {at: ref for at, ref, is_whole in refs_in(step.arguments) if is_whole}
    for error in Draft202012Validator(tool.parameters).iter_errors(step.arguments):
        if not _is_open(error, refs):
            where = ".".join(str(part) for part in error.absolute_path)
            place = f"`{where}`: " if where else ""
            yield f"step `{step.id}`, `{tool.name}`: {place}{_shortened(error.message)}"
    for at, ref, is_whole in refs_in(step.arguments):
        source = tools.get(named.get(ref.step, ""))
        if source is None:
            continue
        given = _part(source.returns, ref.path)
        if given is None:
            yield f"step `{step.id}`: `{source.name}` returns no `{str(ref)[1:]}`"
        elif is_whole:
            wanted = _part(tool.parameters, at)
            if not _overlap(_types(given), _types(wanted if wanted is not None else {})):
                yield (
                    f"step `{step.id}`: `{'.'.join(map(str, at))}` of `{tool.name}` takes"
                    f" {_said(wanted)}, but `{ref}` is {_said(given)}"
                )


def adapted(step: PlanStep, arguments: Mapping[str, Json], tool: AnyTool) -> dict[str, Json]:
    """The filled-in arguments of a step, with numbers written out where a reference stands for a text."""
    given: dict[str, Json] = dict(arguments)
    for at, _, is_whole in refs_in(step.arguments):
        if is_whole and len(at) == 1 and isinstance(given[str(at[0])], bool | int | float):
            wanted = _part(tool.parameters, at)
            if wanted is not None and _types(wanted) == {"string"}:
                given[str(at[0])] = json.dumps(given[str(at[0])])
    return given


def _is_open(error: ValidationError, refs: Mapping[tuple[str | int, ...], Ref]) -> bool:
    """Whether a fault lies in a value that is not known yet."""
    path = tuple(error.absolute_path)
    inside = any(path[: len(at)] == at for at in refs)
    below = error.validator in _BRANCHING and any(at[: len(path)] == path for at in refs)
    return inside or below


def _part(schema: Schema | None, path: tuple[str | int, ...]) -> Schema | None:
    """The schema of a part of an instance, `{}` where anything may be there, None where nothing can."""
    node: Schema = {} if schema is None else schema
    root = node
    for part in path:
        node = _resolved(node, root)
        ways = [
            way for key in ("anyOf", "oneOf") for way in cast("list[Schema]", node.get(key, []))
        ]
        if ways:
            parts = [
                found for way in ways if (found := _part(_rooted(way, root), (part,))) is not None
            ]
            if not parts:
                return None
            node = {"anyOf": parts}
            continue
        types = _types(node)
        if isinstance(part, int):
            if types is not None and "array" not in types:
                return None
            items = node.get("items", {})
            first = cast("list[Json]", node.get("prefixItems", []))
            node = _as_schema(first[part] if part < len(first) else items)
        else:
            if types is not None and "object" not in types:
                return None
            properties: dict[str, Json] = node.get("properties", {})
            if part in properties:
                node = _as_schema(properties[part])
            elif node.get("additionalProperties") is False:
                return None
            else:
                node = _as_schema(node.get("additionalProperties", {}))
    return _rooted(_resolved(node, root), root)


def _rooted(node: Schema, root: Schema) -> Schema:
    return node | {"$defs": root["$defs"]} if "$defs" in root else node


def _resolved(node: Schema, root: Schema) -> Schema:
    seen = 0
    while isinstance(node.get("$ref"), str) and seen < 20:
        target: Any = root
        for part in node["$ref"].split("/")[1:]:
            target = cast("Schema", target).get(part, {}) if isinstance(target, dict) else {}
        node, seen = _as_schema(target), seen + 1
    return node


def _as_schema(value: Json) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}


def _types(schema: Schema) -> set[str] | None:
    """The types that a schema takes; None where it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return set(cast("list[str]", declared))
    ways = [way for key in ("anyOf", "oneOf") for way in cast("list[Schema]", schema.get(key, []))]
    if ways:
        types = [_types(_rooted(_resolved(way, schema), schema)) for way in ways]
        return None if any(t is None for t in types) else {name for t in types if t for name in t}
    if "const" in schema or "enum" in schema:
        values = cast("list[Json]", schema.get("enum", [schema.get("const")]))
        return {_type_of(value) for value in values}
    return None


def _type_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {
        "str": "string",
        "int": "integer",
        "float": "number",
        "list": "array",
        "dict": "object",
    }
    return names.get(type(value).__name__, "null")


def _overlap(given: set[str] | None, taken: set[str] | None) -> bool:
    if given is None or taken is None:
        return True
    if taken == {"string"}:
        return bool(
            given & {"string", "boolean", "integer", "number"}
        )  # written out, see `adapted`
    if "number" in given:
        given = given | {"integer"}
    if "number" in taken:
        taken = taken | {"integer"}
    return bool(given & taken)


def _said(schema: Schema | None) -> str:
    types = _types(schema or {})
    return " or ".join(sorted(types)) if types else "anything"


def _circles(plan: Plan) -> Iterator[str]:
    own = {step.id for step in plan.steps}
    left = {step.id: own.intersection(step.needs) for step in plan.steps}
    while ready := {id for id, needs in left.items() if not needs}:
        for id in ready:
            del left[id]
        for needs in left.values():
            needs -= ready
    if left:
        names = ", ".join(f"`{id}`" for id in left)
        yield f"the steps {names} wait for each other in a circle, or for one that does"


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN_CHARS else text[: 2 * _SHOWN_CHARS] + "…"
