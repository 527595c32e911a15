"""How short and how long an output that satisfies a JSON Schema can be, in tokens.

The lower bound is the canonical minimal instance: required properties, the shortest enum member,
`""` and `0`. The upper bound exists only where every value is finite (an enum, a bounded string, an
object without free keys).

Both are bounds, not estimates: a keyword that is not known here can only forbid values, so leaving
it out never makes the lower bound too high or the upper bound too low. No tokenizer is asked; a
schema costs microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from agentdiff.messages import Json

MAX_DEPTH = 64
"""Schemas nested deeper than this are bounded as if anything could stand there."""
ESCAPED_BYTES = 6
"""The longest way to write one character of a JSON string: `\\u0007`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The range of lengths that a schema allows."""

    min_tokens: int
    """No valid output is shorter. At least 1."""
    max_tokens: int | None
    """No valid output is longer; None where the schema sets no limit."""


def schema_bounds(schema: Mapping[str, Json] | bool, *, bytes_per_token: float = 4.0) -> Bounds:
    """Bound the tokens of a JSON value that satisfies `schema`.

    An object with `properties` and without `additionalProperties` is taken as closed, as the
    constraint engine does. A `$ref` that cannot be followed stands for any value. A schema without
    finite values is bounded like any value.

    Args:
        schema: A JSON Schema; `$ref` may be recursive and must be local (`#/…`).
        bytes_per_token: Bytes of bare JSON that a token of the model holds. The default suits
            vocabularies of 100k and more tokens. The upper bound does not use it: no tokenizer
            spends more than one token on a byte.
    """
    shortest = _Shortest(schema).solve()
    longest = _Longest(schema).solve()
    return Bounds(
        min_tokens=1 if math.isinf(shortest) else max(1, math.ceil(shortest / bytes_per_token)),
        max_tokens=None if math.isinf(longest) else max(1, int(longest)),
    )


class _Shortest:
    """Bytes of the shortest instance.

    The sizes of `$ref`s are a least fixed point: all start as unreachable, and each pass allows one
    more level of references. A shortest instance never nests a reference in itself, so the passes
    are at most as many as the references.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self._sizes: dict[str, float] = {}

    def solve(self) -> float:
        size = self._any(self._root, 0)
        while self._improve():
            size = self._any(self._root, 0)
        return size

    def _improve(self) -> bool:
        before = dict(self._sizes)
        for ref in before:
            self._sizes[ref] = self._any(_resolve(self._root, ref), 0)
        return self._sizes != before

    def _any(self, schema: Json, depth: int) -> float:
        if schema is False:
            return math.inf
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return 1
        node = cast("Mapping[str, Json]", schema)
        size = min((self._of_type(kind, node, depth) for kind in _types(node)), default=1)
        if (values := _values(node)) is not None:
            size = max(size, min(values, default=math.inf))
        for branches in (_schemas(node.get("anyOf")), _schemas(node.get("oneOf"))):
            if branches:
                size = max(size, min(self._any(branch, depth + 1) for branch in branches))
        for branch in _schemas(node.get("allOf")):
            size = max(size, self._any(branch, depth + 1))
        if isinstance(ref := node.get("$ref"), str):
            size = max(size, self._sizes.setdefault(ref, math.inf))
        return size

    def _of_type(self, kind: str, node: Mapping[str, Json], depth: int) -> float:
        match kind:
            case "string":
                return 2 + (_count(node, "minLength") or 0)
            case "integer":
                return _integer_bytes(node)
            case "number":
                _, high = _limits(node)
                return 2 if high is not None and high < 0 else 1
            case "boolean" | "null":
                return 4
            case "array":
                return self._array(node, depth)
            case "object":
                return self._object(node, depth)
            case _:
                return 1

    def _array(self, node: Mapping[str, Json], depth: int) -> float:
        count = _count(node, "minItems") or 0
        first = _schemas(node.get("prefixItems"))[:count]
        size = sum(self._any(item, depth + 1) for item in first)
        if count > len(first):
            size += (count - len(first)) * self._any(node.get("items", True), depth + 1)
        return 2 + size + max(0, count - 1)

    def _object(self, node: Mapping[str, Json], depth: int) -> float:
        required = node.get("required")
        if not isinstance(required, Sequence) or isinstance(required, str):
            return 2
        names = {name for name in cast("Sequence[Json]", required) if isinstance(name, str)}
        properties = _properties(node)
        rest = node.get("additionalProperties", True)
        size = sum(
            _written(name) + 1 + self._any(properties.get(name, rest), depth + 1) for name in names
        )
        return 2 + size + max(0, len(names) - 1)


