"""Whether a ready-made value fits: the values of `enum` and `const`, and the names of keys.

Three answers: yes, no, and not known. A yes can be relied on when values are admitted, a no when
something is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import lru_cache

from agentdiff.constraint.facts import Arrays, Case, Claim, Goal, Numbers, Objects, Strings, Wording
from agentdiff.constraint.formats import FORMATS
from agentdiff.constraint.instances import Json, distinct, identity, is_whole, type_of
from agentdiff.constraint.language import matches as takes
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.terms import Pattern
from agentdiff.errors import SchemaError

Verdict = bool | None
"""None: not known."""
Holds = Callable[[Goal, Json], Verdict]
"""Whether a value meets a goal."""


def fits(value: Json, case: Case, holds: Holds) -> Verdict:
    """Return whether a value fits a case."""
    name = type_of(value)
    if name not in case.types:
        return False
    if case.excluded and identity(value) in case.excluded:
        return False
    if case.values is not None and identity(value) not in case.values:
        return False
    match name:
        case "number":
            return number_fits(value, case.numbers)
        case "string":
            return string_fits(value, case.strings)
        case "array":
            return every(_array_verdicts(value, case.arrays, holds))
        case "object":
            return every(_object_verdicts(value, case.objects, holds))
        case _:
            return True


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """Return whether all are a yes; a no ends it."""
    result: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def number_fits(value: Json, facts: Numbers) -> bool:
    """Return whether a number fits."""
    if facts.whole and not is_whole(value):
        return False
    exact = Decimal(str(value))
    for bound, sign in ((facts.lowest, 1), (facts.highest, -1)):
        if bound is not None:
            ahead = sign * (exact - bound.value)
            if ahead < 0 or (ahead == 0 and bound.is_open):
                return False
    return all(exact % step == 0 for step in facts.multiples)


def string_fits(value: str, facts: Strings) -> Verdict:
    """Return whether a string fits; a format is never denied, since to some it says nothing."""
    if len(value) < facts.lowest or (facts.highest is not None and len(value) > facts.highest):
        return False
    return every(
        (
            *(matches(value, wording) for wording in facts.patterns),
            *(True if _has_format(value, wording) else None for wording in facts.formats),
        )
    )


def _array_verdicts(value: list[Json], facts: Arrays, holds: Holds) -> Iterator[Verdict]:
    yield facts.fewest <= len(value) <= (len(value) if facts.most is None else facts.most)
    if facts.is_unique:
        yield len(distinct(value)) == len(value)
    for i, item in enumerate(value):
        if goal := facts.item(i):
            yield holds(goal, item)
    for bound in facts.contains:
        found = [holds((bound.claim,), item) for item in value]
        sure, possible = found.count(True), len(found) - found.count(False)
        if possible < bound.fewest or (bound.most is not None and sure > bound.most):
            yield False
        elif sure < bound.fewest or (bound.most is not None and possible > bound.most):
            yield None


def _object_verdicts(value: dict[str, Json], facts: Objects, holds: Holds) -> Iterator[Verdict]:
    yield facts.fewest <= len(value) <= (len(value) if facts.most is None else facts.most)
    yield all(name in value for name in facts.required)
    for name, inner in value.items():
        if facts.names:
            yield holds(facts.names, name)
        goal, is_sure = claims_of(facts, name)
        verdict = holds(goal, inner) if goal else True
        yield None if verdict is False and not is_sure else verdict


def claims_of(facts: Objects, name: str) -> tuple[Goal, bool]:
    """Return what the value of a key must be.

    The second is whether all of it must hold for sure: where it is not known whether a pattern
    matches the key, what holds if it does and what holds if it does not are both in it.
    """
    claims: list[Claim] = []
    is_sure = True
    for layer in facts.layers:
        is_other = True
        if name in layer.properties:
            claims.append(layer.properties[name])
            is_other = False
        for wording, claim in layer.patterns:
            verdict = matches(name, wording)
            if verdict is not False:
                claims.append(claim)
                is_other &= verdict is None
                is_sure &= verdict is not None
        if is_other and layer.rest is not None:
            claims.append(layer.rest)
    return tuple(dict.fromkeys(claims)), is_sure


def pattern_of(wording: Wording) -> Pattern:
    """Return the pattern of a wording, or its opposite.

    Raises:
        SchemaError: It is malformed or cannot be enforced.
    """
    try:
        return _parsed(wording.text, wording.holds)
    except SchemaError as error:
        raise at_path(error, wording.path) from None


@lru_cache(maxsize=1024)
def _parsed(text: str, holds: bool) -> Pattern:
    pattern = parse_pattern(text)
    return pattern if holds else pattern.negated()


def format_of(wording: Wording) -> Pattern | None:
    """Return the pattern of a format; None for one that says nothing.

    Raises:
        SchemaError: JSON Schema knows the format, and it cannot be enforced.
    """
    name = _NARROWER.get(wording.text, wording.text)
    if name in FORMATS:
        return FORMATS[name]
    if name in _OTHER_FORMATS:
        return _parsed(_OTHER_FORMATS[name], True)
    return None


_NARROWER = {
    "iri": "uri",
    "iri-reference": "uri-reference",
    "idn-email": "email",
    "idn-hostname": "hostname",
}
"""Formats by others that they include."""
_POINTER = "(/([^~/]|~[01])*)*"
_OTHER_FORMATS = {
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9][0-9]{{0,8}})(#|{_POINTER})$",
    "regex": "^[A-Za-z0-9 _-]*$",
    "uri-template": r"^([A-Za-z0-9._~:/?#@!$&*+,;=-]|\{[A-Za-z0-9_]+\})*$",
}


def matches(value: str, wording: Wording) -> Verdict:
    """Return whether a string matches a pattern for every reader, for none, or that is not known."""
    try:
        if takes(pattern_of(wording), value):
            return True
        opposite = Wording(wording.text, wording.path, not wording.holds)
        return False if takes(pattern_of(opposite), value) else None
    except SchemaError:
        return None


def _has_format(value: str, wording: Wording) -> bool:
    pattern = format_of(wording)
    return pattern is None or takes(pattern, value)


def at_path(error: SchemaError, path: str) -> SchemaError:
    """Return the same error for a place in the schema."""
    message = str(error).removesuffix(f" (at `#{error.path}`)")
    return SchemaError(message, path=path, keyword=error.keyword)
