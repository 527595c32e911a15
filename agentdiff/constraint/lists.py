"""Lists of a case: items by position, items that are counted, items that must differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from string import ascii_letters, digits
from typing import TYPE_CHECKING

from agentdiff.constraint.arrays import array, array_of_kinds, array_of_texts, array_with
from agentdiff.constraint.automaton import Node, choice
from agentdiff.constraint.checking import fits
from agentdiff.constraint.containers import Part
from agentdiff.constraint.facts import Arrays, Case, Goal, Numbers, Strings, Wording
from agentdiff.constraint.instances import Json, as_list, distinct
from agentdiff.constraint.numbers import Bound
from agentdiff.errors import SchemaError

if TYPE_CHECKING:
    from agentdiff.constraint.schema import Compiler
    from agentdiff.constraint.spot import Spot

STRING_KINDS = (
    *(
        Case(frozenset(("string",)), strings=Strings(patterns=(Wording(f"^[{c}]", ""),)))
        for c in (*ascii_letters, *digits, "^a-zA-Z0-9")
    ),
    Case(frozenset(("string",)), strings=Strings(highest=0)),
)
"""Strings by their first character."""
_MAX_COUNTED = 500
"""Items that a list with `contains` may have to have."""


def list_node(
    compiler: Compiler, case: Case, after: Node, spot: Spot, *, is_shared: bool, path: str
) -> Node:
    """Return the node where a list of a case begins."""
    facts = case.arrays
    values = map(as_list, case.excluded.values())
    lengths = {len(value) for value in values if value is not None}
    return choice(
        [
            _list(compiler, replace(facts, fewest=low, most=high), after, spot, is_shared, path)
            for low, high in gaps(facts.fewest, facts.most, lengths)
        ]
    )


def gaps(fewest: int, most: int | None, excluded: set[int]) -> list[tuple[int, int | None]]:
    """Return the ranges of counts between those that are ruled out."""
    found: list[tuple[int, int | None]] = []
    for count in sorted(excluded):
        if count >= fewest and (most is None or count <= most):
            if fewest < count:
                found.append((fewest, count - 1))
            fewest = count + 1
    if most is None or fewest <= most:
        found.append((fewest, most))
    return found


def _list(
    compiler: Compiler, facts: Arrays, after: Node, spot: Spot, is_shared: bool, path: str
) -> Node:
    layout = compiler.layout(spot)
    named = [int(s) + 1 for s in spot.grounding.named if s.isdecimal()]
    distinct = max([*(len(layer.first) for layer in facts.layers), *named, 0])
    fewest, most = facts.fewest, facts.most
    if facts.is_unique and (most is None or most > 1) and not _differ(compiler, facts, distinct):
        if not distinct and not facts.contains:
            return _unique(compiler, facts, after, spot, path)
        if fewest > 1:
            raise SchemaError(
                "`uniqueItems` is not supported beside `prefixItems` or `contains` "
                "where there must be several items",
                path=path,
                keyword="uniqueItems",
            )
        most = 1

    def segment(index: int) -> str | None:
        return str(index) if index < distinct else None

    if facts.contains:
        if fewest > _MAX_COUNTED or any(c.fewest > _MAX_COUNTED for c in facts.contains):
            raise SchemaError(
                f"`contains` is not supported where more than {_MAX_COUNTED} items are counted",
                path=path,
                keyword="contains",
            )
        if len(facts.contains) > 3:
            raise SchemaError(
                "more than three `contains` at one place", path=path, keyword="contains"
            )

        def counted(index: int, kinds: frozenset[int]) -> Part:
            claims = list(facts.item(index))
            for k, bound in enumerate(facts.contains):
                if k in kinds:
                    claims.append(bound.claim)
                elif bound.most is not None:
                    claims.append(bound.claim.negated())
            goal = tuple(dict.fromkeys(claims))
            return compiler.part(goal, compiler.below(spot, segment(index)), is_shared=True)

        return array_with(
            counted,
            bounds=[(c.fewest, c.most) for c in facts.contains],
            distinct=distinct,
            fewest=fewest,
            most=most,
            layout=layout,
            after=after,
        )

    def item(index: int) -> Part:
        below = compiler.below(spot, segment(index))
        return compiler.part(facts.item(index), below, is_shared=is_shared)

    return array(item, distinct=distinct, fewest=fewest, most=most, layout=layout, after=after)


def _differ(compiler: Compiler, facts: Arrays, distinct: int) -> bool:
    """Whether it is proved that no two items can be the same."""
    most = facts.most
    if most is None or most > min(distinct, 8):
        return False
    goals = [facts.item(i) for i in range(most)]
    return all(
        compiler.cases.is_empty(tuple(dict.fromkeys(goals[i] + goals[j])))
        for i in range(most)
        for j in range(i)
    )


def _unique(compiler: Compiler, facts: Arrays, after: Node, spot: Spot, path: str) -> Node:
    """A list of different items.

    All that is known of a value while the next one is written is its kind. Where there are finitely
    many values, each is a kind of its own; else strings differ by their first character, numbers by
    size, and of everything else there is one.
    """
    below, layout = compiler.below(spot, None), compiler.layout(spot)
    goal: Goal = facts.item(0)
    cases = compiler.cases.of(goal)
    values = _values(compiler, cases)
    if values is not None:
        return array_of_texts(
            [compiler.spell(value, below, path) for value in values],
            fewest=facts.fewest,
            most=facts.most,
            layout=layout,
            after=after,
        )
    kinds = [build for kind in _KINDS if (build := _of_kind(compiler, cases, kind, below, path))]
    if len(kinds) < facts.fewest:
        raise SchemaError(
            f"`uniqueItems` is not supported with these items where there must be {facts.fewest}",
            path=path,
            keyword="uniqueItems",
        )
    return array_of_kinds(kinds, fewest=facts.fewest, most=facts.most, layout=layout, after=after)


def _values(compiler: Compiler, cases: tuple[Case, ...]) -> list[Json] | None:
    """All values of some cases; None when they are not listed."""
    found: list[Json] = []
    for case in cases:
        if case.values is not None:
            values = case.values.values()
            found += [v for v in values if fits(v, case, compiler.cases.holds)]
        elif case.types <= {"null", "boolean"}:
            found += [v for v in (None, True, False) if fits(v, case, compiler.cases.holds)]
        else:
            return None
    return list(distinct(found).values())


def _of_kind(
    compiler: Compiler, cases: tuple[Case, ...], kind: Case, spot: Spot, path: str
) -> Callable[[Node], Node] | None:
    """The values of some cases that are of a kind; None when there are none, at first sight."""
    both = [joined for case in cases if (joined := case.joined(kind)) is not None]
    if not both:
        return None
    return lambda after: choice(
        [compiler.case(c, after, spot, is_shared=True, path=path) for c in both]
    )


def _number_kinds() -> list[Case]:
    """Numbers by size: below 0, from 0, from 1, .. from 9, from 10, from 20, .. from 1000 on."""
    cuts = [Decimal(cut) for cut in (*range(10), *range(10, 100, 10), 100, 1000)]
    kinds = [Numbers(highest=Bound(cuts[0], is_open=True)), Numbers(lowest=Bound(cuts[-1]))]
    kinds += [Numbers(Bound(a), Bound(b, is_open=True)) for a, b in pairwise(cuts)]
    return [Case(frozenset(("number",)), numbers=numbers) for numbers in kinds]


_KINDS = (
    *STRING_KINDS,
    *(
        Case(frozenset(("boolean",)), excluded={("boolean", value): value})
        for value in (True, False)
    ),
    *(Case(frozenset((name,))) for name in ("null", "array", "object")),
    *_number_kinds(),
)
"""Kinds of values that have nothing in common."""
