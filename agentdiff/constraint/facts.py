"""What must hold at one place of an instance, and how two such demands become one.

A `Claim` says that a schema holds, or does not. A `Case` is what claims come to once they are read:
one conjunction of plain facts, per type. Parts (items, values of keys) stay claims, so nothing
below is looked at before somebody goes there; that is what ends recursion.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeVar

from agentdiff.constraint.instances import TYPES, Json
from agentdiff.constraint.numbers import Bound

_T = TypeVar("_T")
_Group = TypeVar("_Group", "Numbers", "Strings", "Arrays", "Objects")


@dataclass(frozen=True, slots=True)
class Claim:
    """A schema holds, or does not."""

    schema: Json = field(compare=False)
    path: str
    """Its JSON pointer: the schema's name."""
    holds: bool = True

    def negated(self) -> Claim:
        """The contrary."""
        return Claim(self.schema, self.path, not self.holds)

    @property
    def never(self) -> bool:
        """Whether no value meets it, at first sight."""
        return isinstance(self.schema, bool) and self.schema is not self.holds


Goal = tuple[Claim, ...]
"""All of these at once; none of them asks for nothing."""

NEVER = Claim(False, "#never")
ALWAYS = Claim(True, "#always")


@dataclass(frozen=True, slots=True)
class Wording:
    """A pattern or format as it is written, and where it stands in the schema."""

    text: str
    path: str = field(compare=False)
    holds: bool = True
    """Whether strings must match it, or must not."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a number must be."""

    lowest: Bound | None = None
    highest: Bound | None = None
    whole: bool = False
    multiples: tuple[Decimal, ...] = ()

    def joined(self, other: Numbers) -> Numbers:
        """Both."""
        return Numbers(
            _stricter(self.lowest, other.lowest, 1),
            _stricter(self.highest, other.highest, -1),
            self.whole or other.whole,
            _union(self.multiples, other.multiples),
        )


@dataclass(frozen=True, slots=True)
class Strings:
    """What a string must be."""

    lowest: int = 0
    highest: int | None = None
    patterns: tuple[Wording, ...] = ()
    formats: tuple[Wording, ...] = ()

    def joined(self, other: Strings) -> Strings:
        """Both."""
        return Strings(
            max(self.lowest, other.lowest),
            _least(self.highest, other.highest),
            _union(self.patterns, other.patterns),
            _union(self.formats, other.formats),
        )


@dataclass(frozen=True, slots=True)
class ItemLayer:
    """What one schema says of the items of a list."""

    first: Goal = ()
    """Of each of the first items."""
    rest: Claim | None = None
    """Of all others; None when it says nothing."""
    scopes: frozenset[str] = frozenset()
    """Schemas with `unevaluatedItems` that this one is an in-place part of."""


@dataclass(frozen=True, slots=True)
class Contains:
    """fewest..most items meet a claim."""

    claim: Claim
    fewest: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Arrays:
    """What a list must be."""

    fewest: int = 0
    most: int | None = None
    layers: tuple[ItemLayer, ...] = ()
    contains: tuple[Contains, ...] = ()
    is_unique: bool = False

    def joined(self, other: Arrays) -> Arrays:
        """Both."""
        return Arrays(
            max(self.fewest, other.fewest),
            _least(self.most, other.most),
            _union(self.layers, other.layers),
            _union(self.contains, other.contains),
            self.is_unique or other.is_unique,
        )

    def within(self, scope: str) -> Arrays:
        """The same, said by an in-place part of a schema."""
        layers = tuple(replace(x, scopes=x.scopes | {scope}) for x in self.layers)
        return replace(self, layers=layers)

    def item(self, index: int) -> Goal:
        """What the item at an index must be."""
        claims = (
            layer.first[index] if index < len(layer.first) else layer.rest for layer in self.layers
        )
        return tuple(dict.fromkeys(c for c in claims if c is not None))


@dataclass(frozen=True, slots=True)
class KeyLayer:
    """What one schema says of the values of keys."""

    properties: Mapping[str, Claim] = field(default_factory=dict[str, Claim], hash=False)
    patterns: tuple[tuple[Wording, Claim], ...] = ()
    rest: Claim | None = None
    """Of keys that neither name nor pattern speaks for; None when it says nothing."""
    scopes: frozenset[str] = frozenset()
    """Schemas with `unevaluatedProperties` that this one is an in-place part of."""
    declares: bool = False
    """Whether somebody wrote these properties down as those that the object has."""


