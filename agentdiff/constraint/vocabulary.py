"""The vocabulary as the constraint sees it: what bytes each token id stands for.

It is held twice: id → bytes, and as one trie over all byte strings, flattened level by level into
arrays, so that the children of a trie node lie side by side in byte order. A trie node is an index
into those arrays; node 0 is the root.

Knows no tokenizer, no merges, no grammar. Tokens without bytes (specials) stand in constrained text
only where a grammar names them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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
        """Index the tokens: about 5 ms for 2,000 of them, 0.5 s for 150,000.

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
        self._build_trie()
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

    def _build_trie(self) -> None:
        ids = [i for i, token in enumerate(self.spelled) if token is not None]
        ids.sort(key=lambda i: (self.spelled[i], i))
        spelled = [self.spelled[i] or b"" for i in ids]
        text = np.frombuffer(b"".join(spelled), np.uint8)
        length = np.array([len(s) for s in spelled], np.int64)
        offset = np.cumsum(length) - length
        order = np.array(ids, np.int64)

        at = np.zeros(len(ids), np.int64)  # the trie node each token has reached
        levels_byte: list[NDArray[np.uint8]] = [np.zeros(1, np.uint8)]
        levels_parent: list[IntArray] = [np.full(1, -1, np.int64)]
        levels_token: list[IntArray] = [np.full(1, -1, np.int64)]
        count = 1
        for depth in range(int(length.max()) if len(ids) else 0):
            live = np.flatnonzero(length > depth)
            parent, byte = at[live], text[offset[live] + depth]
            is_new = np.ones(len(live), np.bool_)
            is_new[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
            local = np.cumsum(is_new) - 1
            at[live] = count + local
            token = np.full(int(local[-1]) + 1, -1, np.int64)
            ends = np.flatnonzero(length[live] == depth + 1)[
                ::-1
            ]  # reversed: the lowest id is written last
            token[local[ends]] = order[live[ends]]
            levels_byte.append(byte[is_new])
            levels_parent.append(parent[is_new])
            levels_token.append(token)
            count += len(token)
        parents = np.concatenate(levels_parent)
        per_node = np.bincount(parents[1:], minlength=count)
        self.child_end: IntArray = 1 + np.cumsum(per_node)
        self.child_start: IntArray = self.child_end - per_node
        """[nodes] the children of node n are child_start[n] .. child_end[n] - 1."""
        self.trie_byte: NDArray[np.uint8] = np.concatenate(levels_byte)
        """[nodes] the byte on the way into a node."""
        self.trie_token: IntArray = np.concatenate(levels_token)
        """[nodes] the id that ends in a node, or -1."""
        # The same as plain Python values, for walks that follow few paths.
        self.node_bytes: bytes = self.trie_byte.tobytes()
        self.first_child: list[int] = self.child_start.tolist()
        self.last_child: list[int] = self.child_end.tolist()
        self.node_token: list[int] = self.trie_token.tolist()
        for i, j in zip(range(len(ids)), range(1, len(ids)), strict=False):
            if spelled[i] == spelled[j]:
                self.twins.setdefault(int(self.trie_token[at[i]]), []).append(ids[j])
