"""A trie over the byte strings of a vocabulary, flattened level by level into arrays.

The children of a node lie side by side in byte order; node 0 is the root. Large tries are kept on
disk by their content.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint import store

_LARGE = 16_384
"""Vocabularies of fewer tokens are not kept on disk: building their trie is as quick."""


class Trie(NamedTuple):
    """The arrays; N nodes."""

    children: NDArray[np.int32]
    """[N] how many children a node has; they begin where those of the node before it end."""
    byte: NDArray[np.uint8]
    """[N] the byte on the way into a node."""
    token: NDArray[np.int32]
    """[N] the lowest id that ends in a node, or -1."""
    twins: NDArray[np.int32]
    """[pairs, 2] (lowest id of a byte string, a further id that spells the same)."""


def trie_of(spelled: Sequence[bytes | None]) -> Trie:
    """Return the trie of id → bytes; ids without bytes are not in it."""
    ids = [i for i, token in enumerate(spelled) if token is not None]
    texts = [spelled[i] or b"" for i in ids]
    if len(ids) < _LARGE:
        return _build(ids, texts)
    lengths = np.array([len(text) for text in texts], np.int32)
    content = np.array(ids, np.int32).tobytes() + lengths.tobytes() + b"".join(texts)
    name = f"trie-1-{blake2b(content, digest_size=16).hexdigest()}.npz"
    known = store.load(name)
    if known is not None and known.keys() == set(Trie._fields):
        return Trie(**known)
    trie = _build(ids, texts)
    store.save(name, trie._asdict())
    return trie


def _build(ids: Sequence[int], texts: Sequence[bytes]) -> Trie:
    ranks = sorted(range(len(ids)), key=lambda k: (texts[k], ids[k]))
    spelled = [texts[k] for k in ranks]
    order = np.array([ids[k] for k in ranks], np.int64)
    text = np.frombuffer(b"".join(spelled), np.uint8)
    length = np.array([len(s) for s in spelled], np.int64)
    offset = np.cumsum(length) - length

    at = np.zeros(len(ids), np.int64)  # the node each token has reached
    bytes_of: list[NDArray[np.uint8]] = [np.zeros(1, np.uint8)]
    parents: list[NDArray[Any]] = []
    tokens: list[NDArray[Any]] = [np.full(1, -1, np.int64)]
    count = 1
    for depth in range(int(length.max()) if len(ids) else 0):
        live = np.flatnonzero(length > depth)
        parent, byte = at[live], text[offset[live] + depth]
        is_new = np.ones(len(live), np.bool_)
        is_new[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
        local = np.cumsum(is_new) - 1
        at[live] = count + local
        token = np.full(int(local[-1]) + 1, -1, np.int64)
        # Backwards: the lowest id is written last.
        ends = np.flatnonzero(length[live] == depth + 1)[::-1]
        token[local[ends]] = order[live[ends]]
        bytes_of.append(byte[is_new])
        parents.append(parent[is_new])
        tokens.append(token)
        count += len(token)
    node_token = np.concatenate(tokens)
    first = node_token[at]
    is_twin = first != order
    return Trie(
        children=np.bincount(
            np.concatenate(parents) if parents else np.zeros(0, np.int64), minlength=count
        ).astype(np.int32),
        byte=np.concatenate(bytes_of),
        token=node_token.astype(np.int32),
        twins=np.stack([first[is_twin], order[is_twin]], 1).astype(np.int32),
    )
