"""The vocabulary as the constraint sees it: what bytes each token id stands for.

It is held twice: id → bytes, and as one trie over all byte strings (`trie.py`).

Knows no tokenizer, no merges, no grammar. Tokens without bytes (specials) stand in constrained text
only where a grammar names them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.trie import trie_of
from agentdiff.errors import ConfigurationError

IntArray = NDArray[np.int64]

_T = TypeVar("_T")

_SPECIAL = 0xFF
"""A byte that stands nowhere in UTF-8: it begins what stands for a special token."""


def _special(token: int) -> bytes:
    return bytes([_SPECIAL]) + token.to_bytes(4, "big")


class Vocabulary:
    """id → bytes, with a flattened trie. Immutable; share one per tokenizer."""

    def __init__(self, tokens: Sequence[bytes | None], eos_ids: Iterable[int]) -> None:
        """Index the tokens: about 5 ms for 2,000 of them, 0.5 s for 150,000 (a third when on disk).

        Args:
            tokens: The bytes of each token id. None (or no bytes) marks a special token, which
                stands in constrained text only where a grammar names it.
            eos_ids: Ids that end the text; all of them mean the same. Their bytes are ignored.

        Raises:
            ConfigurationError: There is no EOS id, or one lies outside the vocabulary.
        """
        self.eos_ids: tuple[int, ...] = tuple(sorted(set(eos_ids)))
        if not self.eos_ids or not 0 <= self.eos_ids[0] <= self.eos_ids[-1] < len(tokens):
            raise ConfigurationError(
                f"`eos_ids` must name at least one id in 0..{len(tokens) - 1}, got {self.eos_ids!r}"
            )
        stop = set(self.eos_ids)
        self.tokens: tuple[bytes | None, ...] = tuple(
            None if i in stop or not token else bytes(token) for i, token in enumerate(tokens)
        )
        self.spelled: tuple[bytes | None, ...] = tuple(
            None if i in stop or (token and _SPECIAL in token) else token or _special(i)
            for i, token in enumerate(self.tokens)
        )
        """[V] what an automaton reads: a special token is spelled by bytes that nothing else has;
        None for EOS, and for what cannot stand in UTF-8."""
        self.twins: dict[int, list[int]] = {}
        """First id of a byte string → further ids that spell the same."""
        self._index()
        self._derived: dict[Hashable, Any] = {}
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self.tokens)

    def derive(self, key: Hashable, build: Callable[[], _T]) -> _T:
        """Return what was built under this key, once; for tables that depend on nothing else."""
        with self._lock:
            if key not in self._derived:
                self._derived[key] = build()
            return self._derived[key]

    def with_twins(self, tokens: IntArray) -> IntArray:
        """Return a sorted set of ids, joined by all ids that spell the same as a member."""
        if not self.twins:
            return tokens
        firsts = self.derive("firsts", lambda: np.array(sorted(self.twins), np.int64))
        held = firsts[np.isin(firsts, tokens, assume_unique=True)].tolist()
        more = [twin for first in held for twin in self.twins[first]]
        # Interned sets already hold their twins, so a union of them may hold one twice.
        return np.unique(np.concatenate([tokens, np.array(more, np.int64)]))

    def special(self, token: int) -> bytes:
        """Return what stands for a special token in an automaton.

        Raises:
            ConfigurationError: The id is outside the vocabulary, ends the text, or is no special.
        """
        spelled = self.spelled[token] if 0 <= token < len(self) else None
        if spelled is None or spelled[0] != _SPECIAL:
            raise ConfigurationError(f"token {token} is no special token that can stand in a text")
        return spelled

    def child(self, node: int, byte: int) -> int:
        """Return the trie node below `node` along `byte`, or -1."""
        return self.node_bytes.find(byte, self.first_child[node], self.last_child[node])

    def _index(self) -> None:
        trie = trie_of(self.spelled)
        self.child_end: IntArray = 1 + np.cumsum(trie.children, dtype=np.int64)
        self.child_start: IntArray = self.child_end - trie.children
        """[nodes] the children of node n are child_start[n] .. child_end[n] - 1."""
        self.trie_byte: NDArray[np.uint8] = trie.byte
        """[nodes] the byte on the way into a node."""
        self.trie_token: IntArray = trie.token.astype(np.int64)
        """[nodes] the id that ends in a node, or -1."""
        # The same as plain Python values, for walks that follow few paths.
        self.node_bytes: bytes = trie.byte.tobytes()
        self.first_child: list[int] = self.child_start.tolist()
        self.last_child: list[int] = self.child_end.tolist()
        self.node_token: list[int] = trie.token.tolist()
        for first, twin in trie.twins.tolist():
            self.twins.setdefault(first, []).append(twin)
