"""Strings that must be spans of given texts.

A span begins and ends at a word boundary, neither begins nor ends with white space, and holds no
control character. Its automaton has one node per position in a text, made when a prefix first
reaches it: the determinised state is the set of positions where a prefix occurs, so long texts cost
only what is looked at.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unicodedata import category

from agentdiff.constraint.automaton import INFINITE, NOWHERE, Node
from agentdiff.errors import ConfigurationError

ANY_SEGMENT = "*"


@dataclass(frozen=True)
class Grounding:
    """Which texts bind a string at a place in the instance, and which further down."""

    rules: tuple[tuple[tuple[str, ...], int], ...] = ()
    """(what is left of the pointer, which texts)."""

    def below(self, segment: str | None) -> Grounding:
        """Return what holds under a key or index; under None for one that is not known."""
        if not self.rules:
            return self
        return Grounding(
            tuple(
                (rest[1:], source)
                for rest, source in self.rules
                if rest and (rest[0] == ANY_SEGMENT or rest[0] == segment)
            )
        )

    @property
    def sources(self) -> tuple[int, ...]:
        """The texts that bind a string right here."""
        return tuple(source for rest, source in self.rules if not rest)

    @property
    def named(self) -> list[str]:
        """Keys and indices that are named one level down."""
        return [rest[0] for rest, _ in self.rules if rest and rest[0] != ANY_SEGMENT]


class Sources:
    """The texts of one compilation, indexed when first needed."""

    def __init__(self, grounding: Mapping[str, Sequence[str]]) -> None:
        """Parse the pointers.

        Raises:
            ConfigurationError: A pointer does not begin with a slash, or the texts are one bare
                string.
        """
        rules: list[tuple[tuple[str, ...], int]] = []
        self._texts: list[tuple[str, ...]] = []
        self._indexed: dict[tuple[int, ...], list[_Text]] = {}
        self._shortest: dict[tuple[tuple[int, ...], int, int | None], int] = {}
        for pointer, texts in grounding.items():
            if pointer and not pointer.startswith("/"):
                raise ConfigurationError(f"a `grounding` pointer begins with `/`, got {pointer!r}")
            if isinstance(texts, str):
                raise ConfigurationError(
                    f"`grounding` of {pointer!r} must be a list of texts, got a string"
                )
            segments = tuple(
                s.replace("~1", "/").replace("~0", "~") for s in pointer.split("/")[1:]
            )
            rules.append((segments, len(self._texts)))
            self._texts.append(tuple(texts))
        self.root = Grounding(tuple(rules))

    def span(self, sources: tuple[int, ...], lowest: int, highest: int | None, after: Node) -> Node:
        """Return a node that takes a span as a JSON string; NOWHERE when there is none."""
        if after.is_dead:
            return NOWHERE
        texts = self._indexed.get(sources)
        if texts is None:
            unique = dict.fromkeys(text for source in sources for text in self._texts[source])
            texts = self._indexed[sources] = [_Text(text) for text in unique]
        lowest = max(lowest, 1)
        shortest = self._shortest.get((sources, lowest, highest))
        if shortest is None:
            shortest = min(
                (text.bytes_to_end(i, lowest, highest) for text in texts for i in text.starts),
                default=INFINITE,
            )
            self._shortest[sources, lowest, highest] = shortest
        return _Spans(texts, lowest, highest, after).start(shortest)


class _Text:
    """One text with everything a span needs to know about its positions."""

    def __init__(self, text: str) -> None:
        self.spelled: list[bytes] = []
        """[characters] how each is written inside a JSON string; empty where no span may go."""
        self.byte_offset = [0]
        """[characters + 1] bytes spelled before each position."""
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.breaks: list[int] = []
        """Positions of the characters that no span may hold."""
        size = len(text)
        joined = [c == "_" or c.isalnum() for c in text]
        for i, c in enumerate(text):
            spelled = _spell(c)
            self.spelled.append(spelled)
            self.byte_offset.append(self.byte_offset[-1] + len(spelled))
            if not spelled:
                self.breaks.append(i)
                continue
            if c.isspace():
                continue
            if i == 0 or not (joined[i - 1] and joined[i]):
                self.starts.append(i)
            if i + 1 == size or not (joined[i] and joined[i + 1]):
                self.ends.append(i + 1)
        self.breaks.append(size)
        self.end_set = frozenset(self.ends)

    def bytes_to_end(self, position: int, fewest: int, most: int | None) -> int:
        """Bytes to the nearest place where a span may end, fewest..most characters ahead."""
        k = bisect_left(self.ends, position + fewest)
        if k == len(self.ends):
            return INFINITE
        end = self.ends[k]
        if most is not None and end > position + most:
            return INFINITE
        if self.breaks[bisect_left(self.breaks, position)] < end:
            return INFINITE
        return self.byte_offset[end] - self.byte_offset[position]


class _Spans:
    """The spans of some texts with lowest..highest characters, and what follows."""

    def __init__(self, texts: list[_Text], lowest: int, highest: int | None, after: Node) -> None:
        self._texts, self._lowest, self._highest, self._after = texts, lowest, highest, after
        self._nodes: dict[tuple[int, int, int], Node] = {}

    def start(self, shortest: int) -> Node:
        """The node before the opening quote; `shortest` is the bytes of the shortest span."""
        if shortest >= INFINITE:
            return NOWHERE
        inside = Node(shortest + 1 + self._after.near, self._fill_start)
        node = Node(inside.near + 1)
        node.arcs.append((0x22, 0x22, inside))
        return node

    def _fill_start(self, node: Node) -> None:
        for k, text in enumerate(self._texts):
            for i in text.starts:
                if self._bytes_to_end(k, i, 0) < INFINITE:
                    self._add_character(node, k, i, 0)

    def _bytes_to_end(self, k: int, position: int, count: int) -> int:
        fewest = max(0, self._lowest - count)
        most = None if self._highest is None else self._highest - count
        return self._texts[k].bytes_to_end(position, fewest, most)

    def _node(self, k: int, position: int, count: int) -> Node:
        # The count matters only for bounds: below `lowest` for every span, beyond it only with a
        # `highest`.
        if self._highest is None:
            count = min(count, self._lowest)
        key = (k, position, count)
        node = self._nodes.get(key)
        if node is None:
            ahead = self._bytes_to_end(k, position, count)

            def fill(node: Node) -> None:
                text = self._texts[k]
                if count >= self._lowest and position in text.end_set:
                    node.arcs.append((0x22, 0x22, self._after))
                if position < len(text.spelled) and text.spelled[position]:
                    self._add_character(node, k, position, count)

            node = self._nodes[key] = Node(ahead + 1 + self._after.near, fill)
        return node

    def _add_character(self, node: Node, k: int, position: int, count: int) -> None:
        """Add the arcs that spell one character."""
        after = self._node(k, position + 1, count + 1)
        if after.is_dead:
            return
        spelled = self._texts[k].spelled[position]
        for byte in reversed(spelled[1:]):
            step = Node(after.near + 1)
            step.arcs.append((byte, byte, after))
            after = step
        node.arcs.append((spelled[0], spelled[0], after))


def _spell(character: str) -> bytes:
    """How a character stands in a JSON string, or nothing when no span may hold it."""
    if category(character) in {
        "Cc",
        "Cs",
        "Zl",
        "Zp",
    }:  # controls, surrogates, line and paragraph breaks
        return b""
    return json.dumps(character, ensure_ascii=False)[1:-1].encode()
