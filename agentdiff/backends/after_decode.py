"""Every constrained reply is checked once more, after the decode. What fails here is a bug of ours, and is kept.

A reply is at fault only when every validator at hand says so: jsonschema-rs where it is installed, and jsonschema,
whose `multipleOf` divides doubles (it finds that 0.3 is no multiple of 0.1) and is replaced by one that does not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from jsonschema import Draft202012Validator, ValidationError, validators
from referencing.exceptions import Unresolvable

from agentdiff.backends.validation import AnyDraftValidator
from agentdiff.backends.validation import quick_validator as _quick
from agentdiff.constraint.store import cache_folder
from agentdiff.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What it takes to find the bug."""

    model: str
    place: str
    """Where in the reply, and which keyword."""
    schema: Json
    tokens: Sequence[int]
    """What was decoded."""
    prompt: Sequence[int]
    seed: int
    temperature: float


def fault(value: Json, schema: Mapping[str, Json]) -> str | None:
    """Where and by which keyword a value breaks its schema; None when it satisfies it."""
    text = json.dumps(schema, sort_keys=True)
    quick = _quick(text)
    if quick is not None and quick.is_valid(value):
        return None
    try:
        found = next(_exact(text).iter_errors(value), None)
    except (Unresolvable, re.error):
        return None  # a reference or a pattern that only the constraint engine reads
    return None if found is None else f"{found.json_path}: {found.validator}"


def keep(dump: Dump) -> Path | None:
    """Write a dump under the cache folder, readable by its owner alone; None where there is no such place."""
    folder = cache_folder()
    if folder is None:
        return None
    content = json.dumps(asdict(dump), ensure_ascii=False, indent=1, default=str).encode()
    path = folder / "bugs" / f"constraint-{hashlib.sha256(content).hexdigest()[:12]}.json"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
        return path
    return None


@lru_cache(maxsize=256)
def _exact(schema: str) -> Any:
    return _Exact(json.loads(schema), format_checker=Draft202012Validator.FORMAT_CHECKER)


def _multiple_of(validator: Any, factor: Json, instance: Json, schema: Json) -> Iterator[Any]:
    """`multipleOf` of decimals as they are written."""
    if not validator.is_type(instance, "number"):
        return
    try:
        is_multiple = Decimal(str(instance)) % Decimal(str(factor)) == 0
    except InvalidOperation:  # a quotient of more digits than decimals have
        is_multiple = (instance / factor).is_integer()
    if not is_multiple:
        yield ValidationError(f"{instance!r} is not a multiple of {factor!r}")


_Exact = cast(
    "type[Draft202012Validator]",
    validators.extend(AnyDraftValidator, {"multipleOf": _multiple_of}),
)
