"""The keywords of JSON Schema that are known, and how their values are read.

Whatever is not listed here is an error that names keyword and path: silently ignoring a constraint
would widen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn, cast

from agentdiff.constraint.grounding import Grounding
from agentdiff.constraint.instances import TYPES, Json, is_number
from agentdiff.constraint.numbers import Bound
from agentdiff.errors import SchemaError

Object = Mapping[str, Json]
"""A schema that is an object."""

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$defs", "definitions"),
    )
)
_OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
KEYWORDS = frozenset(("type", "enum", "const", "anyOf", "$ref")).union(*_OF_TYPE.values())
"""The keywords that constrain."""

_MAX_DEPTH = 100
"""Schemas nested deeper than this are refused."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the compiler stands, in the schema and in the instance."""

    path: str
    """JSON pointer into the schema."""
    grounding: Grounding
    """What binds strings in the instance from here down."""
    depth: int = 0
    """How deep the schema is nested here."""

    def at(self, *segments: str | int) -> Place:
        """Another part of the schema, for the same place in the instance."""
        escaped = (str(s).replace("~", "~0").replace("/", "~1") for s in segments)
        path = "/".join([self.path, *escaped])
        return Place(path, self.grounding, self.depth + 1)

    def below(self, segment: str | None, *segments: str | int) -> Place:
        """One level down in the instance, too; None is a key or index that is not known."""
        place = self.at(*segments)
        return Place(place.path, self.grounding.below(segment), place.depth)

    def fail(self, message: str, keyword: str | None = None) -> NoReturn:
        """Raise a `SchemaError` for this place."""
        raise SchemaError(message, path=self.path, keyword=keyword)


def checked(schema: Json, place: Place) -> Object:
    """Return a schema that is an object, after checking the names of its keywords.

    Raises:
        SchemaError: It is no object, is nested too deep, or has a keyword that is not known.
    """
    if not isinstance(schema, dict):
        place.fail(f"a schema must be an object or a boolean, got {schema!r:.80}")
    if place.depth > _MAX_DEPTH:
        place.fail(f"the schema is nested more than {_MAX_DEPTH} levels deep")
    known = cast("dict[str, Json]", schema)
    for keyword in known:
        is_root_id = keyword == "$id" and not place.path
        if keyword not in KEYWORDS and keyword not in _ANNOTATIONS and not is_root_id:
            place.fail(f"`{keyword}` is not supported", keyword)
    return known


def check_all(schema: Json, place: Place, resolve: Callable[[str, Place], Json]) -> None:
    """Check the keywords of a schema and of all schemas below it.

    Raises:
        SchemaError: See `checked`.
    """
    seen: set[int] = set()
    work = [(schema, place)]
    while work:
        schema, place = work.pop()
        if isinstance(schema, bool) or id(schema) in seen:
            continue
        seen.add(id(schema))
        known = checked(schema, place)
        types_of(known, place)
        if "$ref" in known:
            work.append((resolve(known["$ref"], place), place.at("$ref")))
        single = [k for k in ("additionalProperties", "items") if k in known]
        work += [(known[k], place.at(k)) for k in single]
        for keyword in ("anyOf", "prefixItems"):
            inner = list_of(known, keyword, place)
            work += [(s, place.at(keyword, i)) for i, s in enumerate(inner)]
        declared = properties_of(known, place)
        work += [(s, place.at("properties", name)) for name, s in declared.items()]


def types_of(schema: Object, place: Place) -> list[str]:
    """Return the types a schema admits; without `type`, those that its keywords speak of.

    The standard would admit every other type too; that is narrowed.
    """
    if "type" not in schema:
        return [t for t, keywords in _OF_TYPE.items() if any(k in schema for k in keywords)]
    names = schema["type"]
    names = cast("list[Json]", names if isinstance(names, list) else [names])
    for name in names:
        if name not in TYPES:
            place.fail(f"`type` must be one of {', '.join(TYPES)}, got {name!r:.80}", "type")
    return [t for t in names if not (t == "integer" and "number" in names)]


def list_of(schema: Object, keyword: str, place: Place) -> list[Json]:
    """Return the value of a keyword that must be a list; empty when it is absent."""
    value = schema.get(keyword, [])
    if not isinstance(value, list):
        place.fail(f"`{keyword}` must be a list, got {value!r:.80}", keyword)
    return cast("list[Json]", value)


def properties_of(schema: Object, place: Place) -> dict[str, Json]:
    """Return `properties`; empty when it is absent."""
    value = schema.get("properties", {})
    if not isinstance(value, dict):
        place.fail(f"`properties` must be an object, got {value!r:.80}", "properties")
    return cast("dict[str, Json]", value)


def required_of(schema: Object, place: Place) -> list[str]:
    """Return `required`; empty when it is absent."""
    names = list_of(schema, "required", place)
    if not all(isinstance(name, str) for name in names):
        place.fail(f"`required` must list strings, got {names!r:.80}", "required")
    return cast("list[str]", names)


def count_of(schema: Object, keyword: str, place: Place) -> int | None:
    """Return the value of a keyword that counts; None when it is absent."""
    if keyword not in schema:
        return None
    value: Any = schema[keyword]
    if not is_number(value) or not math.isfinite(value) or value < 0 or value != int(value):
        place.fail(f"`{keyword}` must be a whole number >= 0, got {value!r:.80}", keyword)
    return int(value)


def bound_of(schema: Object, closed: str, opened: str, place: Place, *, sign: int) -> Bound | None:
    """Return the stricter of an inclusive and an exclusive bound; None when both are absent.

    `sign` is 1 for lower bounds, -1 for upper ones.
    """
    bounds: list[Bound] = []
    is_open = schema.get(opened) is True  # draft 4: a flag on the inclusive bound
    for keyword, strict in ((closed, is_open), (opened, True)):
        if keyword not in schema or (keyword == opened and isinstance(schema[keyword], bool)):
            continue
        value: Any = schema[keyword]
        if not is_number(value) or not math.isfinite(value):
            place.fail(f"`{keyword}` must be a number, got {value!r:.80}", keyword)
        bounds.append(Bound(Decimal(repr(value)), strict))
    return max(bounds, key=lambda b: (sign * b.value, b.is_open), default=None)


def joined(beside: Object, branch: Json, place: Place) -> Json:
    """Return a branch of `anyOf` with what stands beside the `anyOf`, where that is a plain union.

    Raises:
        SchemaError: The two constrain the same thing.
    """
    if isinstance(branch, bool):
        return {**beside} if branch else False
    own = {k: v for k, v in checked(branch, place).items() if k in KEYWORDS}
    union = {**beside, **own}
    if "required" in own and "required" in beside:
        required = dict.fromkeys(required_of(beside, place) + required_of(own, place))
        union["required"] = own["required"] = list(required)
        beside = {**beside, "required": own["required"]}
    clash = next((k for k in own if k in beside and own[k] != beside[k]), None)
    if "$ref" in union:
        clash = "$ref"
    # These read each other: apart they say something else than together.
    for together in (("properties", "additionalProperties"), ("prefixItems", "items")):
        mine, theirs = ({k for k in together if k in side} for side in (own, beside))
        if mine and theirs and mine != theirs:
            clash = clash or min(mine)
    if clash is not None:
        place.fail(
            f"`{clash}` in a branch of `anyOf` meets keywords beside the `anyOf`; "
            "write them out in each branch",
            "anyOf",
        )
    return union
