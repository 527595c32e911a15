"""Strings that must be spans of given texts.

A span begins and ends between words (`_may_cut`), neither begins nor ends with white space, and holds no
control character. Its automaton has one node per position in a text, made when a prefix first
reaches it: the determinised state is the set of positions where a prefix occurs, so long texts cost
only what is looked at.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import category

from agentdiff.constraint.automaton import INFINITE, NOWHERE, Node, literal
from agentdiff.constraint.language import Language, States
from agentdiff.constraint.machine import NO_SIZE, Size
from agentdiff.constraint.strings import Quotes
from agentdiff.constraint.terms import Pattern
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

    def __init__(self, grounding: Mapping[str, Sequence[str]], quotes: Quotes) -> None:
        """Parse the pointers.

        Args:
            grounding: JSON pointer → texts.
            quotes: What strings stand between.

        Raises:
            ConfigurationError: A pointer does not begin with a slash, or the texts are one bare
                string.
        """
        rules: list[tuple[tuple[str, ...], int]] = []
        self._texts: list[tuple[str, ...]] = []
        self._quotes = quotes
        self._indexed: dict[str, _Text] = {}
        self._starts: dict[Hashable, _Starts] = {}
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

    def span(
        self,
        sources: tuple[int, ...],
        lowest: int,
        highest: int | None,
        after: Node,
        *,
        patterns: Sequence[Pattern] = (),
        excluded: Collection[str] = (),
    ) -> Node:
        """Return a node that takes a span as a string; NOWHERE when there is none.

        Args:
            sources: Which texts.
            lowest: Characters at least.
            highest: Characters at most; None for no limit.
            after: What follows the closing quote.
            patterns: All of them hold for the span.
            excluded: Strings, as their characters, that are not taken.
        """
        if after.is_dead:
            return NOWHERE
        lowest = max(lowest, 1)
        key = (sources, lowest, highest, tuple(patterns), frozenset(excluded))
        starts = self._starts.get(key)
        if starts is None:
            unique = dict.fromkeys(text for source in sources for text in self._texts[source])
            language = Language(patterns, excluded, 0, self._quotes.spelling)
            texts = [self._text(text) for text in unique]
            starts = self._starts[key] = _Starts(texts, lowest, highest, language)
        return _Spans(starts, after, self._quotes).start()

    def _text(self, text: str) -> _Text:
        known = self._indexed.get(text)
        if known is None:
            known = self._indexed[text] = _Text(text, is_raw=self._quotes.is_raw)
        return known


class _Text:
    """One text with everything a span needs to know about its positions."""

    def __init__(self, text: str, *, is_raw: bool) -> None:
        self.characters = text
        self.spelled: list[bytes] = []
        """[characters] how each is written inside a string; empty where no span may go."""
        self.byte_offset = [0]
        """[characters + 1] bytes spelled before each position."""
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.breaks: list[int] = []
        """Positions of the characters that no span may hold."""
        size = len(text)
        spellings = {c: _spell(c, is_raw=is_raw) for c in set(text)}
        cuts = [_may_cut(text, i) for i in range(size + 1)]
        for i, c in enumerate(text):
            spelled = spellings[c]
            self.spelled.append(spelled)
            self.byte_offset.append(self.byte_offset[-1] + len(spelled))
            if not spelled:
                self.breaks.append(i)
                continue
            if c.isspace():
                continue
            if cuts[i]:
                self.starts.append(i)
            if cuts[i + 1]:
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


class _Starts:
    """Where a span of lowest..highest characters of a language may begin, by its first byte."""

    def __init__(
        self, texts: list[_Text], lowest: int, highest: int | None, language: Language
    ) -> None:
        self.texts, self.lowest, self.highest, self.language = texts, lowest, highest, language
        self._reaches: dict[tuple[int, int, int, States], Size] = {}
        self.by_byte: dict[int, list[tuple[int, int]]] = {}
        """First byte → (text, position) of the starts."""
        self.shortest: dict[int, int] = {}
        """First byte → bytes of the shortest span."""
        for k, text in enumerate(texts):
            for i in text.starts:
                length = self.ahead(k, i, 0, language.start[0])
                if length < INFINITE:
                    byte = text.spelled[i][0]
                    self.by_byte.setdefault(byte, []).append((k, i))
                    self.shortest[byte] = min(length, self.shortest.get(byte, INFINITE))

    def ahead(self, k: int, position: int, count: int, states: States) -> int:
        """Bytes to the nearest place where the span may end, after `count` characters of it."""
        most = None if self.highest is None else self.highest - count
        if self.language.is_free(states):
            return self.texts[k].bytes_to_end(position, max(0, self.lowest - count), most)
        characters, length = self._reach(k, position, count, states)
        return INFINITE if most is not None and characters > most else length

    def may_end(self, k: int, position: int, count: int, states: States) -> bool:
        """Whether the span may end here."""
        return (
            count >= self.lowest
            and position in self.texts[k].end_set
            and self.language.accepts(states)
        )

    def _reach(self, k: int, position: int, count: int, states: States) -> Size:
        """(characters, bytes) to the nearest place where the span may end, however far it is."""
        text, known = self.texts[k], self._reaches
        passed: list[tuple[int, int, int, States]] = []
        size = NO_SIZE
        while True:
            count = min(count, self.lowest)
            here = (k, position, count, states)
            if here in known or self.may_end(k, position, count, states):
                size = known.setdefault(here, (0, 0))
                break
            passed.append(here)
            if position == len(text.characters) or not text.spelled[position]:
                break
            following = self.language.following(states, text.characters[position])
            if following is None or self.language.size((following, 0)) >= NO_SIZE:
                break
            position, count, states = position + 1, count + 1, following
        for here in reversed(passed):
            if size < NO_SIZE:
                size = size[0] + 1, size[1] + len(text.spelled[here[1]])
            known[here] = size
        return size


class _Spans:
    """The spans from some starts, and what follows."""

    def __init__(self, starts: _Starts, after: Node, quotes: Quotes) -> None:
        self._starts, self._after, self._mark = starts, quotes.closed(after), quotes.mark
        self._texts, self._lowest, self._highest = starts.texts, starts.lowest, starts.highest
        self._nodes: dict[tuple[int, int, int, States], Node] = {}

    def start(self) -> Node:
        """The node before the opening quote."""
        shortest = min(self._starts.shortest.values(), default=INFINITE)
        if shortest >= INFINITE:
            return NOWHERE
        return literal(self._mark, Node(shortest + 1 + self._after.near, self._fill_start))

    def _fill_start(self, node: Node) -> None:
        for byte, starts in self._starts.by_byte.items():
            near = self._starts.shortest[byte] + self._after.near  # one byte less, and the quote
            group = Node(near, lambda group, starts=starts: self._fill_group(group, starts))
            node.arcs.append((byte, byte, group))

    def _fill_group(self, group: Node, starts: list[tuple[int, int]]) -> None:
        """Behind the first byte of some starts."""
        states = self._starts.language.start[0]
        group.skips += [self._behind_first_byte(k, i, 0, states) for k, i in starts]

    def _node(self, k: int, position: int, count: int, states: States) -> Node:
        # The count matters only for bounds: below `lowest` for every span, beyond it only with a
        # `highest`.
        if self._highest is None:
            count = min(count, self._lowest)
        key = (k, position, count, states)
        node = self._nodes.get(key)
        if node is None:
            ahead = self._starts.ahead(k, position, count, states)

            def fill(node: Node) -> None:
                text = self._texts[k]
                if self._starts.may_end(k, position, count, states):
                    node.arcs.append((self._mark[0], self._mark[0], self._after))
                if position < len(text.spelled) and text.spelled[position]:
                    behind = self._behind_first_byte(k, position, count, states)
                    if not behind.is_dead:
                        byte = text.spelled[position][0]
                        node.arcs.append((byte, byte, behind))

            node = self._nodes[key] = Node(ahead + 1 + self._after.near, fill)
        return node

    def _behind_first_byte(self, k: int, position: int, count: int, states: States) -> Node:
        """In the character at a position, which is the one after `count` of the span."""
        text = self._texts[k]
        following = self._starts.language.following(states, text.characters[position])
        if following is None:
            return NOWHERE
        node = self._node(k, position + 1, count + 1, following)
        return literal(text.spelled[position][1:], node)


_GLUE = frozenset("-/'’.@&+:,")


def _may_cut(text: str, position: int) -> bool:
    """Whether a span may begin or end at a position: not inside a word, nor inside what is written as one.

    `o'clock`, `7:30`, `a@b.org`, `notes.txt` and `**/*.py` stay whole. A colon or a comma binds digits only, and a
    possessive `'s` comes off.
    """
    before, behind = text[max(position - 2, 0) : position], text[position : position + 2]
    if not before or not behind:
        return True
    if (_is_word(before[-1]) and _is_word(behind[0])) or before[-1] == behind[0] == "*":
        return False
    if behind[0] in _GLUE and len(behind) == 2:
        left, glue, right = before[-1], behind[0], behind[1]
        if glue in "'’" and right == "s" and not _is_word(text[position + 2 : position + 3]):
            return True
    elif before[-1] in _GLUE and len(before) == 2:
        left, glue, right = before[0], before[1], behind[0]
    else:
        return True
    if glue in ":,":
        return not (left.isdigit() and right.isdigit())
    return not all(_is_word(side) or (side == "*" and glue in "./") for side in (left, right))


def _is_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _spell(character: str, *, is_raw: bool) -> bytes:
    """How a character stands in a string, or nothing when no span may hold it."""
    if category(character) in {"Cc", "Cs", "Zl", "Zp"}:  # controls, surrogates, line breaks
        return b""
    return (character if is_raw else json.dumps(character, ensure_ascii=False)[1:-1]).encode()
