"""Tokens to text, as they become final and while they are drafts. A character is never split.

Tags that are one token (`<tool_call>`) have no bytes in the vocabulary, so that no text can spell them. They are shown
as they are written, and kept apart in `marked`, where a reply can be read without mistaking a text for a tag.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentdiff.constraint import Vocabulary

MASKED = "░"
"""Stands for a position of the block that is not decided yet, in drafts."""
_FIRST_MARK = 0xDC00


def mark(number: int) -> str:
    """The character that stands for tag `number` in a marked text: a lone surrogate, which no UTF-8 has."""
    return chr(_FIRST_MARK + number)


def _utf8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class Detokenizer:
    """The text of one reply."""

    vocabulary: Vocabulary
    tags: Mapping[int, str] = field(default_factory=dict[int, str])
    """Token → how it is written; their order is their number."""
    marked: str = ""
    """What is committed, with `mark(number)` where a tag stands."""
    _decoder: codecs.IncrementalDecoder = field(default_factory=_utf8)

    def commit(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` complete; bytes of an unfinished character wait for the rest of it."""
        numbers = {token: number for number, token in enumerate(self.tags)}
        said: list[str] = []
        for token in tokens:
            number = numbers.get(token)
            if number is None:
                text = self._decoder.decode(self.vocabulary.tokens[token] or b"")
                said.append(text)
                self.marked += text
            else:
                said.append(self.tags[token])
                self.marked += mark(number)
        return "".join(said)

    def draft(self, tokens: Sequence[int | None]) -> str:
        """How what follows looks now, up to an end token; a character that lacks bytes is not decided yet."""
        pending, _ = self._decoder.getstate()
        written = pending + b"".join(self._drafted(tokens))
        return written.decode("utf-8", "replace").replace("\ufffd", MASKED)

    def _drafted(self, tokens: Sequence[int | None]) -> Iterator[bytes]:
        for token in tokens:
            if token in self.vocabulary.eos_ids:
                return
            if token is None:
                yield MASKED.encode()
            elif token in self.tags:
                yield self.tags[token].encode()
            else:
                yield self.vocabulary.tokens[token] or b""
