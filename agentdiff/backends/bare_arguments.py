r"""Reads the arguments of a call as Gemma's models write them: `{city:<|"|>Oslo<|"|>,days:3}`.

The token around strings is a mark in the text (see `detokenizer`), so a text that spells it stays a text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentdiff.messages import Json

_scalar = json.JSONDecoder().raw_decode


def read_bare(text: str, at: int, *, quote: str) -> tuple[Json, int]:
    """The value that begins at a place, and the place behind it.

    Args:
        text: What a grammar with `ToolSyntax.quote` allows.
        at: Where the value begins.
        quote: The mark before and behind a string.

    Raises:
        ValueError: There is no value.
    """
    if text.startswith(quote, at):
        end = text.index(quote, at + 1)
        return text[at + 1 : end], end + 1
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        return _scalar(text, at)
    members: dict[str, Json] = {}
    items: list[Json] = []
    at += 1
    while text[at] not in "}]":
        if opening == "{":
            colon = text.index(":", at)
            members[text[at:colon]], at = read_bare(text, colon + 1, quote=quote)
        else:
            item, at = read_bare(text, at, quote=quote)
            items.append(item)
        at += text[at] == ","
    return members if opening == "{" else items, at + 1
