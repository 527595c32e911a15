"""Strings under several conditions at once: patterns, a length, a list of strings that are taken.

A place is a tuple of machine states and a count of characters. Which places there are, and how far
each is from the end, is found by search as far as somebody looks (A*, Hart, Nilsson and Raphael
1968, over characters): so a set of strings that is empty is known at once, and a place from which
the string cannot be completed is never entered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count as numbers
from threading import RLock

from agentdiff.constraint.alphabet import Alphabet
from agentdiff.constraint.characters import union
from agentdiff.constraint.machine import (
    NO_SIZE,
    Machine,
    OtherThan,
    RegexMachine,
    Size,
)
from agentdiff.constraint.spelling import RAW, ByteTree, Spelling, utf8
from agentdiff.constraint.terms import Pattern, classes
from agentdiff.errors import SchemaError

States = tuple[int, ...]
"""The state of each machine."""
Place = tuple[States, int]
"""(states, characters so far)."""


@dataclass(frozen=True, slots=True)
class Charset:
    """Some letters of an alphabet, and how their characters are spelled."""

    letters: tuple[int, ...]
    cost: int
    """Bytes of the shortest character."""
    escapes: tuple[int, ...]
    """The characters that are escaped, by what stands behind the backslash."""
    tree: ByteTree
    """The bytes of those that are not."""


@dataclass(frozen=True, slots=True)
class Way:
    """The characters that lead from some states to the same others."""

    charset: Charset
    target: States


_MAX_SEARCH = 10_000
"""Places that the first search looks at."""
_MAX_FURTHER = 2_000
"""Places that a later one looks at; where it finds nothing, the place is not entered."""


class Language:
    """The strings of at least `lowest` characters that all patterns hold for, none of them excluded.

    What follows the string and how long it may be does not matter here. Safe to share between
    threads.
    """

    def __init__(
        self,
        patterns: Sequence[Pattern],
        excluded: Collection[str],
        lowest: int,
        spelling: Spelling,
    ) -> None:
        self.spelling, self.lowest = spelling, lowest
        terms = [
            (term, bars)
            for pattern in patterns
            for terms, bars in ((pattern.needs, False), (pattern.bars, True))
            for term in terms
        ]
        sets = [c.may if bars else c.must for term, bars in terms for c in classes(term)]
        sets += [((ord(c), ord(c)),) for c in {c for word in excluded for c in word}]
        self.alphabet = Alphabet(sets, spelling)
        self._machines: list[Machine] = [
            RegexMachine(term, self.alphabet, bars=bars) for term, bars in terms
        ]
        if excluded:
            self._machines.append(OtherThan(excluded, self.alphabet))
        self.start: Place = ((0,) * len(self._machines), 0)
        self._sizes: dict[Place, Size] = {}
        self._ways: dict[States, list[Way]] = {}
        self._charsets: dict[tuple[int, ...], Charset] = {}
        self._accepting: dict[States, bool] = {}
        self._lock = RLock()

    def ways(self, states: States) -> list[Way]:
        """Return where each character leads; those that a machine does not take are left out."""
        known = self._ways.get(states)
        if known is None:
            with self._lock:
                known = self._ways[states] = self._find_ways(states)
        return known

    def following(self, states: States, character: str) -> States | None:
        """Return the states behind one character; None where it is not taken."""
        letter = self.alphabet.letter(character)
        return next((w.target for w in self.ways(states) if letter in w.charset.letters), None)

    def accepts(self, states: States) -> bool:
        """Whether all conditions but the length hold."""
        known = self._accepting.get(states)
        if known is None:
            known = all(m.accepts(s) for m, s in zip(self._machines, states, strict=True))
            self._accepting[states] = known
        return known

    def is_free(self, states: States) -> bool:
        """Whether all conditions but the length hold for ever."""
        return all(m.is_free(s) for m, s in zip(self._machines, states, strict=True))

    def size(self, place: Place) -> Size:
        """Return what is missing at a place: the fewest characters, and the bytes of such a way.

        `NO_SIZE` where there is no way, or none was found within the limit of a search.
        """
        known = self._sizes.get(place)
        if known is None:
            with self._lock:
                known, _ = self._search(place, _MAX_FURTHER)
        return known

    def check(self) -> None:
        """Look whether there is any string at all.

        Raises:
            SchemaError: The search did not end within its limit.
        """
        with self._lock:
            _, has_ended = self._search(self.start, _MAX_SEARCH)
        if not has_ended:
            raise SchemaError(
                f"no string that satisfies all its patterns was found in {_MAX_SEARCH} places; "
                "simplify them",
                keyword="pattern",
            )

    def _bound(self, place: Place) -> Size:
        states, count = place
        missing = max(0, self.lowest - count)
        bound = (missing, missing)
        for machine, state in zip(self._machines, states, strict=True):
            bound = max(bound, machine.missing(state))
        return bound

    def _search(self, start: Place, limit: int) -> tuple[Size, bool]:
        """A* from a place to the end; remembers what it learns: (size, whether it is for sure)."""
        known = self._sizes
        if start in known:
            return known[start], True
        bound = self._bound(start)
        if bound >= NO_SIZE:
            known[start] = NO_SIZE
            return NO_SIZE, True
        if len(self._machines) < 2 and not self.lowest and all(m.is_exact for m in self._machines):
            known[start] = bound
            return bound, True
        order = numbers()
        gone: dict[Place, Size] = {start: (0, 0)}
        before: dict[Place, Place | None] = {start: None}
        settled: set[Place] = set()
        heap = [(bound, 0, next(order), start)]
        while heap and len(settled) < limit:
            _, _, _, place = heappop(heap)
            if place in settled:
                continue
            settled.add(place)
            states, count = place
            rest = known.get(place)
            if rest is None and count >= self.lowest and self.accepts(states):
                rest = (0, 0)
            if rest is not None and rest < NO_SIZE:
                whole = (gone[place][0] + rest[0], gone[place][1] + rest[1])
                here: Place | None = place
                while here is not None:
                    known[here] = (whole[0] - gone[here][0], whole[1] - gone[here][1])
                    here = before[here]
                return known[start], True
            for way in self.ways(states):
                target = (way.target, min(count + 1, self.lowest))
                so_far = (gone[place][0] + 1, gone[place][1] + way.charset.cost)
                ahead = known.get(target) or self._bound(target)
                if ahead < NO_SIZE and so_far < gone.get(target, NO_SIZE):
                    gone[target], before[target] = so_far, place
                    estimate = (so_far[0] + ahead[0], so_far[1] + ahead[1])
                    heappush(heap, (estimate, -so_far[0], next(order), target))
        if heap:
            known[start] = NO_SIZE
            return NO_SIZE, False
        known.update(dict.fromkeys(settled, NO_SIZE))
        return NO_SIZE, True

    def _find_ways(self, states: States) -> list[Way]:
        by_machine = [m.moves(s) for m, s in zip(self._machines, states, strict=True)]
        grouped: dict[States, list[int]] = {}
        for letter in range(len(self.alphabet.letters)):
            target = tuple(moves[letter] for moves in by_machine)
            if -1 not in target:
                grouped.setdefault(target, []).append(letter)
        return [Way(self._charset(tuple(ls)), target) for target, ls in grouped.items()]

    def _charset(self, letters: tuple[int, ...]) -> Charset:
        known = self._charsets.get(letters)
        if known is None:
            characters = union(r for letter in letters for r in self.alphabet.letters[letter])
            known = self._charsets[letters] = Charset(
                letters=letters,
                cost=min(self.alphabet.costs[letter] for letter in letters),
                escapes=tuple(escape for _, escape in self.spelling.letters(characters)),
                tree=utf8(self.spelling.plain(characters)),
            )
        return known


@lru_cache(maxsize=64)
def language_of(
    patterns: tuple[Pattern, ...], excluded: tuple[str, ...], lowest: int, spelling: Spelling
) -> Language:
    """Return a language, the same one where the same is asked for: what it learns is not small."""
    return Language(patterns, excluded, lowest, spelling)


def matches(pattern: Pattern, text: str) -> bool:
    """Whether a string is one that a pattern takes, as narrowly as the compiled pattern does."""
    language = language_of((pattern,), (), 0, RAW)
    states = language.start[0]
    for c in text:
        following = language.following(states, c)
        if following is None:
            return False
        states = following
    return language.accepts(states)
