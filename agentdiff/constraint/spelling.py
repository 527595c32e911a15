r"""How characters become bytes: raw UTF-8, inside a JSON string with escapes of one letter.

A character has one spelling. In a JSON string control characters and `"` and `\` are escaped by one
letter where there is one; other control characters cannot be written, and nothing else is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from agentdiff.constraint.automaton import INFINITE
from agentdiff.constraint.characters import ANY, LAST, Ranges, complement, intersection, union

ByteTree = tuple[tuple[int, int, "ByteTree"], ...]
"""(first, last byte, what follows); empty after the last byte."""

_BY_LENGTH: tuple[tuple[int, int, int, int], ...] = (
    (1, 0x00, 0x00, 0x7F),
    (2, 0xC0, 0x80, 0x7FF),
    (3, 0xE0, 0x800, 0xFFFF),
    (4, 0xF0, 0x10000, 0x10FFFF),
)
"""(bytes, lead byte without payload, first, last code point)."""


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """Which characters can be written, and how."""

    allowed: Ranges
    escapes: Mapping[int, int] = field(default_factory=dict[int, int])
    """Code point → the letter behind a backslash."""

    def letters(self, ranges: Ranges) -> list[tuple[int, int]]:
        """Return the escaped characters of a set: (code point, letter)."""
        return [
            (code, letter)
            for code, letter in self.escapes.items()
            if any(low <= code <= high for low, high in ranges)
        ]

    def plain(self, ranges: Ranges) -> Ranges:
        """Return the characters of a set that are written as they are."""
        escaped = self.letters(ranges)
        allowed = intersection(ranges, self.allowed)
        if not escaped:
            return allowed
        return intersection(allowed, complement(union((c, c) for c, _ in escaped)))

    def cost(self, ranges: Ranges) -> int:
        """Return the bytes of the shortest character of a set; INFINITE if none can be written."""
        plain = self.plain(ranges)
        first = plain[0][0] if plain else LAST + 1
        cost = next((n for n, _, _, last in _BY_LENGTH if first <= last), INFINITE)
        return min(cost, 2) if self.letters(ranges) else cost


RAW = Spelling(ANY)
"""Text as it is."""
_LETTERS = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
JSON_STRING = Spelling(
    complement(((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F))),
    {code: ord(letter) for code, letter in _LETTERS.items()},
)
"""The inside of a JSON string."""
UNESCAPED = Spelling(JSON_STRING.allowed)
"""The same characters, each as it is."""


@lru_cache(maxsize=256)
def utf8(ranges: Ranges) -> ByteTree:
    """Return the UTF-8 of a set of characters."""
    tree: list[tuple[int, int, ByteTree]] = []
    for length, lead, first, last in _BY_LENGTH:
        part = intersection(ranges, ((first, last),))
        tree += _tree(part, 6 * (length - 1), lead)
    return tuple(tree)


@lru_cache(maxsize=4096)
def _tree(ranges: Ranges, shift: int, lead: int) -> ByteTree:
    """The tree of code points that differ in the `shift` low bits and in the byte above them."""
    below_all = (1 << shift) - 1
    by_byte: dict[int, list[tuple[int, int]]] = {}
    for low, high in ranges:
        for digit in range(low >> shift, (high >> shift) + 1):
            begin = low & below_all if digit == low >> shift else 0
            end = high & below_all if digit == high >> shift else below_all
            by_byte.setdefault(lead + digit, []).append((begin, end))
    tree: list[tuple[int, int, ByteTree]] = []
    for byte, parts in by_byte.items():
        rest = _tree(tuple(parts), shift - 6, 0x80) if shift else ()
        if tree and tree[-1][1] == byte - 1 and tree[-1][2] == rest:
            tree[-1] = (tree[-1][0], byte, rest)
        else:
            tree.append((byte, byte, rest))
    return tuple(tree)
