"""What the keywords of one schema say when it does not hold: at least one of them must fail.

That a keyword fails is said in facts and claims like everything else. Where that cannot be, the way
is left out and the split marked as partial: fewer values than there are, never more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from agentdiff.constraint.checking import pattern_of
from agentdiff.constraint.facts import (
    ALWAYS,
    Arrays,
    Case,
    Claim,
    Contains,
    ItemLayer,
    KeyLayer,
    Numbers,
    Objects,
    Stray,
    Strings,
    Wording,
)
from agentdiff.constraint.instances import TYPES, Json, as_object, distinct
from agentdiff.constraint.keywords import (
    NOTHING,
    Reading,
    Split,
    Way,
    lacks,
    requires,
)
from agentdiff.constraint.numbers import Bound
from agentdiff.constraint.reading import FOREIGN, Schema
from agentdiff.constraint.references import Dialect
from agentdiff.errors import SchemaError

_NUMBER, _STRING = frozenset(("number",)), frozenset(("string",))
_ARRAY, _OBJECT = frozenset(("array",)), frozenset(("object",))
_TAGS = frozenset(("const", "enum"))
_MAX_PAIRS = 100
"""Pairs of `oneOf` branches that may both hold where the `oneOf` must fail; further ones are left
out."""


def read_contrary(schema: Json, path: str, dialect: Dialect, target: Claim | None) -> Reading:
    """Return what it says that a schema does not hold; the arguments are those of `read`.

    Raises:
        SchemaError: A keyword is malformed.
    """
    if isinstance(schema, bool):
        return Reading((Claim(False, path),)) if schema else NOTHING
    s = Schema(schema, path, dialect)
    if target is not None and len(s.words) == 1:
        return Reading((target.negated(),))
    ways: list[Way] = []
    is_partial = False
    keywords = [k for k in s.words if k not in FOREIGN[dialect]]
    for keyword in keywords:
        for way in _failures(s, keyword, target):
            if way is None:
                is_partial = True
            else:
                ways.append(way)
    is_partial |= len(keywords) < len(s.words)
    return Reading((), (Split("not", path, tuple(ways), is_partial),))


def _failures(s: Schema, keyword: str, target: Claim | None) -> Iterator[Way | None]:
    """The ways in which one keyword fails; None for those that cannot be said."""
    match keyword:
        case "$ref" | "$dynamicRef" | "$recursiveRef":
            if target is not None:
                yield Way((target.negated(),))
        case "type":
            types, whole = s.types_of()
            if types < TYPES:
                yield Way((Case(TYPES - types),), is_plain=True)
            if whole:
                yield None  # numbers that are not whole
        case "enum":
            yield Way((Case(excluded=distinct(s.list_of("enum"))),), is_plain=True)
        case "const":
            yield Way((Case(excluded=distinct([s.words["const"]])),), is_plain=True)
        case "allOf":
            for branch in s.branches_of(keyword):
                yield Way((branch.negated(),))
        case "anyOf":
            yield Way(tuple(branch.negated() for branch in s.branches_of(keyword)))
        case "oneOf":
            branches = s.branches_of(keyword)
            yield Way(tuple(branch.negated() for branch in branches))
            pairs = list(combinations(branches, 2))
            for pair in pairs[:_MAX_PAIRS]:
                yield Way(pair)
            if len(pairs) > _MAX_PAIRS:
                yield None
        case "not":
            yield Way((s.claim(s.words["not"], "not"),))
        case "if":
            condition = s.claim(s.words["if"], "if")
            then, other = s.one_of("then"), s.one_of("else")
            if then is not None:
                yield Way((condition, then.negated()))
            if other is not None:
                yield Way((condition.negated(), other.negated()))
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" | "multipleOf":
            yield from _numbers(s, keyword)
        case "minLength" | "maxLength" | "pattern" | "format":
            yield from _strings(s, keyword)
        case "then" | "else" | "minContains" | "maxContains":
            return  # said by the keyword that they belong to
        case _:
            yield from _arrays(s, keyword)
            yield from _objects(s, keyword)


def _numbers(s: Schema, keyword: str) -> Iterator[Way | None]:
    if keyword == "multipleOf":
        yield None
        return
    is_lower = keyword in {"minimum", "exclusiveMinimum"}
    if isinstance(s.words[keyword], bool):  # draft 4: said with the bound itself
        return
    is_open = keyword.startswith("exclusive")
    flag = "exclusiveMinimum" if is_lower else "exclusiveMaximum"
    contrary = Bound(s.number_of(keyword), is_open=not (is_open or s.words.get(flag) is True))
    facts = Numbers(highest=contrary) if is_lower else Numbers(lowest=contrary)
    yield Way((Case(_NUMBER, numbers=facts),))


def _strings(s: Schema, keyword: str) -> Iterator[Way | None]:
    if keyword == "format":  # to some an annotation only
        yield None
        return
    if keyword == "pattern":
        wording = Wording(s.text_of(keyword), s.path, holds=False)
        try:
            pattern_of(wording)
        except SchemaError:
            yield None
        else:
            yield Way((Case(_STRING, strings=Strings(patterns=(wording,))),))
        return
    count = s.count_of(keyword) or 0
    if keyword == "maxLength":
        yield Way((Case(_STRING, strings=Strings(lowest=count + 1)),))
    elif count:
        yield Way((Case(_STRING, strings=Strings(highest=count - 1)),))


def _arrays(s: Schema, keyword: str) -> Iterator[Way | None]:
    def way(facts: Arrays) -> Way:
        return Way((Case(_ARRAY, arrays=facts),))

    prefix, rest = ("", "")
    if keyword in {"items", "prefixItems", "additionalItems"}:
        prefix, rest = s.prefix_of()
    match keyword:
        case "minItems":
            count = s.count_of(keyword) or 0
            if count:
                yield way(Arrays(most=count - 1))
        case "maxItems":
            yield way(Arrays(fewest=(s.count_of(keyword) or 0) + 1))
        case "uniqueItems":
            if s.words[keyword] is True:
                yield None
        case "contains":
            claim = s.claim(s.words["contains"], "contains")
            fewest, most = s.count_of("minContains"), s.count_of("maxContains")
            if fewest != 0:
                yield way(Arrays(contains=(Contains(claim, 0, (fewest or 1) - 1),)))
            if most is not None and "maxContains" not in FOREIGN[s.dialect]:
                yield way(Arrays(contains=(Contains(claim, most + 1),)))
        case "unevaluatedItems":
            yield None
        case _ if keyword == prefix:
            for i, claim in enumerate(s.branches_of(prefix)):
                layer = ItemLayer((*(ALWAYS,) * i, claim.negated()))
                yield way(Arrays(fewest=i + 1, layers=(layer,)))
        case _ if keyword == rest:
            if s.words.get(prefix):
                yield None  # that an item behind the first ones fails
            else:
                yield way(Arrays(contains=(Contains(s.claim(s.words[rest], rest).negated()),)))
        case _:
            pass


def _objects(s: Schema, keyword: str) -> Iterator[Way | None]:
    def way(facts: Objects, *claims: Claim, is_plain: bool = False) -> Way:
        return Way((Case(_OBJECT, objects=facts), *claims), is_plain)

    match keyword:
        case "properties":
            for name, claim in s.claims_of(keyword).items():
                facts = Objects((KeyLayer({name: claim.negated()}),), required=(name,))
                is_tag = not _TAGS.isdisjoint(as_object(claim.schema) or ())
                yield way(facts, is_plain=is_tag)
        case "required":
            for name in s.names_of(keyword):
                yield way(lacks(name), is_plain=True)
        case "minProperties":
            count = s.count_of(keyword) or 0
            if count:
                yield way(Objects(most=count - 1))
        case "maxProperties":
            yield way(Objects(fewest=(s.count_of(keyword) or 0) + 1))
        case "additionalProperties":
            names = frozenset(s.map_of("properties"))
            patterns = tuple(Wording(p, s.path) for p in s.map_of("patternProperties"))
            claim = s.claim(s.words[keyword], keyword).negated()
            if not claim.never:
                yield way(Objects(strays=(Stray(names, patterns, claim),)))
        case "patternProperties" | "propertyNames" | "unevaluatedProperties":
            yield None
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            names, claims = s.dependents_of()
            for name in s.map_of(keyword):
                for other in names.get(name, ()):
                    yield way(requires(name).joined(lacks(other)))
                if name in claims:
                    yield way(requires(name), claims[name].negated())
        case _:
            pass
