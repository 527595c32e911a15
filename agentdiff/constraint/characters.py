r"""Sets of characters, and what the classes of a regex mean to its readers.

A set is a tuple of ranges of code points, sorted, apart from each other, without surrogates. Readers
of JSON Schema disagree about classes: `\d` is ASCII in ECMA-262 and any decimal digit in Python's
`re`, which several validators use; `\s` is different in each. So a class is two sets: the characters
that are in it for every reader, and those that are in it for some.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby

Ranges = tuple[tuple[int, int], ...]
"""(first, last) code points; sorted, disjoint, not adjacent."""

LAST = 0x10FFFF
ANY: Ranges = ((0, 0xD7FF), (0xE000, LAST))
"""Every Unicode scalar value."""
_SETTLED = 0x32400
"""No letter, digit or white space is assigned from here on; one may be some day."""
_SPECIAL = (0xE0000, 0xE0200)
"""Where the tags and variation selectors are: the only other characters assigned by name."""
_PRIVATE: Ranges = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """Return the characters that are in any of the sets, whose ranges may overlap."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(r for ranges in sets for r in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return intersection(tuple(merged), ANY)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    """Return the characters that are in both sets."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    found: list[tuple[int, int]] = []
    begin = 0
    for low, high in ranges:
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    if begin <= LAST:
        found.append((begin, LAST))
    return intersection(tuple(found), ANY)


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """A class of a regex."""

    must: Ranges
    """In it for every reader."""
    may: Ranges
    """In it for some reader."""

    def negated(self) -> CharacterClass:
        """Return the class of all other characters."""
        return CharacterClass(complement(self.may), complement(self.must))

    def joined(self, other: CharacterClass) -> CharacterClass:
        """Return the union of two classes."""
        return CharacterClass(union(self.must, other.must), union(self.may, other.may))


def exactly(ranges: Iterable[tuple[int, int]]) -> CharacterClass:
    """Return a class that every reader understands alike."""
    same = union(ranges)
    return CharacterClass(same, same)


_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_LINE_FEED: Ranges = ((0x0A, 0x0A),)
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_SPACES_OF_ALL: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_SPACES_OF_SOME: Ranges = (*_SPACES_OF_ALL, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))


@cache
def escaped_class(letter: str) -> CharacterClass | None:
    r"""Return what `\d`, `\w`, `\s` or one of their opposites stands for; None for other letters."""
    match letter:
        case "d":
            return CharacterClass(_DIGITS, union(_DIGITS, _scanned(str.isdecimal)))
        case "w":
            return CharacterClass(_WORD, union(_WORD, _scanned(str.isalnum)))
        case "s":
            return CharacterClass(_SPACES_OF_ALL, union(_SPACES_OF_SOME))
        case "D" | "W" | "S":
            positive = escaped_class(letter.lower())
            assert positive is not None
            return positive.negated()
        case _:
            return None


DOT = CharacterClass(complement(_LINE_ENDS), complement(_LINE_FEED))
"""What `.` stands for."""

_CATEGORIES = frozenset(
    (
        *("C", "Cc", "Cf", "Co", "L", "LC", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn"),
        *("N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps"),
        *("S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"),
    )
)
_LONG_NAMES = {
    **{"Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Number": "N"},
    **{"Decimal_Number": "Nd", "Punctuation": "P", "Symbol": "S", "Mark": "M", "Separator": "Z"},
}


@cache
def category_class(name: str) -> CharacterClass | None:
    r"""Return what `\p{name}` stands for; None when it is no general category.

    Characters that are not assigned yet may be in it for a newer reader.
    """
    name = _LONG_NAMES.get(name.removeprefix("General_Category=").removeprefix("gc="), name)
    if name not in _CATEGORIES:
        return None
    wanted = ("Lu", "Ll", "Lt") if name == "LC" else (name,)
    inside: list[tuple[int, int]] = []
    assigned = list(_PRIVATE)
    for low, high, category in _categories():
        if category != "Cn":
            assigned.append((low, high))
            if category.startswith(wanted):
                inside.append((low, high))
    if "Co".startswith(wanted):
        inside += _PRIVATE
    return CharacterClass(union(inside), union(inside, complement(union(assigned))))


def _scanned(holds: Callable[[str], bool]) -> Ranges:
    """The characters for which a test of Python's holds, and those of which nobody knows yet."""
    runs = _runs(lambda c: "yes" if holds(c) else "no", 0, _SETTLED)
    return union(((low, high) for low, high, kind in runs if kind == "yes"), ((_SETTLED, LAST),))


@cache
def _categories() -> list[tuple[int, int, str]]:
    return _runs(unicodedata.category, 0, _SETTLED) + _runs(unicodedata.category, *_SPECIAL)


def _runs(kind_of: Callable[[str], str], begin: int, stop: int) -> list[tuple[int, int, str]]:
    """Characters of one kind side by side: (first, last, kind)."""
    found: list[tuple[int, int, str]] = []
    for kind, group in groupby(range(begin, stop), lambda code: kind_of(chr(code))):
        codes = list(group)
        found.append((codes[0], codes[-1], kind))
    return found
