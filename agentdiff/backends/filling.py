"""The shortest value of a JSON Schema that comes to mind: what a double writes.

Knows the keywords that decide what a value must be; where others matter too (`pattern`, `not`,
conditions), the value may be wrong, and whoever checks it will say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from agentdiff.errors import SchemaError
from agentdiff.messages import Json

_DEEPEST = 32
_PLAIN_FIRST = ("null", "boolean", "integer", "number", "string", "array", "object")
_FORMATS = {
    "date": "2030-01-01",
    "date-time": "2030-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "email": "a@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}


def shortest(schema: Mapping[str, Json]) -> Json:
    """A short value that satisfies `schema`: required properties only, lower bounds met.

    Raises:
        SchemaError: A `$ref` leads nowhere, or the schema has no finite value.
    """
    return _fill(dict(schema), schema, 0)


def _fill(schema: Json, root: Mapping[str, Json], depth: int) -> Json:
    if depth > _DEEPEST:
        raise SchemaError("no value of this schema is finite")
    if not isinstance(schema, Mapping):
        return "a"
    node = cast("Mapping[str, Json]", schema)
    if "$ref" in node:
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _fill({**_referred(node["$ref"], root), **siblings}, root, depth + 1)
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return node["enum"][0]
    for keyword in ("anyOf", "oneOf"):
        if branches := node.get(keyword):
            return _any_of(node, keyword, branches, root, depth)
    if parts := node.get("allOf"):
        merged: dict[str, Json] = {key: value for key, value in node.items() if key != "allOf"}
        for part in parts:
            merged = _both(merged, cast("Mapping[str, Json]", part))
        return _fill(merged, root, depth + 1)
    return _of_type(node, root, depth)


def _any_of(
    node: Mapping[str, Json], keyword: str, branches: Json, root: Mapping[str, Json], depth: int
) -> Json:
    """The plainest branch that is finite."""
    outer = {key: value for key, value in node.items() if key != keyword}
    problem: SchemaError | None = None
    for branch in sorted(cast("list[Json]", branches), key=_plainness):
        try:
            return _fill(_both(outer, cast("Mapping[str, Json]", branch)), root, depth + 1)
        except SchemaError as error:
            problem = error
    raise problem or SchemaError(f"`{keyword}` is empty", keyword=keyword)


def _plainness(branch: Json) -> int:
    """Less is plainer; a branch that leads elsewhere may lead back here."""
    if not isinstance(branch, Mapping) or "$ref" in branch:
        return len(_PLAIN_FIRST)
    kind = _type_of(cast("Mapping[str, Json]", branch))
    return _PLAIN_FIRST.index(kind) if kind in _PLAIN_FIRST else 0


def _of_type(node: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Json:
    match _type_of(node):
        case "object":
            properties = cast("Mapping[str, Json]", node.get("properties", {}))
            rest = node.get("additionalProperties", True)
            return {
                name: _fill(properties.get(name, rest), root, depth + 1)
                for name in node.get("required", ())
            }
        case "array":
            prefix = list(node.get("prefixItems", ()))
            count = max(node.get("minItems", 0), 0)
            items = [*prefix, *[node.get("items", True)] * max(0, count - len(prefix))]
            return [_fill(each, root, depth + 1) for each in items[:count]]
        case "integer":
            return math.ceil(_number(node, whole=True))
        case "number":
            return _number(node, whole=False)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            if node.get("format") in _FORMATS:
                return _FORMATS[node["format"]]
            return "a" * max(1, node.get("minLength", 1))


def _type_of(node: Mapping[str, Json]) -> str:
    kind = node.get("type")
    if isinstance(kind, list):
        return str(cast("list[Json]", kind)[0])
    if isinstance(kind, str):
        return kind
    if "properties" in node or "required" in node:
        return "object"
    if "items" in node or "prefixItems" in node:
        return "array"
    return "number" if "minimum" in node or "maximum" in node else "string"


def _number(node: Mapping[str, Json], *, whole: bool) -> float:
    """0 where that is allowed, else the number closest to it."""
    step = node.get("multipleOf") or (1 if whole else 0)
    low = max(node.get("minimum", -math.inf), node.get("exclusiveMinimum", -math.inf))
    high = min(node.get("maximum", math.inf), node.get("exclusiveMaximum", math.inf))
    value: float = min(max(0, low), high)
    if step:
        value = (math.ceil(value / step) if value >= 0 else math.floor(value / step)) * step
    for bound, direction in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
        if node.get(bound) == value:
            value += direction * (step or min(1.0, (high - low) / 2))
    return value


def _both(one: Mapping[str, Json], other: Mapping[str, Json]) -> dict[str, Json]:
    """What satisfies both, as far as properties and requirements go."""
    merged = {**one, **other}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        merged["required"] = [*dict.fromkeys([*one["required"], *other["required"]])]
    return merged


def _referred(ref: Json, root: Mapping[str, Json]) -> Mapping[str, Json]:
    found: Json = root
    for part in str(ref).removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or part not in found:
            raise SchemaError(f"`$ref` {ref!r} leads nowhere", keyword="$ref")
        found = cast("Mapping[str, Json]", found)[part]
    return cast("Mapping[str, Json]", found) if isinstance(found, Mapping) else {}
