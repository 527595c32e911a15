"""JSON Schema → byte automaton.

Built from right to left: `value(schema, after)` is the node where a value of that schema begins,
given the node that follows it. So every node knows its distance to the end when it is made, and a
schema that nothing satisfies is a dead node rather than an exception: an optional property drops
out, an `anyOf` branch falls away.

Narrow, never widen. One spelling of separators and no other white space; keys in the declared
order; optional keys may be left out; objects with `properties` are closed unless the schema or
`open_objects` opens them. What cannot be narrowed soundly is an error that names keyword and path.
Every `$ref` is a rule that is called.

Knows no tokens and no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote

from agentdiff.constraint.automaton import (
    END,
    INFINITE,
    NOWHERE,
    Node,
    Rule,
    call,
    choice,
    literal,
)
from agentdiff.constraint.containers import Member, Part, array, members, one_of
from agentdiff.constraint.grounding import Grounding, Sources
from agentdiff.constraint.instances import TYPES, Json, conforms, spell
from agentdiff.constraint.keywords import (
    KEYWORDS,
    Object,
    Place,
    bound_of,
    check_all,
    checked,
    count_of,
    joined,
    list_of,
    properties_of,
    required_of,
    types_of,
)
from agentdiff.constraint.numbers import integer_bounds, number
from agentdiff.constraint.strings import string
from agentdiff.errors import ConfigurationError, SchemaError

Style = Literal["spaced", "compact"]

_SEPARATORS: dict[str, tuple[str, str]] = {"spaced": (", ", ": "), "compact": (",", ":")}
_MAX_ROUNDS = 1000
"""Rounds of the search for shortest sentences of recursive rules; each finds at least one
shorter."""


def compile_to_nodes(
    schema: Json,
    *,
    style: Style = "spaced",
    open_objects: bool = False,
    grounding: Mapping[str, Sequence[str]] | None = None,
) -> Node:
    """Return the node where a text of the schema begins.

    Raises:
        SchemaError: A keyword is not supported or malformed, a `$ref` leads nowhere, or nothing
            satisfies the schema.
        ConfigurationError: The style is not known, or a grounding pointer is malformed.
    """
    if style not in _SEPARATORS:
        raise ConfigurationError(f"`style` must be one of {', '.join(_SEPARATORS)}, got {style!r}")
    sources = Sources(grounding or {})
    compiler = _Compiler(schema, _SEPARATORS[style], open_objects=open_objects, sources=sources)
    try:
        start = compiler.value(schema, END, Place("", sources.root))
    except RecursionError:
        raise SchemaError("the schema and what it refers to are nested too deep") from None
    if start.is_dead:
        raise SchemaError("nothing that can be written satisfies the schema")
    return start


class _Compiler:
    """One compilation; lives on in the nodes that are filled later."""

    def __init__(
        self, root: Json, separators: tuple[str, str], *, open_objects: bool, sources: Sources
    ) -> None:
        self._root = root
        self._separators = separators
        self._comma, self._colon = (s.encode() for s in separators)
        self._open_objects = open_objects
        self._sources = sources
        self._rules: dict[tuple[str, Grounding], Rule] = {}
        self._in_progress: set[tuple[str, Grounding]] = set()
        self._is_recursive = False
        self._known_near: dict[tuple[str, Grounding], int] = {}
        """Shortest sentences of rules, as found in earlier rounds."""
        self._shortest: dict[tuple[int, Grounding], int] = {}
        self._any: Rule | None = None

    # -- any schema ---------------------------------------------------------------------------

    def value(self, schema: Json, after: Node, place: Place) -> Node:
        """The node where a value begins; dead when there is none or `after` is dead."""
        if after.is_dead or schema is False:
            return NOWHERE
        if schema is True:
            return call(self._any_json(), after)
        known = checked(schema, place)
        constraints = [k for k in known if k in KEYWORDS]
        if not constraints:
            return call(self._any_json(), after)
        if "enum" in known or "const" in known:
            return self._listed(known, after, place)
        if "$ref" in known:
            for other in constraints:
                if other != "$ref":
                    place.fail(
                        f"`{other}` beside `$ref` is not supported; move it to where `$ref` points",
                        other,
                    )
            return call(self._rule(known["$ref"], place), after)
        if "anyOf" in known:
            return self._any_of(known, after, place)
        return choice([self._typed(t, known, after, place) for t in types_of(known, place)])

    def _typed(self, name: str, schema: Object, after: Node, place: Place) -> Node:
        match name:
            case "null":
                return literal(b"null", after)
            case "boolean":
                return choice([literal(b"true", after), literal(b"false", after)])
            case "string":
                return self._string(schema, after, place)
            case "integer" | "number":
                return self._number(schema, after, place, whole=name == "integer")
            case "array":
                return self._array(schema, after, place)
            case _:
                return self._object(schema, after, place)

    def _listed(self, schema: Object, after: Node, place: Place) -> Node:
        """`enum` and `const`: the values that the rest of the schema lets through."""
        values = list_of(schema, "enum", place) if "enum" in schema else [schema["const"]]
        others = {k: v for k, v in schema.items() if k in KEYWORDS and k != "enum"}
        check_all(others, place, self._resolve_only)
        try:
            good = [v for v in values if conforms(v, others, lambda r: self._resolve(r, place)[0])]
        except (AttributeError, TypeError):
            place.fail("a keyword beside `enum` or `const` is malformed", "enum")
        return one_of([spell(v, self._separators, path=place.path) for v in good], after)

    def _any_of(self, schema: Object, after: Node, place: Place) -> Node:
        beside = {k: v for k, v in schema.items() if k in KEYWORDS and k != "anyOf"}
        ways: list[Node] = []
        for i, branch in enumerate(list_of(schema, "anyOf", place)):
            inner = place.at("anyOf", i)
            whole = joined(beside, branch, inner) if beside else branch
            ways.append(self.value(whole, after, inner))
        return choice(ways)

    def _any_json(self) -> Rule:
        """The rule of any JSON value; its shortest sentence is one digit."""
        if self._any is None:
            rule = self._any = Rule(near=1)
            place = Place("", Grounding())
            types = [t for t in TYPES if t != "integer"]
            rule.start = choice([self._typed(t, {}, END, place) for t in types])
        return self._any

    # -- references ---------------------------------------------------------------------------

    def _resolve(self, ref: Json, place: Place) -> tuple[Json, str]:
        """A local `$ref` → (schema, its pointer)."""
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            place.fail(f"`$ref` must be local (`#/...`), got {ref!r:.80}", "$ref")
        here: Any = self._root
        for raw in ref[2:].split("/") if ref != "#" else ():
            segment = unquote(raw).replace("~1", "/").replace("~0", "~")
            try:
                here = here[segment if isinstance(here, dict) else int(segment)]
            except (KeyError, IndexError, ValueError, TypeError):
                place.fail(f"`$ref` {ref!r} leads nowhere", "$ref")
        return here, unquote(ref[1:])

    def _resolve_only(self, ref: Json, place: Place) -> Json:
        return self._resolve(ref, place)[0]

    def _rule(self, ref: Json, place: Place) -> Rule:
        """The rule of a `$ref` at a place in the instance, compiled once.

        The shortest sentence of a rule that refers to itself is a fixpoint: rules are compiled
        again, each round with what the last one found, until nothing gets shorter. Rules without
        recursion take one round.
        """
        schema, path = self._resolve(ref, place)
        key = (path, place.grounding)
        rule = self._rules.get(key)
        if rule is not None:
            self._is_recursive |= key in self._in_progress
            return rule
        if self._in_progress:
            return self._compile_rule(key, schema)
        settled = set(self._rules)
        self._is_recursive = False
        for _ in range(_MAX_ROUNDS):
            rule = self._compile_rule(key, schema)
            found = {k: r.near for k, r in self._rules.items() if k not in settled}
            if not self._is_recursive or all(
                self._known_near.get(k) == n for k, n in found.items()
            ):
                return rule
            self._known_near.update(found)
            self._shortest.clear()
            for k in found:
                del self._rules[k]
        place.fail("the shortest value of a recursive `$ref` was not found", "$ref")

    def _compile_rule(self, key: tuple[str, Grounding], schema: Json) -> Rule:
        rule = self._rules[key] = Rule(self._known_near.get(key, INFINITE))
        self._in_progress.add(key)
        # The depth begins anew: what a rule nests is bounded by the schema, not by who refers to
        # it.
        rule.start = self.value(schema, END, Place(*key))
        self._in_progress.discard(key)
        rule.near = rule.start.near
        return rule

    def _part(self, schema: Json, place: Place) -> Part:
        """A schema as a part of a container."""
        key = (id(schema), place.grounding)
        shortest = self._shortest.get(key)
        if shortest is None:
            shortest = self._shortest[key] = self.value(schema, END, place).near
        return Part(shortest, lambda after: self.value(schema, after, place))

    # -- types --------------------------------------------------------------------------------

    def _string(self, schema: Object, after: Node, place: Place) -> Node:
        lowest = count_of(schema, "minLength", place) or 0
        highest = count_of(schema, "maxLength", place)
        sources = place.grounding.sources
        if sources:
            return self._sources.span(sources, lowest, highest, after)
        return string(lowest, highest, after)

    def _number(self, schema: Object, after: Node, place: Place, *, whole: bool) -> Node:
        lowest = bound_of(schema, "minimum", "exclusiveMinimum", place, sign=1)
        highest = bound_of(schema, "maximum", "exclusiveMaximum", place, sign=-1)
        if whole:
            lowest, highest = integer_bounds(lowest, highest)
        return number(lowest, highest, whole=whole, after=after)

    def _array(self, schema: Object, after: Node, place: Place) -> Node:
        first = list_of(schema, "prefixItems", place)
        rest = schema.get("items", True)
        if isinstance(rest, list):
            place.fail("`items` must be a schema; a list of schemas is `prefixItems`", "items")
        named = [int(s) + 1 for s in place.grounding.named if s.isdecimal()]
        distinct = max([len(first), *named])

        def item(index: int) -> Part:
            segment = str(index) if index < distinct else None
            if index < len(first):
                return self._part(first[index], place.below(segment, "prefixItems", index))
            return self._part(rest, place.below(segment, "items"))

        return array(
            item,
            distinct=distinct,
            fewest=count_of(schema, "minItems", place) or 0,
            most=count_of(schema, "maxItems", place),
            comma=self._comma,
            after=after,
        )

    def _object(self, schema: Object, after: Node, place: Place) -> Node:
        properties, required = properties_of(schema, place), required_of(schema, place)
        rest = schema.get("additionalProperties", True)
        undeclared = [name for name in required if name not in properties]
        declared = [
            (name, inner, place.below(name, "properties", name))
            for name, inner in properties.items()
        ]
        declared += [
            (name, rest, place.below(name, "additionalProperties"))
            for name in dict.fromkeys(undeclared)
        ]
        if properties and "additionalProperties" not in schema and not self._open_objects:
            rest = False
        # A key that is declared, or bound by name, does not come back among the others, even if it
        # dropped out.
        excluded = [*properties, *undeclared, *place.grounding.named]
        return members(
            [
                Member(
                    key=spell(name, self._separators, path=place.path),
                    build=lambda after, inner=inner, below=below: self.value(inner, after, below),
                    is_required=name in required,
                )
                for name, inner, below in declared
            ],
            self._part(rest, place.below(None, "additionalProperties")),
            excluded=[spell(name, self._separators, path=place.path)[1:-1] for name in excluded],
            comma=self._comma,
            colon=self._colon,
            after=after,
        )
