"""The letters of several conditions: sets of characters that none of them tells apart.

A regex over a million characters speaks of a few dozen letters at most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from agentdiff.constraint.characters import ANY, LAST, Ranges
from agentdiff.constraint.spelling import Spelling


class Alphabet:
    """The characters that can be written, sorted into letters that no given set tells apart."""

    def __init__(self, sets: Iterable[Ranges], spelling: Spelling) -> None:
        """Part all characters by these sets."""
        distinct = list(dict.fromkeys([spelling.allowed, ANY, *sets]))
        events: dict[int, list[int]] = {}
        for k, ranges in enumerate(distinct):
            for low, high in ranges:
                events.setdefault(low, []).append(k)
                events.setdefault(high + 1, []).append(k)
        parts: dict[frozenset[int], list[tuple[int, int]]] = {}
        inside: set[int] = set()
        for here, stop in pairwise(sorted(events)):
            inside.symmetric_difference_update(events[here])
            if 0 in inside:
                parts.setdefault(frozenset(inside), []).append((here, stop - 1))
        self.letters: list[Ranges] = [tuple(ranges) for ranges in parts.values()]
        self.costs = [spelling.cost(ranges) for ranges in self.letters]
        """[letters] bytes of the shortest character."""
        self._of: dict[Ranges, tuple[int, ...]] = {
            ranges: tuple(letter for letter, part in enumerate(parts) if k in part)
            for k, ranges in enumerate(distinct)
        }
        self.everything = self._of[spelling.allowed]
        self._starts = sorted(
            (low, high, letter)
            for letter, ranges in enumerate(self.letters)
            for low, high in ranges
        )

    def of(self, ranges: Ranges) -> tuple[int, ...]:
        """Return the letters of one of the sets that the alphabet was made for."""
        return self._of[ranges]

    def letter(self, character: str) -> int:
        """Return the letter that a character belongs to; -1 when it cannot be written."""
        code = ord(character)
        k = bisect_right(self._starts, (code, LAST, 0)) - 1
        return self._starts[k][2] if k >= 0 and code <= self._starts[k][1] else -1
