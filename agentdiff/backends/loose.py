"""JSON of others, read with tolerance: what is not of the kind wanted counts as absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from agentdiff.messages import Json


def an_object(value: Json) -> Mapping[str, Json]:
    """`value` where it is an object; else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


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
