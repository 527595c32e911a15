"""What the keywords of one schema say when it holds.

Each schema object is read once: into plain facts, claims that hold beside them, and splits, of which
one way must be taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentdiff.constraint.facts import (
    EMPTY,
    NEVER,
    Arrays,
    Case,
    Claim,
    Contains,
    ItemLayer,
    KeyLayer,
    Numbers,
    Objects,
    Strings,
    Wording,
)
from agentdiff.constraint.instances import TYPES, Json, distinct
from agentdiff.constraint.reading import FOREIGN, Schema
from agentdiff.constraint.references import Dialect

Part = Claim | Case


@dataclass(frozen=True, slots=True)
class Way:
    """One way to meet a split: all of these hold."""

    parts: tuple[Part, ...]
    is_plain: bool = False
    """Whether it sets a tag or a missing key apart: how branches are meant to differ."""


@dataclass(frozen=True, slots=True)
class Split:
    """One of these ways must be taken; they may overlap."""

    keyword: str
    path: str
    """Of the schema that the keyword stands in."""
    ways: tuple[Way, ...]
    is_partial: bool = False
    """Whether there are further ways that could not be said."""
    is_exclusive: bool = False
    """Whether only one of the ways may be open: each is one claim."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one claim comes to."""

    parts: tuple[Part, ...] = ()
    """All of these hold."""
    splits: tuple[Split, ...] = ()
    unevaluated: tuple[tuple[Literal["keys", "items"], Claim], ...] = ()
    """What keys or items must be that no in-place part of the schema speaks for."""
    is_narrowed: bool = False
    """Whether keywords bind that the dialect does not know."""


NOTHING = Reading()


def read(schema: Json, path: str, dialect: Dialect, target: Claim | None) -> Reading:
    """Return what a schema says.

    Args:
        schema: The schema.
        path: Its JSON pointer.
        dialect: How it is read.
        target: What its reference leads to.

    Raises:
        SchemaError: A keyword is malformed.
    """
    if isinstance(schema, bool):
        return NOTHING if schema else Reading((NEVER,))
    s = Schema(schema, path, dialect)
    if not s.words:
        return NOTHING
    own = plain_facts(s)
    applied = (*((target,) if target else ()), *s.branches_of("allOf"))
    parts: tuple[Part, ...] = (own, *applied) if own is not EMPTY else applied
    if applied and "properties" in s.words:
        first = next(k for k in s.words if k in {"properties", "allOf", "$ref"})
        if first != "properties":  # keys come in the order in which they are written down
            parts = (*applied, own)
    if contrary := s.one_of("not"):
        parts = (*parts, contrary.negated())
    is_narrowed = not FOREIGN[dialect].isdisjoint(s.words)
    return Reading(parts, _splits(s), _unevaluated(s), is_narrowed)


def plain_facts(s: Schema) -> Case:
    """Return the keywords that no other schema at the same place is part of."""
    words = s.words
    types, whole = s.types_of()
    values = None
    if "enum" in words:
        values = distinct(s.list_of("enum"))
    if "const" in words:
        const = distinct([words["const"]])
        values = const if values is None else {k: v for k, v in const.items() if k in values}
    facts = Case(
        types,
        values,
        numbers=_numbers(s, whole=whole),
        strings=_strings(s),
        arrays=_arrays(s),
        objects=_objects(s),
        is_typed="type" in words,
        spoken_of=_types_spoken_of(s),
    )
    return EMPTY if facts == EMPTY else facts


_NUMERIC = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_TEXTUAL = frozenset(("minLength", "maxLength", "pattern", "format"))
_OF_ARRAYS = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("uniqueItems", "contains", "unevaluatedItems"),
    )
)
_OF_OBJECTS = frozenset(
    (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    )
)
_DEPENDENT = frozenset(("dependencies", "dependentRequired", "dependentSchemas"))


def _types_spoken_of(s: Schema) -> frozenset[str]:
    names = (("number", _NUMERIC), ("string", _TEXTUAL), ("array", _OF_ARRAYS))
    found = [name for name, keywords in names if not keywords.isdisjoint(s.words)]
    if not _OF_OBJECTS.isdisjoint(s.words) or not _DEPENDENT.isdisjoint(s.words):
        found.append("object")
    return frozenset(found)


