"""A JSON Schema as a canvas: its skeleton pinned, its values left to the model.

For an engine that takes a seed canvas with pinned positions and enforces no grammar (vLLM with
DiffusionGemma). The schema's keys, brackets and quotes cannot be written otherwise; what stands
between them is the model's, padded with spaces to the width of its slot, and validated afterwards.
Knows token ids only as numbers that somebody else looks up.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentdiff.backends.loose import a_count, a_list, a_string, an_object
from agentdiff.messages import Json

VOCABULARY = 262_144
"""Token ids of DiffusionGemma: what is not pinned begins as uniform noise, as it was trained."""
HINT = (
    "The reply is a form of fixed width: after each value, fill the rest of its place with spaces."
)
_LEAST = 4
"""Tokens of the narrowest slot for free text."""
_NUMBER = 8
"""Tokens of a number that its schema does not bound."""
_CHARS_PER_TOKEN = 3
_MAX_DEPTH = 8

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one value."""

    path: Path
    is_quoted: bool
    """Its quotes are pinned, and what stands between them is a string."""
    options: tuple[str, ...] = ()
    """The values it may have, as JSON, where they can be listed; they decide its width."""
    width: int | None = None
    """Its tokens, where the schema says; None takes a share of the budget."""
    weight: int = 1
    """Its share beside others."""


Part = str | Slot


def skeleton(schema: Mapping[str, Json]) -> tuple[Part, ...] | None:
    """The parts of every output of `schema`, all of its properties present; None for no object."""
    parts: list[Part] = []
    for part in _parts(schema, schema, (), 0):
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts) if len(parts) > 1 and isinstance(parts[0], str) else None


def texts_of(parts: Sequence[Part]) -> set[str]:
    """The texts whose token ids `lay_out` needs."""
    return {text for part in parts for text in ((part,) if isinstance(part, str) else part.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """Token ids, and which of them stay."""

    tokens: tuple[int, ...]
    pinned: tuple[int, ...]


def lay_out(
    parts: Sequence[Part], ids: Mapping[str, Sequence[int]], *, target: int, ceiling: int
) -> Canvas | None:
    """A canvas of about `target` positions; None where `ceiling` does not hold the narrowest.

    Args:
        parts: What `skeleton` gave.
        ids: The token ids of `texts_of(parts)`.
        target: Positions wanted, such as the predicted budget.
        ceiling: Positions there are.
    """
    fixed = sum(len(ids[part]) for part in parts if isinstance(part, str))
    widths = {part.path: _width(part, ids) for part in parts if isinstance(part, Slot)}
    fixed += sum(width for width in widths.values() if width is not None)
    shares = {p.path: p.weight for p in parts if isinstance(p, Slot) and widths[p.path] is None}
    least = fixed + _LEAST * sum(shares.values())
    if least > ceiling:
        return None
    free = min(max(target, least), ceiling) - fixed
    for path, weight in shares.items():
        widths[path] = free * weight // sum(shares.values())
    noise = random.Random(0)
    tokens: list[int] = []
    pinned: list[int] = []
    for part in parts:
        if isinstance(part, str):
            pinned += range(len(tokens), len(tokens) + len(ids[part]))
            tokens += ids[part]
        else:
            tokens += (noise.randrange(VOCABULARY) for _ in range(widths[part.path] or 0))
    return Canvas(tokens=tuple(tokens), pinned=tuple(pinned))


def read(text: str, parts: Sequence[Part]) -> str:
    """The output without the padding of its slots; `text` itself where it is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(value, dict):
        return text
    for slot in parts:
        if isinstance(slot, Slot) and slot.is_quoted:
            place = cast("dict[str, Json]", value)
            for key in slot.path[:-1]:
                place = cast("dict[str, Json]", place.get(key, {}))
            if slot.path[-1] in place:
                place[slot.path[-1]] = a_string(place[slot.path[-1]]).strip(" ")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _parts(schema: Json, root: Mapping[str, Json], path: Path, depth: int) -> Iterator[Part]:
    node = _resolved(schema, root)
    properties = an_object(node.get("properties"))
    if node.get("type") == "object" and properties and depth < _MAX_DEPTH:
        before = "{"
        for name, value in properties.items():
            yield f"{before}{json.dumps(name, ensure_ascii=False)}:"
            yield from _parts(value, root, (*path, name), depth + 1)
            before = ","
        yield "}"
        return
    options = _options(node)
    if len(options) == 1:
        yield options[0]
    elif options:
        yield Slot(path, is_quoted=False, options=options)
    elif node.get("type") == "string":
        most = a_count(node.get("maxLength"))
        width = None if most is None else max(_LEAST, math.ceil(most / _CHARS_PER_TOKEN) + 1)
        yield '"'
        yield Slot(path, is_quoted=True, width=width if width and width <= 32 else None)
        yield '"'
    elif node.get("type") in ("integer", "number"):
        bounds = [node.get(key) for key in ("minimum", "maximum")]
        digits = [len(str(bound)) for bound in bounds if isinstance(bound, int)]
        is_bounded = node.get("type") == "integer" and len(digits) == 2
        yield Slot(path, is_quoted=False, width=max(digits) if is_bounded else _NUMBER)
    else:
        yield Slot(path, is_quoted=False, weight=2)


def _options(node: Mapping[str, Json]) -> tuple[str, ...]:
    if "const" in node:
        values = [node["const"]]
    elif "enum" in node:
        values = a_list(node["enum"])
    elif node.get("type") == "boolean":
        values = [True, False]
    else:
        return ()
    return tuple(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in values)


def _resolved(schema: Json, root: Mapping[str, Json]) -> Mapping[str, Json]:
    node = an_object(schema)
    for _ in range(_MAX_DEPTH):
        ref = a_string(node.get("$ref"))
        if not ref.startswith("#/"):
            return node
        found: Json = root
        for key in ref[2:].split("/"):
            found = an_object(found).get(key.replace("~1", "/").replace("~0", "~"))
        node = an_object(found)
    return {}


def _width(slot: Slot, ids: Mapping[str, Sequence[int]]) -> int | None:
    if slot.options:
        return max(len(ids[option]) for option in slot.options)
    return slot.width