class _Longest:
    """Bytes of the longest instance; infinite where a reference leads back to itself."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._sizes: dict[str, float] = {}

    def solve(self) -> float:
        return self._any(self._root, 0)

    def _any(self, schema: Json, depth: int) -> float:
        if schema is False:
            return 0
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return math.inf
        node = cast("Mapping[str, Json]", schema)
        size = max((self._of_type(kind, node, depth) for kind in _types(node)), default=math.inf)
        if (values := _values(node)) is not None:
            size = min(size, max(values, default=0))
        for branches in (_schemas(node.get("anyOf")), _schemas(node.get("oneOf"))):
            if branches:
                size = min(size, max(self._any(branch, depth + 1) for branch in branches))
        for branch in _schemas(node.get("allOf")):
            size = min(size, self._any(branch, depth + 1))
        if isinstance(ref := node.get("$ref"), str):
            size = min(size, self._reference(ref, depth))
        return size

    def _reference(self, ref: str, depth: int) -> float:
        if ref not in self._sizes:
            self._sizes[ref] = math.inf  # what a reference finds of itself while it is being sized
            self._sizes[ref] = self._any(_resolve(self._root, ref), depth + 1)
        return self._sizes[ref]

    def _of_type(self, kind: str, node: Mapping[str, Json], depth: int) -> float:
        match kind:
            case "string":
                count = _count(node, "maxLength")
                return math.inf if count is None else 2 + ESCAPED_BYTES * count
            case "integer":
                low, high = _limits(node)
                if low is None or high is None:
                    return math.inf
                return max(len(str(math.floor(low))), len(str(math.ceil(high))))
            case "boolean":
                return 5
            case "null":
                return 4
            case "array":
                return self._array(node, depth)
            case "object":
                return self._object(node, depth)
            case _:
                return math.inf

    def _array(self, node: Mapping[str, Json], depth: int) -> float:
        first = _schemas(node.get("prefixItems"))
        rest = node.get("items", True)
        count = _count(node, "maxItems")
        if count is None:
            if rest is not False:
                return math.inf
            count = len(first)
        size = sum(self._any(item, depth + 1) for item in first[:count])
        if count > len(first) and rest is not False:
            size += (count - len(first)) * self._any(rest, depth + 1)
        return 2 + size + max(0, count - 1)

    def _object(self, node: Mapping[str, Json], depth: int) -> float:
        properties = _properties(node)
        closed = node.get("additionalProperties", not properties) is False
        if not closed or "patternProperties" in node:
            return math.inf
        size = sum(
            _written(name) + 1 + self._any(value, depth + 1) for name, value in properties.items()
        )
        return 2 + size + max(0, len(properties) - 1)


def _types(node: Mapping[str, Json]) -> tuple[str, ...]:
    named = node.get("type")
    if isinstance(named, str):
        return (named,)
    if isinstance(named, Sequence):
        return tuple(kind for kind in cast("Sequence[Json]", named) if isinstance(kind, str))
    return ()


def _values(node: Mapping[str, Json]) -> list[int] | None:
    """Bytes of each value that `const` or `enum` allows; None where neither stands."""
    if "const" in node:
        return [_written(node["const"])]
    allowed = node.get("enum")
    if isinstance(allowed, Sequence) and not isinstance(allowed, str):
        return [_written(value) for value in cast("Sequence[Json]", allowed)]
    return None


def _written(value: Json) -> int:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="replace"))


def _schemas(value: Json) -> list[Json]:
    return list(cast("Sequence[Json]", value)) if isinstance(value, list | tuple) else []


def _properties(node: Mapping[str, Json]) -> Mapping[str, Json]:
    declared = node.get("properties")
    return cast("Mapping[str, Json]", declared) if isinstance(declared, Mapping) else {}


def _number(value: Json) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _count(node: Mapping[str, Json], keyword: str) -> int | None:
    value = _number(node.get(keyword))
    return None if value is None else max(0, int(value))


def _limits(node: Mapping[str, Json]) -> tuple[float | None, float | None]:
    """The least and the greatest number allowed; an exclusive end is widened to itself."""

    def stated(*keywords: str) -> list[float]:
        values = (_number(node.get(keyword)) for keyword in keywords)
        return [value for value in values if value is not None]

    lows, highs = stated("minimum", "exclusiveMinimum"), stated("maximum", "exclusiveMaximum")
    return max(lows, default=None), min(highs, default=None)


def _integer_bytes(node: Mapping[str, Json]) -> float:
    """Bytes of the integer within the limits that is nearest to zero."""
    low, high = _limits(node)
    if low is not None and low > 0:
        return len(str(math.ceil(low)))
    if high is not None and high < 0:
        return len(str(math.floor(high)))
    return 1


def _resolve(root: Json, ref: str) -> Json:
    """The schema that a local reference names; True (any value) where there is none."""
    if not ref.startswith("#"):
        return True
    found = root
    for part in ref[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = cast("Mapping[str, Json]", found)[key]
        elif (
            isinstance(found, list)
            and key.isdecimal()
            and int(key) < len(cast("list[Json]", found))
        ):
            found = cast("list[Json]", found)[int(key)]
        else:
            return True
    return found
