"""What the keywords of one schema say when it holds.

Each schema object is read once: into plain facts, claims that hold beside them, and splits, of which
one way must be taken. Keywords that JSON Schema does not know are annotations to it; one that is
only misspelled is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn, cast

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
from agentdiff.constraint.instances import TYPES, Json, as_list, distinct, is_number
from agentdiff.constraint.numbers import Bound
from agentdiff.constraint.references import Dialect, escaped
from agentdiff.errors import SchemaError

Object = Mapping[str, Json]
"""A schema that is an object."""
Part = Claim | Case

KEYWORDS = frozenset(
    (
        *("type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependencies", "dependentRequired"),
        *("dependentSchemas", "unevaluatedProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains", "unevaluatedItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
"""The keywords that constrain."""
_BY_LOWER = {k.lower(): k for k in KEYWORDS}
_FROM_2019 = frozenset(
    (
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
        *("minContains", "maxContains", "prefixItems", "$recursiveRef", "$dynamicRef"),
    )
)
FOREIGN: dict[Dialect, frozenset[str]] = {
    "draft-04": _FROM_2019 | {"const", "contains", "propertyNames", "if", "then", "else"},
    "draft-07": _FROM_2019,
    "2019-09": frozenset(("dependencies", "prefixItems", "$dynamicRef")),
    "2020-12": frozenset(("dependencies", "additionalItems", "$recursiveRef")),
}
"""Keywords that the dialect does not know. Its readers ignore them; whoever wrote them meant them.
So they bind where that narrows, and are silent where it would widen."""
_WEAKENS = frozenset(("minContains", "prefixItems"))
"""Keywords that take something away from another one."""


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


class Schema:
    """One schema object whose keywords are read one by one."""

    def __init__(self, schema: Json, path: str, dialect: Dialect) -> None:
        """Check the names of the keywords.

        Raises:
            SchemaError: It is no object, or a keyword is misspelled.
        """
        self.path = path
        self.dialect: Dialect = dialect
        if not isinstance(schema, dict):
            self.fail(f"a schema must be an object or a boolean, got {schema!r:.80}")
        known = cast("dict[str, Json]", schema)
        if "$ref" in known and dialect in {"draft-04", "draft-07"}:
            self.words: Object = {"$ref": known["$ref"]}  # all beside it is to be ignored
            return
        self.words = {k: v for k, v in known.items() if k in KEYWORDS}
        foreign = FOREIGN[dialect]
        if not foreign.isdisjoint(self.words):
            self.words = {
                k: v for k, v in self.words.items() if k not in foreign or k not in _WEAKENS
            }
        if len(self.words) < len(known):
            for keyword in known:
                meant = _BY_LOWER.get(keyword.lower(), keyword)
                if meant != keyword and meant not in known:
                    self.fail(f"`{keyword}` is no keyword; did you mean `{meant}`?", keyword)

    def fail(self, message: str, keyword: str | None = None) -> NoReturn:
        """Raise a `SchemaError` for this schema."""
        raise SchemaError(message, path=self.path, keyword=keyword)

    def claim(self, schema: Json, *segments: str | int) -> Claim:
        """A schema below this one holds."""
        return Claim(schema, "/".join([self.path, *(escaped(str(s)) for s in segments)]))

    # -- how the values of keywords are read --------------------------------------------------

    def list_of(self, keyword: str) -> list[Json]:
        """The value of a keyword that takes a list; empty when it is absent."""
        value = self.words.get(keyword, [])
        if not isinstance(value, list):
            self.fail(f"`{keyword}` must be a list, got {value!r:.80}", keyword)
        return cast("list[Json]", value)

    def names_of(self, keyword: str) -> tuple[str, ...]:
        """The value of a keyword that takes a list of names."""
        return self._names(self.list_of(keyword), keyword)

    def _names(self, names: list[Json], keyword: str) -> tuple[str, ...]:
        if not all(isinstance(name, str) for name in names):
            self.fail(f"`{keyword}` must list strings, got {names!r:.80}", keyword)
        return tuple(dict.fromkeys(names))

    def map_of(self, keyword: str) -> dict[str, Json]:
        """The value of a keyword that takes an object; empty when it is absent."""
        value = self.words.get(keyword, {})
        if not isinstance(value, dict):
            self.fail(f"`{keyword}` must be an object, got {value!r:.80}", keyword)
        return cast("dict[str, Json]", value)

    def claims_of(self, keyword: str) -> dict[str, Claim]:
        """The schemas of a keyword that takes an object of them."""
        return {name: self.claim(s, keyword, name) for name, s in self.map_of(keyword).items()}

    def branches_of(self, keyword: str) -> tuple[Claim, ...]:
        """The schemas of a keyword that takes a list of them."""
        return tuple(self.claim(s, keyword, i) for i, s in enumerate(self.list_of(keyword)))

    def one_of(self, keyword: str) -> Claim | None:
        """The schema of a keyword that takes one; None when it is absent."""
        return self.claim(self.words[keyword], keyword) if keyword in self.words else None

    def count_of(self, keyword: str) -> int | None:
        """The value of a keyword that counts; None when it is absent."""
        if keyword not in self.words:
            return None
        value: Any = self.words[keyword]
        if not is_number(value) or not math.isfinite(value) or value < 0 or value != int(value):
            self.fail(f"`{keyword}` must be a whole number >= 0, got {value!r:.80}", keyword)
        return int(value)

    def text_of(self, keyword: str) -> str:
        """The value of a keyword that takes a string."""
        value = self.words[keyword]
        if not isinstance(value, str):
            self.fail(f"`{keyword}` must be a string, got {value!r:.80}", keyword)
        return value

    def number_of(self, keyword: str) -> Decimal:
        """The value of a keyword that takes a number."""
        value: Any = self.words[keyword]
        if not is_number(value) or not math.isfinite(value):
            self.fail(f"`{keyword}` must be a number, got {value!r:.80}", keyword)
        return Decimal(str(value))

    def bounds_of(self, closed: str, opened: str) -> list[Bound]:
        """The inclusive and the exclusive bound, as far as there are any."""
        is_open = self.words.get(opened) is True  # draft 4: a flag on the inclusive bound
        bounds: list[Bound] = []
        if closed in self.words:
            bounds.append(Bound(self.number_of(closed), is_open))
        if opened in self.words and not isinstance(self.words[opened], bool):
            bounds.append(Bound(self.number_of(opened), is_open=True))
        return bounds

    def types_of(self) -> tuple[frozenset[str], bool]:
        """The types that `type` allows, and whether numbers must be whole."""
        value: Any = self.words.get("type")
        if value is None and "type" not in self.words:
            return TYPES, False
        names = as_list(value) or [value]
        for name in names:
            if not isinstance(name, str) or (name not in TYPES and name != "integer"):
                self.fail(f"`type` {name!r:.80} is not known", "type")
        whole = "integer" in names and "number" not in names
        return frozenset("number" if n == "integer" else str(n) for n in names), whole

    def prefix_of(self) -> tuple[str, str]:
        """The keywords of the first items and of all others in this dialect."""
        if isinstance(self.words.get("items"), list):
            if self.dialect == "2020-12":
                self.fail(
                    "`items` must be a schema; a list of schemas is `prefixItems`, "
                    "unless `$schema` names an older draft",
                    "items",
                )
            return "items", "additionalItems"
        return "prefixItems", "items"

    def dependents_of(self) -> tuple[dict[str, tuple[str, ...]], dict[str, Claim]]:
        """(key → keys that must come with it, key → what else holds with it)."""
        names = {
            name: self._names(as_list(value) or [], "dependentRequired")
            for name, value in self.map_of("dependentRequired").items()
        }
        claims = self.claims_of("dependentSchemas")
        for name, value in self.map_of("dependencies").items():
            if (listed := as_list(value)) is not None:
                both = (*names.get(name, ()), *self._names(listed, "dependencies"))
                names[name] = tuple(dict.fromkeys(both))
            else:
                claims[name] = self.claim(value, "dependencies", name)
        return names, claims


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
