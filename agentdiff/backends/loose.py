"""JSON at the edge: that of others is read with tolerance, ours is written as every server takes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

from agentdiff.errors import ConfigurationError
from agentdiff.messages import Json

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def as_json(value: Json) -> str:
    """`value` as JSON without spaces.

    Raises:
        ConfigurationError: It holds a number that JSON cannot write.
    """
    try:
        return _ENCODER.encode(value)
    except ValueError as error:
        raise ConfigurationError(f"a request cannot be written as JSON: {error}") from None


def an_object(value: Json) -> Mapping[str, Json]:
    """`value` where it is an object; else an empty one."""
    # What `json` gives is a dict; asking whether something is a `Mapping` takes ten times as long.
    is_one = isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101
    return cast("Mapping[str, Any]", value) if is_one else {}


def a_list(value: Json) -> list[Json]:
    """`value` where it is a list; else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def a_string(value: Json) -> str:
    """`value` where it is a string; else an empty one."""
    return value if isinstance(value, str) else ""


def a_count(value: Json) -> int | None:
    """`value` where it is a whole number from 0 on."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def a_number(value: Json) -> float | None:
    """`value` where it is a finite number, or a string that says one."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None
