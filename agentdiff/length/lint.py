"""Which fields of a schema let an output grow without limit, and what to write to bound them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentdiff.length.bounds import schema_bounds
from agentdiff.messages import Json

_SHARED = ("$defs", "definitions")
"""Where the schemas stand that references name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """A field that may be as long as the model likes."""

    path: str
    """The field, as `address.street` or `tags[]`; empty for the value itself."""
    advice: str
    """What to add to the schema."""


def unbounded_fields(schema: Mapping[str, Json] | bool) -> list[Unbounded]:
    """The fields that keep `schema` from having a longest output; none where it has one."""
    found: dict[str, Unbounded] = {}
    for field in _walk(schema, schema, "", ()):
        found.setdefault(field.path, field)
    return list(found.values())


def _walk(root: Json, schema: Json, path: str, refs: tuple[str, ...]) -> Iterator[Unbounded]:
    if _is_bounded(root, schema):
        return
    if not isinstance(schema, Mapping):
        yield Unbounded(path=path, advice="anything may stand here; declare its type")
        return
    node = cast("Mapping[str, Json]", schema)
    ref = node.get("$ref")
    branches = [
        branch for keyword in ("anyOf", "oneOf") for branch in _listed(node.get(keyword))
    ] or _listed(node.get("allOf"))
    properties = node.get("properties")
    if isinstance(ref, str):
        target = _named(root, ref)
        if ref in refs:
            yield Unbounded(path=path, advice="it contains itself; bound how often")
        elif target is None:
            yield Unbounded(path=path, advice=f"`{ref}` leads nowhere")
        else:
            yield from _walk(root, target, path, (*refs, ref))
    elif branches:
        for branch in branches:
            yield from _walk(root, branch, path, refs)
    elif isinstance(properties, Mapping):
        if node.get("additionalProperties", False) is not False or "patternProperties" in node:
            advice = "any other key may stand here; set `additionalProperties: false`"
            yield Unbounded(path=path, advice=advice)
        for name, value in cast("Mapping[str, Json]", properties).items():
            yield from _walk(root, value, f"{path}.{name}" if path else name, refs)
    elif "array" in _types(node):
        if "maxItems" not in node:
            yield Unbounded(path=f"{path}[]", advice="add `maxItems`")
        yield from _walk(root, node.get("items", True), f"{path}[]", refs)
    else:
        yield Unbounded(path=path, advice=_advice(_types(node)))


def _advice(types: Sequence[str]) -> str:
    match [kind for kind in types if kind not in ("null", "boolean")]:
        case ["string"]:
            return "add `maxLength`, or an `enum`"
        case ["integer"]:
            return "add `minimum` and `maximum`"
        case ["number"]:
            return "a number has no last digit; an `integer` with limits has"
        case ["object"]:
            return "any key may stand here; declare `properties`"
        case []:
            return "anything may stand here; declare its type"
        case several:
            return f"bound each of {', '.join(several)}"


def _is_bounded(root: Json, schema: Json) -> bool:
    if not isinstance(schema, Mapping):
        return schema is False
    shared = {}
    if isinstance(root, Mapping):
        everything = cast("Mapping[str, Json]", root)
        shared = {name: everything[name] for name in _SHARED if name in everything}
    node = {**shared, **cast("Mapping[str, Json]", schema)}
    return schema_bounds(node).max_tokens is not None


def _named(root: Json, ref: str) -> Json:
    """The schema under `#/$defs/…` that `ref` names; None where there is none."""
    found = root
    for part in ref.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = cast("Mapping[str, Json]", found).get(part.replace("~1", "/").replace("~0", "~"))
    return found if ref.startswith("#") else None


def _listed(value: Json) -> list[Json]:
    return list(cast("Sequence[Json]", value)) if isinstance(value, list | tuple) else []


def _types(node: Mapping[str, Json]) -> tuple[str, ...]:
    named = node.get("type")
    several = cast("Sequence[Json]", named) if isinstance(named, list | tuple) else [named]
    return tuple(str(kind) for kind in several if kind)
