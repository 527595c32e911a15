"""Ready-made JSON values: how they are spelled, what type they have, when two are the same."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, cast

from agentdiff.errors import SchemaError

Json = Any
"""A JSON value; narrowed where it is looked at."""

TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
"""The types that exclude each other; `integer` is a kind of `number`."""


def spell(
    value: Json, separators: tuple[str, str], *, path: str, indent: int | None = None
) -> bytes:
    """Return the JSON text of a value, raw UTF-8 where it can be.

    Args:
        value: A JSON value.
        separators: What stands between items, and between key and value.
        path: Where the value stands in the schema, for the error.
        indent: How deep the value stands, when each item has a line of its own.

    Raises:
        SchemaError: The value has no JSON text.
    """
    try:
        if isinstance(value, str):  # most of what is spelled, and much faster so
            return encode_basestring(value).encode()
        text = _dumps(value, separators, indent, ensure_ascii=False)
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return _dumps(value, separators, indent, ensure_ascii=True).encode()
    except (TypeError, ValueError) as error:
        raise SchemaError(f"a value in the schema is not JSON: {error}", path=path) from error


def _dumps(
    value: Json, separators: tuple[str, str], indent: int | None, *, ensure_ascii: bool
) -> str:
    text = json.dumps(
        value,
        separators=separators,
        indent=None if indent is None else 2,
        ensure_ascii=ensure_ascii,
        allow_nan=False,
    )
    # Strings hold no raw line break, so each one in the text begins a line.
    return text.replace("\n", "\n" + "  " * indent) if indent else text


def identity(value: Json) -> Hashable:
    """Return what two values share exactly when they are equal JSON.

    1 is 1.0, true is not 1, and the order of keys does not matter.
    """
    if value is None or isinstance(value, str):
        return cast("Hashable", value)
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", *map(identity, cast("list[Json]", value)))
    if isinstance(value, dict):
        members = cast("dict[str, Json]", value).items()
        return ("object", frozenset((k, identity(v)) for k, v in members))
    return ("number", value)


def distinct(values: Iterable[Json]) -> dict[Hashable, Json]:
    """Return the values by identity, the first of each, in order."""
    found: dict[Hashable, Json] = {}
    for value in values:
        found.setdefault(identity(value), value)
    return found


def as_object(value: Json) -> dict[str, Json] | None:
    """Return a value that is an object; None for any other."""
    return cast("dict[str, Json]", value) if isinstance(value, dict) else None


def as_list(value: Json) -> list[Json] | None:
    """Return a value that is a list; None for any other."""
    return cast("list[Json]", value) if isinstance(value, list) else None


def is_number(value: Json) -> bool:
    """Whether a JSON value is a number; booleans are not."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_whole(value: Json) -> bool:
    """Whether a number is an integer; 1.0 is one."""
    return isinstance(value, int) or (math.isfinite(value) and value == int(value))


def type_of(value: Json) -> str:
    """Return the type of a JSON value, one of `TYPES`; `""` for what is no JSON."""
    if value is None:
        return "null"
    for name, kind in _KINDS:
        if isinstance(value, kind):
            return name
    return ""


_KINDS: tuple[tuple[str, Any], ...] = (
    ("boolean", bool),
    ("string", str),
    ("number", int | float | Decimal),
    ("array", list),
    ("object", dict),
)
