"""The vocabulary of a tokenizer: what bytes each of its tokens stands for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentdiff.constraint import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def vocabulary_of(
    tokenizer: PreTrainedTokenizerFast,
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