@dataclass(frozen=True, slots=True)
class Stray:
    """There is a key that neither these names nor these patterns speak for, with such a value."""

    names: frozenset[str]
    patterns: tuple[Wording, ...]
    claim: Claim


@dataclass(frozen=True, slots=True)
class Objects:
    """What an object must be."""

    layers: tuple[KeyLayer, ...] = ()
    required: tuple[str, ...] = ()
    names: Goal = ()
    """What every key must be."""
    fewest: int = 0
    most: int | None = None
    strays: tuple[Stray, ...] = ()

    def joined(self, other: Objects) -> Objects:
        """Both."""
        return Objects(
            self.layers + other.layers,
            _union(self.required, other.required),
            _union(self.names, other.names),
            max(self.fewest, other.fewest),
            _least(self.most, other.most),
            _union(self.strays, other.strays),
        )

    def within(self, scope: str) -> Objects:
        """The same, said by an in-place part of a schema."""
        layers = tuple(replace(x, scopes=x.scopes | {scope}) for x in self.layers)
        return replace(self, layers=layers)

    @property
    def declared(self) -> list[str]:
        """Names that are spoken of, in order: those with a schema first."""
        named = [name for layer in self.layers for name in layer.properties]
        return list(dict.fromkeys([*named, *self.required]))

    @property
    def is_contradictory(self) -> bool:
        """Whether a key must be there and must not, at first sight."""
        return any(
            (claim := layer.properties.get(name)) is not None and claim.never
            for layer in self.layers
            for name in self.required
        ) or (self.most is not None and self.most < max(self.fewest, len(self.required)))


@dataclass(frozen=True, slots=True)
class Case:
    """One conjunction of facts. What is said of a type binds values of that type only."""

    types: frozenset[str] = TYPES
    values: Mapping[Hashable, Json] | None = field(default=None, hash=False)
    """By identity, the only values there are, before the other facts; None for no list."""
    excluded: Mapping[Hashable, Json] = field(default_factory=dict[Hashable, Json], hash=False)
    """By identity, values that are ruled out."""
    numbers: Numbers = Numbers()
    strings: Strings = Strings()
    arrays: Arrays = Arrays()
    objects: Objects = Objects()
    is_typed: bool = False
    """Whether somebody has said which types there are."""
    spoken_of: frozenset[str] = frozenset()
    """Types that keywords say something of."""

    def joined(self, other: Case) -> Case | None:
        """Both; None when that cannot be, at first sight."""
        if self is EMPTY or other is EMPTY:
            return other if self is EMPTY else self
        types = self.types & other.types
        values = self.values
        if values is None:
            values = other.values
        elif other.values is not None:
            values = {k: v for k, v in values.items() if k in other.values}
        if not types or (values is not None and not values):
            return None
        objects = _both(self.objects, other.objects)
        if objects.is_contradictory:
            types -= {"object"}
            if not types:
                return None
        return Case(
            types,
            values,
            {**self.excluded, **other.excluded} if other.excluded else self.excluded,
            _both(self.numbers, other.numbers),
            _both(self.strings, other.strings),
            _both(self.arrays, other.arrays),
            objects,
            self.is_typed or other.is_typed,
            self.spoken_of | other.spoken_of,
        )

    @property
    def written(self) -> frozenset[str]:
        """The types that are written: keywords without a type speak of their own."""
        if self.is_typed or not self.spoken_of:
            return self.types
        return self.types & self.spoken_of

    def within(self, scope: str) -> Case:
        """The same, said by an in-place part of a schema."""
        return replace(self, arrays=self.arrays.within(scope), objects=self.objects.within(scope))


EMPTY = Case()
"""Nothing is said."""
_SILENT = frozenset(map(id, (EMPTY.numbers, EMPTY.strings, EMPTY.arrays, EMPTY.objects)))


def _both(a: _Group, b: _Group) -> _Group:
    if id(a) in _SILENT:
        return b
    return a if id(b) in _SILENT else a.joined(b)


def _union(a: tuple[_T, ...], b: tuple[_T, ...]) -> tuple[_T, ...]:
    if not a or not b:
        return a or b
    return tuple(dict.fromkeys(a + b))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _stricter(a: Bound | None, b: Bound | None, sign: int) -> Bound | None:
    if a is None or b is None:
        return a or b
    return max(a, b, key=lambda x: (sign * x.value, x.is_open))
