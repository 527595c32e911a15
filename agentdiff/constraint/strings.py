r"""Strings: well-formed UTF-8, simple escapes or none, counted characters, undeclared keys.

Inside a string the automaton is always in one of a few character states (`AT_CHARACTER`, inside an
escape, inside a multi-byte character), plus a count where lengths matter. A string has one
spelling: raw UTF-8; in JSON, control characters and `"` and `\\` escaped by one letter, nothing
else escaped. So a key or an enum value cannot come back in disguise.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import NOWHERE, Node, Point, Step, Stretch, literal
from agentdiff.constraint.inside import LEAVES, NO_WAY, InsideTokens, InString, classify
from agentdiff.constraint.language import language_of
from agentdiff.constraint.spelled import Text
from agentdiff.constraint.spelling import JSON_STRING, UNESCAPED, Spelling
from agentdiff.constraint.terms import Pattern
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

QUOTE = 0x22
AT_CHARACTER = 0
"""The character state in which a character begins and the string may end."""
_ESCAPE = 1
# Character state → (lowest byte, highest byte, next state); UTF-8 as in Unicode, table 3-7.
_Moves = tuple[tuple[tuple[int, int, int], ...], ...]
_MOVES: _Moves = (
    (
        (0x20, 0x21, 0),
        (0x23, 0x5B, 0),
        (0x5C, 0x5C, _ESCAPE),
        (0x5D, 0x7F, 0),
        (0xC2, 0xDF, 2),
        (0xE0, 0xE0, 4),
        (0xE1, 0xEC, 3),
        (0xED, 0xED, 5),
        (0xEE, 0xEF, 3),
        (0xF0, 0xF0, 7),
        (0xF1, 0xF3, 6),
        (0xF4, 0xF4, 8),
    ),
    tuple((byte, byte, 0) for byte in sorted(b'"\\bfnrt')),
    ((0x80, 0xBF, 0),),
    ((0x80, 0xBF, 2),),
    ((0xA0, 0xBF, 2),),
    ((0x80, 0x9F, 2),),
    ((0x80, 0xBF, 3),),
    ((0x90, 0xBF, 3),),
    ((0x80, 0x8F, 3),),
)
_PLAIN_MOVES: _Moves = (
    ((0x20, 0x7F, 0), (0x08, 0x0A, 0), (0x0C, 0x0D, 0), *_MOVES[0][4:]),
    (),
    *_MOVES[2:],
)
"""The same where nothing is escaped."""
_BYTES_LEFT = (0, 1, 1, 2, 2, 2, 3, 3, 3)
"""Character state → bytes until the character is complete."""


@dataclass(frozen=True, slots=True)
class Quotes:
    """What a string stands between, and how it is written there."""

    mark: bytes
    """Before and behind it. Its first byte stands for no character."""
    is_raw: bool = False
    """Whether nothing is escaped."""

    @property
    def spelling(self) -> Spelling:
        """How characters are written."""
        return UNESCAPED if self.is_raw else JSON_STRING

    @property
    def moves(self) -> _Moves:
        """Character state → where its bytes lead."""
        return _PLAIN_MOVES if self.is_raw else _MOVES

    def closed(self, after: Node) -> Node:
        """Return what follows the first byte of the closing mark."""
        return literal(self.mark[1:], after)


JSON_QUOTES = Quotes(b'"')


class StringBody(Stretch):
    """The inside of a string of lowest..highest characters, its end, and what follows."""

    __slots__ = ("after", "highest", "lowest", "quotes")

    def __init__(
        self, lowest: int, highest: int | None, after: Node, quotes: Quotes = JSON_QUOTES
    ) -> None:
        super().__init__()
        self.lowest, self.highest, self.after = lowest, highest, quotes.closed(after)
        self.quotes = quotes

    def node(self, count: int, character: int = AT_CHARACTER) -> StringPoint:
        """Return the place after `count` whole characters, in this character state."""
        return StringPoint(self, count, character)

    def point(self, at: int) -> StringPoint:
        """Return the node of a place."""
        return StringPoint(self, *divmod(at, len(_MOVES)))

    def like(self, at: int) -> int:
        """All counts that are enough close alike."""
        return min(at, len(_MOVES) * self.lowest + at % len(_MOVES))

    def counted(self, count: int, characters: int) -> int:
        """Return the count after more characters; without a limit it stops at `lowest`."""
        count += characters
        return min(count, self.lowest) if self.highest is None else count

    def may_begin(self, count: int) -> bool:
        """Whether a further character may begin after `count`."""
        return self.highest is None or count < self.highest

    def may_end(self, count: int) -> bool:
        """Whether the string may end after `count` characters."""
        return self.lowest <= count and (self.highest is None or count <= self.highest)


class StringPoint(Point, InString):
    """A place inside a plain string: so many whole characters in, in this character state."""

    __slots__ = ("body", "character", "count")

    def __init__(self, body: StringBody, count: int, character: int) -> None:
        missing = max(0, body.lowest - count - (character != AT_CHARACTER))
        near = _BYTES_LEFT[character] + missing + 1 + body.after.near
        super().__init__(near, body, len(_MOVES) * count + character)
        self.body, self.count, self.character = body, count, character

    def ways(self) -> Sequence[tuple[int, int, Node]]:
        """Close where the string may end; begin, or go on with, a character."""
        body, count, character = self.body, self.count, self.character
        moves = body.quotes.moves[character]
        ways: list[tuple[int, int, Node]] = []
        if character == AT_CHARACTER:
            if body.may_end(count):
                end = body.quotes.mark[0]
                ways.append((end, end, body.after))
            if not body.may_begin(count):
                moves = ()
        for low, high, following in moves:
            whole = following == AT_CHARACTER
            target = body.node(body.counted(count, 1) if whole else count, following)
            ways.append((low, high, target))
        return ways

    def way_out(self) -> Step:
        """Close where the string may end, else add or finish a character."""
        body, count = self.body, self.count
        if self.character == AT_CHARACTER:
            if body.may_end(count):
                return body.quotes.mark[0], body.after, None
            return ord("a"), body.node(body.counted(count, 1)), None
        low, _, following = body.quotes.moves[self.character][0]
        whole = following == AT_CHARACTER
        return low, body.node(body.counted(count, 1) if whole else count, following), None

    @property
    def after(self) -> Node:
        """What follows the first byte of the closing mark."""
        return self.body.after

    @property
    def template(self) -> Hashable:
        """What the tokens do depends on the character state alone."""
        return "string", self.body.quotes.is_raw, self.character

    @property
    def is_shared(self) -> bool:
        """The same for all grammars of a vocabulary."""
        return True

    def tokens(self, vocabulary: Vocabulary) -> InsideTokens:
        """Classify the vocabulary, once per character state."""
        return string_tokens(vocabulary, self.character, self.body.quotes)

    def behind(self, characters: int, ends_in: int) -> Node:
        """Return the place after so many more characters."""
        body, total = self.body, self.count + characters
        if body.highest is not None and total + (ends_in != AT_CHARACTER) > body.highest:
            return NOWHERE
        return body.node(body.counted(self.count, characters), ends_in)

    def may_end(self, characters: int) -> bool:
        """Whether the string may end after so many more characters."""
        return self.body.may_end(self.body.counted(self.count, characters))


def string(
    lowest: int,
    highest: int | None,
    after: Node,
    *,
    patterns: Sequence[Pattern] = (),
    excluded: Collection[str] = (),
    quotes: Quotes = JSON_QUOTES,
) -> Node:
    """Return a node that takes a whole string, then goes on; NOWHERE when there is none.

    Args:
        lowest: Characters at least.
        highest: Characters at most; None for no limit.
        after: What follows the closing quote.
        patterns: All of them hold for the string.
        excluded: Strings, as their characters, that are not taken.
        quotes: What the string stands between, and how it is written.

    Raises:
        SchemaError: The patterns are too intricate together to tell whether any string satisfies
            them.
    """
    if after.is_dead or (highest is not None and highest < lowest):
        return NOWHERE
    body = StringBody(lowest, highest, after, quotes)
    if patterns or excluded:
        language = language_of(tuple(patterns), tuple(excluded), lowest, quotes.spelling)
        language.check()
        end = quotes.mark[0]
        inside = Text(language, highest, body.after, end=end, free=body.node).start()
    else:
        inside = body.node(0)
    return NOWHERE if inside.is_dead else literal(quotes.mark, inside)


def bare_string(
    lowest: int,
    highest: int | None,
    after: Node,
    *,
    patterns: Sequence[Pattern],
    excluded: Collection[str],
) -> Node:
    """Return the same for a string without quotes or escapes.

    The patterns see to it that what follows begins with none of its characters.
    """
    if after.is_dead:
        return NOWHERE
    language = language_of(tuple(patterns), tuple(excluded), lowest, UNESCAPED)
    language.check()
    return Text(language, highest, after).start()


class OtherKey:
    """The inside of a string that is not excluded: leaves their trie where it differs."""

    def __init__(self, excluded: Iterable[bytes], after: Node) -> None:
        """Take the excluded strings as they are spelled between the quotes."""
        self._excluded = sorted(set(excluded))
        self._free = StringBody(0, None, after)
        self._after = after

    def start(self) -> Node:
        """Return the place behind the opening quote."""
        return self._node(0, len(self._excluded), 0, AT_CHARACTER)

    def _node(self, low: int, high: int, depth: int, character: int) -> Node:
        """The place after the common `depth` bytes of the excluded strings low..high-1."""
        # Not the excluded string itself: at most one more character, which must not lead to another
        # one.
        detour = 1 + 2 * self._longest(low, high, depth)
        near = _BYTES_LEFT[character] + detour + 1 + self._after.near

        def fill(node: Node) -> None:
            ahead: dict[int, tuple[int, int]] = {}
            i = low
            if i < high and len(self._excluded[i]) == depth:
                i += 1
            elif character == AT_CHARACTER:
                node.arcs.append((QUOTE, QUOTE, self._after))
            while i < high:
                byte, j = self._excluded[i][depth], i + 1
                while j < high and self._excluded[j][depth] == byte:
                    j += 1
                ahead[byte] = (i, j)
                i = j
            for first, last, following in _MOVES[character]:
                begin = first
                for byte in sorted(b for b in ahead if first <= b <= last):
                    if begin < byte:
                        node.arcs.append((begin, byte - 1, self._free.node(0, following)))
                    node.arcs.append((byte, byte, self._node(*ahead[byte], depth + 1, following)))
                    begin = byte + 1
                if begin <= last:
                    node.arcs.append((begin, last, self._free.node(0, following)))

        return Node(near, fill)

    def _longest(self, low: int, high: int, depth: int) -> int:
        return max((len(key) - depth for key in self._excluded[low:high]), default=0)


def string_tokens(
    vocabulary: Vocabulary, character: int, quotes: Quotes = JSON_QUOTES
) -> InsideTokens:
    """Return what tokens do in a plain string; the result belongs to the vocabulary."""
    return vocabulary.derive(
        ("string", quotes.is_raw, character),
        lambda: classify(vocabulary, character, _PlainCharacters(quotes)),
    )


class _PlainCharacters:
    """The character states of plain strings."""

    def __init__(self, quotes: Quotes) -> None:
        self._table = np.full((len(_MOVES), 256), NO_WAY, np.int64)
        for character, moves in enumerate(quotes.moves):
            for low, high, following in moves:
                self._table[character, low : high + 1] = following
        self._table[AT_CHARACTER, quotes.mark[0]] = LEAVES

    def rows(self, states: IntArray) -> NDArray[np.int64]:
        """Where each byte leads."""
        return self._table[states]

    def are_whole(self, states: IntArray) -> NDArray[np.bool_]:
        """Which states are between two characters."""
        return states == AT_CHARACTER
