"""Where the tools and their parameters stand in a prompt of the router: its own notation, read from the token ids.

    <|tools|>name(parameter,parameter?:choice|choice) description
    name() description<|user|>the conversation ...

Spaces, digits and punctuation are tokens of their own there, so every name begins with a token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

CONVERSATION, SIGNATURE, TOOL, PARAMETER, NOTHING = range(5)
"""What a token is: said in the conversation, written in the list of tools, or there the first token of a tool or of a
parameter; NOTHING is the first token of the prompt. The last three are *places* that other tokens may belong to."""


class Signatures:
    """Token ids to what they are."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Read with a vocabulary: the text of a token (byte-level, as `tokenizer.json` has it) to its id."""
        self._tools, self._user, self._line = ids["<|tools|>"], ids["<|user|>"], ids["Ċ"]
        self._opening, self._comma, self._closing = ids["("], ids[","], ids[")"]

    @classmethod
    def load(cls, folder: Path) -> Signatures:
        """Read with the `tokenizer.json` of a checkpoint folder."""
        tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        return cls(tokenizer["model"]["vocab"] | added)

    def kinds(self, ids: Sequence[int]) -> list[int]:
        """For every token one of CONVERSATION, SIGNATURE, TOOL, PARAMETER and NOTHING."""
        found = [CONVERSATION] * len(ids)
        if not found:
            return found
        if ids[0] == self._tools:
            self._read(ids, found)
        found[0] = NOTHING
        return found

    def _read(self, ids: Sequence[int], found: list[int]) -> None:
        is_name, is_inside = True, False
        for at in range(1, len(ids)):
            token = ids[at]
            if token == self._user:
                return
            found[at] = SIGNATURE
            if token == self._line:
                is_name, is_inside = True, False
                continue
            if is_name and ids[at - 1] in (self._tools, self._line):
                found[at] = TOOL
            if is_name and token == self._opening:
                is_name, is_inside = False, True
            elif is_inside and token == self._closing:
                is_inside = False
            elif is_inside and ids[at - 1] in (self._opening, self._comma):
                found[at] = PARAMETER
