"""Strings and numbers of a case."""

from __future__ import annotations

from decimal import Decimal
from math import lcm
from string import ascii_letters, digits
from typing import TYPE_CHECKING

from agentdiff.constraint.automaton import NOWHERE, Node, choice, literal
from agentdiff.constraint.checking import at_path, format_of, pattern_of
from agentdiff.constraint.facts import Case, Numbers, Strings
from agentdiff.constraint.instances import is_number
from agentdiff.constraint.numbers import Bound, integer_bounds, number
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.strings import Quotes, StringBody, bare_string, string
from agentdiff.errors import SchemaError

if TYPE_CHECKING:
    from agentdiff.constraint.grounding import Grounding
    from agentdiff.constraint.schema import Compiler
    from agentdiff.constraint.terms import Pattern


def string_node(
    compiler: Compiler, case: Case, after: Node, grounding: Grounding, path: str
) -> Node:
    """Return the node where a string of a case begins."""
    facts, quotes = case.strings, compiler.notation.quotes
    excluded, patterns = _conditions(case)
    sources = grounding.sources
    if len(patterns) == 1 and facts.patterns and not excluded and not sources:
        first = _FIRST.get(facts.patterns[0].text)
        if first is not None and facts.patterns[0].holds:
            return _beginning_with(first, facts, after, quotes)
    lowest, highest = facts.lowest, facts.highest
    try:
        if sources:
            span = compiler.sources.span
            return span(sources, lowest, highest, after, patterns=patterns, excluded=excluded)
        return string(lowest, highest, after, patterns=patterns, excluded=excluded, quotes=quotes)
    except SchemaError as error:
        raise at_path(error, path) from None


def bare_key_node(case: Case, pattern: str, after: Node, path: str) -> Node:
    """Return the node where a key of a case begins that has no quotes and matches a pattern."""
    excluded, patterns = _conditions(case)
    lowest, highest = case.strings.lowest, case.strings.highest
    patterns.append(parse_pattern(pattern))
    try:
        return bare_string(lowest, highest, after, patterns=patterns, excluded=excluded)
    except SchemaError as error:
        raise at_path(error, path) from None


def _conditions(case: Case) -> tuple[list[str], list[Pattern]]:
    """(strings that a case rules out, patterns that hold for it)."""
    facts = case.strings
    excluded = [value for value in case.excluded.values() if isinstance(value, str)]
    patterns = [pattern_of(wording) for wording in facts.patterns]
    patterns += [pattern for w in facts.formats if (pattern := format_of(w)) is not None]
    return excluded, patterns


_FIRST = {f"^[{c}]": c for c in (*ascii_letters, *digits)}
"""Patterns that only say what the first character is: so kinds of strings are told apart."""


def _beginning_with(first: str, facts: Strings, after: Node, quotes: Quotes) -> Node:
    """A string with this first character: much cheaper than as a pattern."""
    highest = None if facts.highest is None else facts.highest - 1
    if after.is_dead or (highest is not None and highest < max(0, facts.lowest - 1)):
        return NOWHERE
    rest = StringBody(max(0, facts.lowest - 1), highest, after, quotes).node(0)
    return literal(quotes.mark + first.encode(), rest)


def number_node(case: Case, after: Node, path: str) -> Node:
    """Return the node where a number of a case begins."""
    facts = case.numbers
    ways: list[Node] = []
    step = _common_multiple(facts.multiples)
    for lowest, highest in _gaps(facts, [v for v in case.excluded.values() if is_number(v)]):
        if facts.whole:
            lowest, highest = integer_bounds(lowest, highest)
        try:
            ways.append(number(lowest, highest, whole=facts.whole, after=after, multiple_of=step))
        except SchemaError as error:
            raise at_path(error, path) from None
    return choice(ways) if ways else NOWHERE


def _gaps(facts: Numbers, excluded: list[float]) -> list[tuple[Bound | None, Bound | None]]:
    """The ranges between numbers that are ruled out."""
    cuts = sorted(Decimal(str(value)) for value in excluded)
    inner = [Bound(cut, is_open=True) for cut in cuts]
    lows: list[Bound | None] = [facts.lowest, *inner]
    highs: list[Bound | None] = [*inner, facts.highest]
    gaps: list[tuple[Bound | None, Bound | None]] = []
    for low, high in zip(lows, highs, strict=True):
        both = Numbers(low, high).joined(Numbers(facts.lowest, facts.highest))
        gaps.append((both.lowest, both.highest))
    return gaps


def _common_multiple(steps: tuple[Decimal, ...]) -> Decimal | None:
    """The smallest number that is a multiple of all of these."""
    if not steps:
        return None
    scale = max(-min(0, int(step.as_tuple().exponent)) for step in steps)
    return Decimal(lcm(*(int(step.scaleb(scale)) for step in steps))).scaleb(-scale)
