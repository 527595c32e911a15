"""Objects of a case: declared keys, keys by pattern and all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from agentdiff.constraint.automaton import END, NOWHERE, Node, choice
from agentdiff.constraint.checking import claims_of, pattern_of
from agentdiff.constraint.facts import Case, Claim, Goal, Objects, Strings, Wording
from agentdiff.constraint.instances import as_object, distinct
from agentdiff.constraint.lists import STRING_KINDS, gaps
from agentdiff.constraint.members import Member, Others, members
from agentdiff.constraint.unordered import unordered_members
from agentdiff.errors import SchemaError

if TYPE_CHECKING:
    from agentdiff.constraint.schema import Compiler
    from agentdiff.constraint.spot import Spot

_STRING = frozenset(("string",))
MAX_FREE_KEYS = 10
"""Declared keys up to which an object takes any order; with more the order of the schema holds, lest
a step that looks at every order needs more states than an automaton may have."""
_MAX_PATTERNS = 4
"""Patterns of keys up to which every combination of them is written out."""


def object_node(
    compiler: Compiler, case: Case, after: Node, spot: Spot, *, is_shared: bool, path: str
) -> Node:
    """Return the node where an object of a case begins."""
    facts = case.objects
    values = map(as_object, case.excluded.values())
    counts = {len(value) for value in values if value is not None}
    return choice(
        [
            _object(compiler, replace(facts, fewest=low, most=high), after, spot, is_shared, path)
            for low, high in gaps(facts.fewest, facts.most, counts)
        ]
    )


def _object(
    compiler: Compiler, facts: Objects, after: Node, spot: Spot, is_shared: bool, path: str
) -> Node:
    is_counted = facts.fewest > len(facts.required) or facts.most is not None
    is_free = compiler.key_order == "free" and len(facts.declared) <= MAX_FREE_KEYS
    build = compiler.called if is_shared or is_counted or is_free else compiler.value
    required = frozenset(facts.required)
    declared: list[Member] = []
    for name in compiler.notation.ordered(facts.declared):
        goal, _ = claims_of(facts, name)
        is_allowed = not facts.names or compiler.cases.holds(facts.names, name)
        if not is_allowed or any(claim.never for claim in goal):
            if name in required:
                return NOWHERE
            continue
        below = compiler.below(spot, name)
        declared.append(
            Member(
                compiler.notation.spell_key(name, path=path),
                lambda after, goal=goal, below=below: build(goal, after, below),
                name in required,
            )
        )
    write = unordered_members if is_free else members
    return write(
        declared,
        list(_others(compiler, facts, spot, path)),
        fewest=facts.fewest,
        most=facts.most,
        layout=compiler.layout(spot),
        after=after,
    )


def _others(compiler: Compiler, facts: Objects, spot: Spot, path: str) -> Iterator[Others]:
    """Keys beyond the declared ones, by which patterns they match."""
    # A key that is declared, or bound by name, does not come back among the others, even if it
    # dropped out.
    excluded = distinct([*facts.declared, *spot.grounding.named])
    below = compiler.below(spot, None)
    keys = compiler.cases.of(facts.names)
    for matching, others, goal in _groups(compiler, facts):
        if any(claim.never for claim in goal):
            continue
        value = compiler.part(goal, below)
        patterns = (*matching, *(replace(w, holds=not w.holds) for w in others))
        string = Case(_STRING, excluded=excluded, strings=Strings(patterns=patterns))
        for key in keys:
            both = key.joined(string)
            if both is not None:
                key = _written(compiler, both, path)
                if patterns and key(END).is_dead:  # looks now whether the patterns can be enforced
                    continue
                yield Others(
                    key,
                    value,
                    lambda both=both: [
                        _written(compiler, both.joined(kind), path) for kind in STRING_KINDS
                    ],
                )


def _written(compiler: Compiler, key: Case | None, path: str) -> Callable[[Node], Node]:
    if key is None:
        return lambda _: NOWHERE
    return lambda after: compiler.key(key, after, path)


def _groups(
    compiler: Compiler, facts: Objects
) -> Iterator[tuple[tuple[Wording, ...], tuple[Wording, ...], Goal]]:
    """(patterns that a key matches, patterns that it does not, what its value must be)."""
    wordings = tuple(dict.fromkeys(w for layer in facts.layers for w, _ in layer.patterns))
    is_closed = (
        not compiler.open_objects
        and any(layer.declares for layer in facts.layers)
        and all(layer.rest is None for layer in facts.layers)
    )
    negatable = [w for w in wordings if _can_negate(w)]
    most = len(wordings) if len(wordings) <= _MAX_PATTERNS else 1
    for size in range(most + 1):
        for matching in combinations(wordings, size):
            if is_closed and not matching:
                continue
            others = tuple(w for w in negatable if w not in matching)
            maybe = frozenset(wordings) - set(matching) - set(others)
            claims: list[Claim] = []
            for layer in facts.layers:
                is_other = True
                for wording, claim in layer.patterns:
                    if wording in matching or wording in maybe:
                        claims.append(claim)
                        is_other &= wording in maybe
                if is_other and layer.rest is not None:
                    claims.append(layer.rest)
            yield matching, others, tuple(dict.fromkeys(claims))


def _can_negate(wording: Wording) -> bool:
    try:
        pattern_of(replace(wording, holds=not wording.holds))
    except SchemaError:
        return False
    return True
