"""Keys and values of prompts seen before, shared by every request that begins the same way.

A radix tree over blocks of tokens: an edge holds the whole blocks between two forks with their keys and values. What
was used least recently goes first when the bytes run out. Exact for models that look backwards only, cut at the
borders of their blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agentdiff.engine.cache import LayerKV

Span = list[LayerKV]
"""[1, H, n, D] per layer."""
Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Edge:
    """Whole blocks behind a fork."""

    tokens: Tokens
    span: Span
    parent: _Edge | None
    used: int
    children: dict[Tokens, _Edge] = field(default_factory=dict[Tokens, "_Edge"])

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for layer in self.span for tensor in layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStats:
    """How much the cache has saved."""

    asked_tokens: int
    """Prompt positions that were looked up."""
    reused_tokens: int
    """Those that were found."""
    held_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of the positions looked up that were found; 0 before the first look."""
        return self.reused_tokens / self.asked_tokens if self.asked_tokens else 0.0


class PrefixCache:
    """Prefixes by their tokens, at most so many bytes of them; 0 keeps nothing."""

    def __init__(self, block_len: int, *, max_bytes: int) -> None:
        self._block_len = block_len
        self._max_bytes = max_bytes
        self._roots: dict[Tokens, _Edge] = {}
        self._clock = itertools.count()
        self._asked = self._reused = self._bytes = 0

    @property
    def stats(self) -> PrefixStats:
        """What was asked, found and is held."""
        return PrefixStats(
            asked_tokens=self._asked, reused_tokens=self._reused, held_bytes=self._bytes
        )

    def find(self, tokens: Sequence[int]) -> list[Span]:
        """The longest known prefix of `tokens` that consists of whole blocks, in pieces."""
        whole = self._whole(tokens)
        found = [_cut(edge.span, 0, length) for edge, length in self._walk(whole) if length]
        self._asked += len(whole)
        self._reused += sum(span[0].keys.shape[2] for span in found)
        return found

    def add(self, tokens: Sequence[int], read: Callable[[int, int], Span]) -> None:
        """Keep the whole blocks of `tokens`; `read(start, end)` copies the keys and values of those not yet known."""
        whole = self._whole(tokens)
        if not whole or not self._max_bytes:
            return
        parent: _Edge | None = None
        known = 0
        for edge, length in list(self._walk(whole)):
            parent = self._split(edge, length) if length < len(edge.tokens) else edge
            known += length
        if known == len(whole):
            return
        edge = _Edge(whole[known:], read(known, len(whole)), parent, next(self._clock))
        self._children(parent)[self._key(edge.tokens)] = edge
        self._bytes += edge.nbytes
        while self._bytes > self._max_bytes:
            self._evict()

    def _whole(self, tokens: Sequence[int]) -> Tokens:
        return tuple(tokens[: len(tokens) - len(tokens) % self._block_len])

    def _walk(self, tokens: Tokens) -> Iterator[tuple[_Edge, int]]:
        """Edges along `tokens` and how much of each agrees, one block at least; the last may agree in part."""
        at, parent = 0, None
        while (edge := self._children(parent).get(self._key(tokens[at:]))) is not None:
            length = self._agreement(edge.tokens, tokens[at : at + len(edge.tokens)])
            edge.used = next(self._clock)
            yield edge, length
            if length < len(edge.tokens):
                return
            at, parent = at + length, edge

    def _agreement(self, known: Tokens, asked: Tokens) -> int:
        """Tokens of whole blocks that two runs begin with."""
        if known == asked:
            return len(known)
        pairs = zip(known, asked, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return same - same % self._block_len

    def _split(self, edge: _Edge, length: int) -> _Edge:
        """Fork inside an edge: the new edge holds its first `length` tokens, the old one the rest."""
        upper = _Edge(edge.tokens[:length], _copied(edge.span, 0, length), edge.parent, edge.used)
        self._children(edge.parent)[self._key(upper.tokens)] = upper
        edge.span = _copied(edge.span, length, len(edge.tokens))
        edge.tokens, edge.parent = edge.tokens[length:], upper
        upper.children[self._key(edge.tokens)] = edge
        return upper

    def _evict(self) -> None:
        """Forget the leaf that was used least recently."""
        leaves = [edge for edge in self._edges() if not edge.children]
        oldest = min(leaves, key=lambda edge: edge.used)
        del self._children(oldest.parent)[self._key(oldest.tokens)]
        self._bytes -= oldest.nbytes

    def _edges(self) -> Iterator[_Edge]:
        stack = list(self._roots.values())
        while stack:
            edge = stack.pop()
            yield edge
            stack.extend(edge.children.values())

    def _children(self, parent: _Edge | None) -> dict[Tokens, _Edge]:
        return self._roots if parent is None else parent.children

    def _key(self, tokens: Tokens) -> Tokens:
        """What tells the edges of a fork apart: their first block."""
        return tokens[: self._block_len]


def _cut(span: Span, start: int, end: int) -> Span:
    return [LayerKV(kv.keys[:, :, start:end], kv.values[:, :, start:end]) for kv in span]


def _copied(span: Span, start: int, end: int) -> Span:
    """A part that does not keep the whole alive."""
    return [LayerKV(kv.keys.clone(), kv.values.clone()) for kv in _cut(span, start, end)]
