"""Tokens to text, as they become final and while they are drafts."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentdiff.constraint import Vocabulary

MASKED = "░"
"""Stands for a position of the block that is not decided yet, in drafts."""


def _utf8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class Detokenizer:
    """Tokens to text: a character is committed once all its bytes are."""

    vocabulary: Vocabulary
    committed: str = ""
    _decoder: codecs.IncrementalDecoder = field(default_factory=_utf8)

    def commit(self, tokens: tuple[int, ...]) -> str:
        """The text that `tokens` complete."""
        new = self._decoder.decode(b"".join(self.vocabulary.tokens[t] or b"" for t in tokens))
        self.committed += new
        return new

    def close(self) -> str:
        """What is left of an unfinished character."""
        new = self._decoder.decode(b"", final=True)
        self.committed += new
        return new

    def draft(self, tokens: tuple[int | None, ...]) -> str:
        """How the rest of the block looks now."""
        parts = [MASKED.encode() if t is None else self.vocabulary.tokens[t] or b"" for t in tokens]
        return b"".join(parts).decode("utf-8", "replace")
