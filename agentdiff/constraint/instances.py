"""Ready-made JSON values: how they are spelled, and whether a schema holds for them.

`enum` and `const` list values; those that their own sibling keywords rule out must go. This is a
small validator for exactly the keywords that the compiler knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, cast

from agentdiff.errors import SchemaError

Json = Any
"""A JSON value; narrowed where it is looked at."""


def spell(value: Json, separators: tuple[str, str], *, path: str) -> bytes:
    """Return the JSON text of a value, raw UTF-8 where it can be.

    Raises:
        SchemaError: The value has no JSON text.
    """
    try:
        if isinstance(value, str):  # most of what is spelled, and much faster so
            return encode_basestring(value).encode()
        text = json.dumps(value, separators=separators, ensure_ascii=False, allow_nan=False)
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return json.dumps(value, separators=separators, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise SchemaError(f"a value in the schema is not JSON: {error}", path=path) from error


def equal(a: Json, b: Json) -> bool:
    """JSON equality: 1 is 1.0, true is not 1, and key order does not matter."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    if isinstance(a, list) and isinstance(b, list):
        one, other = cast("list[Json]", a), cast("list[Json]", b)
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(a, dict) and isinstance(b, dict):
        left, right = cast("dict[str, Json]", a), cast("dict[str, Json]", b)
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(a == b)


def is_number(value: Json) -> bool:
    """Whether a JSON value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPE_TESTS: dict[str, Callable[[Json], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: (
        is_number(v) and (isinstance(v, int) or (math.isfinite(v) and v == int(v)))
    ),
    "number": is_number,
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
TYPES = tuple(_TYPE_TESTS)


def conforms(value: Json, schema: Json, resolve: Callable[[str], Json]) -> bool:
    """Whether a value satisfies a schema, whose keywords have been checked.

    Args:
        value: A JSON value.
        schema: A schema with known keywords only; others are not looked at.
        resolve: Local `$ref` → schema.
    """
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not conforms(value, resolve(schema["$ref"]), resolve):
        return False
    types = schema.get("type", TYPES)
    if not any(_TYPE_TESTS[t](value) for t in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in schema and not any(equal(value, v) for v in schema["enum"]):
        return False
    if "const" in schema and not equal(value, schema["const"]):
        return False
    if "anyOf" in schema and not any(conforms(value, s, resolve) for s in schema["anyOf"]):
        return False
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
    if is_number(value):
        return _in_bounds(value, schema)
    if isinstance(value, list):
        return _list_conforms(cast("list[Json]", value), schema, resolve)
    if isinstance(value, dict):
        return _object_conforms(cast("dict[str, Json]", value), schema, resolve)
    return True


def _in_bounds(value: float, schema: dict[str, Json]) -> bool:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = (
        schema.get("exclusiveMinimum", -math.inf),
        schema.get("exclusiveMaximum", math.inf),
    )
    if above is True or above is False:  # draft 4: the bound itself becomes open
        above = low if above else -math.inf
    if below is True or below is False:
        below = high if below else math.inf
    return low <= value <= high and above < value < below


def _list_conforms(
    value: list[Json], schema: dict[str, Json], resolve: Callable[[str], Json]
) -> bool:
    first = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    return schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf) and all(
        conforms(v, first[i] if i < len(first) else rest, resolve) for i, v in enumerate(value)
    )


def _object_conforms(
    value: dict[str, Json], schema: dict[str, Json], resolve: Callable[[str], Json]
) -> bool:
    declared = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    return all(k in value for k in schema.get("required", ())) and all(
        conforms(v, declared.get(k, rest), resolve) for k, v in value.items()
    )
