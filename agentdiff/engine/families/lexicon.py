"""Which word of a fixed list each token belongs to.

The router's vocabulary has 2,048 pieces, so most words reach it in fragments. A lexicon gives every fragment the vector
of its whole word, so that words which never stood in the training data still mean something.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

FILE = "lexicon.txt"
"""One lower-case word a line, in the order of the vectors; row 0 of the vectors is for tokens of no known word."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Lexicon:
    """Token ids to rows of the lexicon's vectors."""

    def __init__(self, words: Sequence[str], pieces: Sequence[str]) -> None:
        """Words in the order of their vectors, and the text of every token id (empty where it has none)."""
        self._rows = {word: row for row, word in enumerate(words, 1)}
        self._pieces = pieces

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        """The lexicon of a checkpoint folder: `lexicon.txt` and the pieces of a byte-level `tokenizer.json`."""
        tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
        pieces = [""] * (
            1 + max([*vocabulary.values(), *(a["id"] for a in tokenizer["added_tokens"])])
        )
        for piece, number in vocabulary.items():
            pieces[number] = piece.replace("Ġ", " ").replace("Ċ", "\n")
        for added in tokenizer["added_tokens"]:
            pieces[added["id"]] = "\n" if added["special"] else added["content"]
        return cls((folder / FILE).read_text("utf-8").split(), pieces)

    def rows(self, ids: Sequence[int]) -> list[int]:
        """For every token the row of the word that it is, or is a part of; 0 where that is none."""
        pieces = [self._pieces[number] for number in ids]
        ends = list(accumulate(map(len, pieces)))
        found = [0] * len(pieces)
        for match in _WORD.finditer("".join(pieces)):
            word = match[0].lower()
            row = self._rows.get(word) or self._rows.get(word.removesuffix("s"), 0)
            if row:
                first, last = bisect_right(ends, match.start()), bisect_right(ends, match.end() - 1)
                found[first : last + 1] = [row] * (last + 1 - first)
        return found