def _numbers(s: Schema, *, whole: bool) -> Numbers:
    if _NUMERIC.isdisjoint(s.words):
        return Numbers(whole=True) if whole else EMPTY.numbers
    facts = Numbers(whole=whole)
    for bound in s.bounds_of("minimum", "exclusiveMinimum"):
        facts = facts.joined(Numbers(lowest=bound))
    for bound in s.bounds_of("maximum", "exclusiveMaximum"):
        facts = facts.joined(Numbers(highest=bound))
    if "multipleOf" in s.words:
        step = s.number_of("multipleOf")
        if step <= 0:
            s.fail(f"`multipleOf` must be above 0, got {s.words['multipleOf']!r:.80}", "multipleOf")
        facts = facts.joined(Numbers(multiples=(step,)))
    return facts


def _strings(s: Schema) -> Strings:
    if _TEXTUAL.isdisjoint(s.words):
        return EMPTY.strings
    return Strings(
        s.count_of("minLength") or 0,
        s.count_of("maxLength"),
        (Wording(s.text_of("pattern"), s.path),) if "pattern" in s.words else (),
        (Wording(s.text_of("format"), s.path),) if "format" in s.words else (),
    )


def _arrays(s: Schema) -> Arrays:
    if _OF_ARRAYS.isdisjoint(s.words):
        return EMPTY.arrays
    prefix, rest = s.prefix_of()
    layer = ItemLayer(s.branches_of(prefix), s.one_of(rest))
    contains = s.one_of("contains")
    fewest, most = s.count_of("minContains"), s.count_of("maxContains")
    bound = None
    if contains is not None and (fewest != 0 or most is not None):
        bound = Contains(contains, 1 if fewest is None else fewest, most)
    return Arrays(
        s.count_of("minItems") or 0,
        s.count_of("maxItems"),
        (layer,) if layer.first or layer.rest else (),
        (bound,) if bound else (),
        s.words.get("uniqueItems", False) is True,
    )


def _objects(s: Schema) -> Objects:
    if _OF_OBJECTS.isdisjoint(s.words):
        return EMPTY.objects
    properties = s.claims_of("properties")
    patterns = tuple(
        (Wording(pattern, s.path), claim)
        for pattern, claim in s.claims_of("patternProperties").items()
    )
    rest, names = s.one_of("additionalProperties"), s.one_of("propertyNames")
    layer = KeyLayer(properties, patterns, rest, declares=bool(properties))
    return Objects(
        (layer,) if properties or patterns or rest else (),
        s.names_of("required"),
        (names,) if names else (),
        s.count_of("minProperties") or 0,
        s.count_of("maxProperties"),
    )


def _splits(s: Schema) -> tuple[Split, ...]:
    words = s.words
    splits: list[Split] = []
    for keyword in ("anyOf", "oneOf"):
        if keyword in words:
            ways = tuple(Way((branch,)) for branch in s.branches_of(keyword))
            splits.append(Split(keyword, s.path, ways, is_exclusive=keyword == "oneOf"))
    condition = s.one_of("if")
    if condition is not None and ("then" in words or "else" in words):
        then, other = s.one_of("then"), s.one_of("else")
        ways = (
            Way((condition, then) if then else (condition,)),
            Way((condition.negated(), other) if other else (condition.negated(),)),
        )
        splits.append(Split("if", s.path, ways))
    names, claims = s.dependents_of()
    keyword = next((k for k in ("dependentRequired", "dependentSchemas") if k in words), "")
    for name in dict.fromkeys([*names, *claims]):
        with_it = (name, *names.get(name, ()))
        present: tuple[Part, ...] = (Case(frozenset(("object",)), objects=requires(*with_it)),)
        if name in claims:
            present = (*present, claims[name])
        no_object = Way((Case(TYPES - {"object"}),))
        absent = Way((Case(frozenset(("object",)), objects=lacks(name)),))
        # Without the key first: what is not said to be there is more often absent.
        splits.append(Split(keyword or "dependencies", s.path, (no_object, absent, Way(present))))
    return tuple(splits)


def _unevaluated(s: Schema) -> tuple[tuple[Literal["keys", "items"], Claim], ...]:
    keys, items = s.one_of("unevaluatedProperties"), s.one_of("unevaluatedItems")
    return (*((("keys", keys),) if keys else ()), *((("items", items),) if items else ()))


def requires(*names: str) -> Objects:
    """Objects with these keys."""
    return Objects(required=tuple(dict.fromkeys(names)))


def lacks(name: str) -> Objects:
    """Objects without this key."""
    return Objects((KeyLayer({name: NEVER}),))
