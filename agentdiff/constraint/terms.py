r"""The terms of a regular expression, and how anchors leave them.

Anchors and look-aheads are taken out: `^a|b$` becomes `a.*|.*b` over all characters, so that a term
speaks of a whole string. A look-ahead right behind a leading `^` becomes a condition of its own, and
a positive one at the end of a search what it is: what follows.

Knows characters; no syntax and no automaton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentdiff.constraint.characters import ANY, CharacterClass, exactly
from agentdiff.errors import SchemaError

_MAX_WAYS = 256
"""Alternatives that anchors inside groups may lead to."""


class Unenforceable(Exception):
    """What a term says cannot be enforced; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a class."""

    these: CharacterClass


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """One term after another."""

    items: tuple[Term, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """One of several terms."""

    ways: tuple[Term, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """A term so many times."""

    item: Term
    fewest: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """The start of the string, or its end."""

    is_start: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A look-ahead."""

    body: Term
    is_negative: bool


Term = Chars | Seq | Alt | Repeat | Anchor | Ahead

EMPTY = Seq(())
NOTHING = Alt(())
"""The term that no string matches."""
ANYTHING = Repeat(Chars(exactly(ANY)), 0, None)
_NEWLINE = Repeat(Chars(exactly(((0x0A, 0x0A),))), 0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A set of strings: those that all of `needs` match as a whole, and none of `bars`."""

    text: str
    """As it was written."""
    needs: tuple[Term, ...]
    bars: tuple[Term, ...] = ()

    def negated(self) -> Pattern:
        """Return the strings that do not match.

        Raises:
            SchemaError: The pattern is more than one condition (it has look-aheads).
        """
        if len(self.needs) == 1 and not self.bars:
            return Pattern(f"not {self.text}", (), self.needs)
        if len(self.bars) == 1 and not self.needs:
            return Pattern(f"not {self.text}", self.bars)
        raise SchemaError(
            f"`pattern` {self.text!r:.80} has look-aheads and cannot be negated", keyword="pattern"
        )


def classes(term: Term) -> Iterator[CharacterClass]:
    """Yield the character classes of a term."""
    match term:
        case Chars(these):
            yield these
        case Seq(items) | Alt(items):
            for item in items:
                yield from classes(item)
        case Repeat(item):
            yield from classes(item)
        case _:
            raise AssertionError("a term of a machine has no assertions")


def leading_aheads(term: Term) -> tuple[list[Ahead], Term]:
    """Take the look-aheads right behind a leading `^` off a term."""
    items = _flat(term)
    if items and isinstance(items[0], Anchor) and items[0].is_start:
        aheads: list[Ahead] = []
        i = 1
        while i < len(items):
            item = items[i]
            if isinstance(item, Ahead):
                aheads.append(item)
            elif not (isinstance(item, Anchor) and item.is_start):
                break
            i += 1
        return aheads, Seq((items[0], *items[i:]))
    return [], term


def without_last_ahead(term: Term) -> Term:
    """Return the term with a positive look-ahead at its end read as what follows: the same search."""
    if isinstance(term, Alt):
        return Alt(tuple(without_last_ahead(way) for way in term.ways))
    items = _flat(term)
    if items and isinstance(items[-1], Ahead) and not items[-1].is_negative:
        return Seq((*items[:-1], items[-1].body))
    return term


def _flat(term: Term) -> list[Term]:
    """The items of a sequence, those of sequences in it among them."""
    if not isinstance(term, Seq):
        return [term]
    return [inner for item in term.items for inner in _flat(item)]


def whole_string(term: Term, *, lenient: bool) -> Term:
    """Turn a term that matches somewhere into one that matches the whole string, without anchors.

    Args:
        term: What to find.
        lenient: Whether `$` also takes a line feed before the end, as Python's does. For what must
            not match.
    """
    ways: list[Term] = []
    for items in _unanchored_ways(term):
        starts = [i for i, item in enumerate(items) if isinstance(item, Anchor) and item.is_start]
        ends = [i for i, item in enumerate(items) if isinstance(item, Anchor) and not item.is_start]
        begin, stop = starts[-1] + 1 if starts else 0, ends[0] if ends else len(items)
        outside = items[:begin] + items[max(stop, begin) :]
        if not all(isinstance(item, Anchor) or _may_be_empty(item) for item in outside):
            continue  # something would have to stand before the start or behind the end
        inside: list[Term] = list(items[begin:stop])
        if not starts:
            inside.insert(0, ANYTHING)
        if not ends:
            inside.append(ANYTHING)
        elif lenient:
            inside.append(_NEWLINE)
        ways.append(Seq(tuple(inside)))
    return ways[0] if len(ways) == 1 else Alt(tuple(ways))


def _unanchored_ways(term: Term) -> list[list[Term]]:
    """Alternatives as flat sequences in which anchors stand at the top level only."""
    if isinstance(term, Ahead):
        raise Unenforceable("a look-ahead is supported only right behind a leading `^`")
    if isinstance(term, Anchor) or not _has_assertion(term):
        return [[term]]
    if isinstance(term, Alt):
        found = [way for inner in term.ways for way in _unanchored_ways(inner)]
    elif isinstance(term, Seq):
        found: list[list[Term]] = [[]]
        for item in term.items:
            ways = _unanchored_ways(item)
            if len(found) * len(ways) > _MAX_WAYS:
                raise Unenforceable("it has too many anchors inside groups")
            found = [way + more for way in found for more in ways]
    elif isinstance(term, Repeat) and term.most is not None and term.most <= 1:
        found = _unanchored_ways(term.item) if term.most else [[]]
        if term.fewest == 0 and term.most:
            found.append([])
    else:
        raise Unenforceable("an anchor inside a repetition is not supported")
    if len(found) > _MAX_WAYS:
        raise Unenforceable("it has too many anchors inside groups")
    return found


def _has_assertion(term: Term) -> bool:
    match term:
        case Chars():
            return False
        case Seq(items) | Alt(items):
            return any(_has_assertion(item) for item in items)
        case Repeat(item):
            return _has_assertion(item)
        case Anchor() | Ahead():
            return True


def _may_be_empty(term: Term) -> bool:
    match term:
        case Seq(items):
            return all(_may_be_empty(item) for item in items)
        case Alt(ways):
            return any(_may_be_empty(way) for way in ways)
        case Repeat(item, fewest):
            return fewest == 0 or _may_be_empty(item)
        case _:
            return False
