"""The vocabulary of a tokenizer: what bytes each of its tokens stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentdiff.constraint import Vocabulary


class Tokenizer(Protocol):
    """What is used of a fast tokenizer of transformers."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Token id → a token that was added to the vocabulary, special or not."""
        ...

    @property
    def all_special_ids(self) -> Sequence[int]:
        """Ids of the tokens that are no text."""
        ...

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` behind it."""
        ...

    def __len__(self) -> int: ...


def vocabulary_of(
    tokenizer: Tokenizer,
    eos_ids: tuple[int, ...],
    size: int,
    *,
    atomic: Sequence[int] = (),
) -> Vocabulary:
    """The bytes of every token id; special and atomic tokens and ids beyond the tokenizer have none."""
    added = tokenizer.added_tokens_decoder
    special = (
        set(atomic)
        | set(tokenizer.all_special_ids)
        | {i for i, token in added.items() if token.special}
    )
    decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder")
    is_byte_level = "ByteLevel" in str(decoder)
    to_byte = _byte_level_alphabet()
    tokens: list[bytes | None] = [None] * size
    for index in range(min(size, len(tokenizer))):
        piece = tokenizer.backend_tokenizer.id_to_token(index)
        if index in special or index in eos_ids or piece is None:
            continue
        if index in added:
            tokens[index] = str(added[index].content).encode()
        elif is_byte_level:
            tokens[index] = bytes(to_byte[c] for c in piece)
        elif len(piece) == 6 and piece.startswith("<0x"):
            tokens[index] = bytes([int(piece[3:5], 16)])
        else:
            tokens[index] = piece.replace("▁", " ").encode()
    return Vocabulary(tokens, eos_ids)


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of the GPT-2 byte-level alphabet."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}
