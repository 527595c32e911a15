"""JSON Schema → byte automaton.

Built from right to left: `value(schema, after)` returns the node where a value of that schema begins, given the node
that follows it. So every node knows its distance to the end when it is made, and a schema that nothing satisfies
is a dead node rather than an exception: an optional property drops out, an `anyOf` branch falls away.

Narrow, never widen. One spelling of separators and no other white space; keys in the declared order; optional keys
may be left out; objects with `properties` are closed unless the schema or `open_objects` opens them. What cannot be
narrowed soundly is an error that names keyword and path. Every `$ref` is a rule that is called.

Knows no tokens and no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, cast
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
from agentdiff.constraint.grounding import Grounding, Sources
from agentdiff.constraint.instances import TYPES, Json, conforms, is_number, spell
from agentdiff.constraint.numbers import Bound, integer_bounds, number
from agentdiff.constraint.strings import OtherKey, string
from agentdiff.errors import SchemaError

Style = Literal["spaced", "compact"]

_SEPARATORS: dict[Style, tuple[str, str]] = {"spaced": (", ", ": "), "compact": (",", ":")}

_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema")
)
_DEFINITIONS = frozenset(("$defs", "definitions"))
_KEYWORDS_OF: dict[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
}
_GENERAL = frozenset(("type", "enum", "const", "anyOf", "$ref"))
_KEYWORDS = _GENERAL.union(*_KEYWORDS_OF.values())

_MAX_DEPTH = 100
"""Schemas nested deeper than this are refused."""
_MAX_ROUNDS = 1000
"""Rounds of the search for the shortest sentence of recursive rules; each finds at least one shorter."""

Object = Mapping[str, Json]


def compile_to_nodes(
    schema: Json,
    *,
    style: Style = "spaced",
    open_objects: bool = False,
    grounding: Mapping[str, Sequence[str]] | None = None,
) -> Node:
    """Return the node where a text of the schema begins.

    Raises:
        SchemaError: A keyword is not supported or malformed, a `$ref` leads nowhere, or nothing satisfies the schema.
        ConfigurationError: A grounding pointer is malformed.
    """
    compiler = _Compiler(schema, style=style, open_objects=open_objects, grounding=grounding or {})
    start = compiler.start()
    if start.is_dead:
        raise SchemaError("nothing that can be written satisfies the schema")
    return start


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the compiler stands."""

    path: str
    """JSON pointer into the schema."""
    grounding: Grounding
    """What binds strings in the instance from here down."""
    depth: int = 0

    def at(self, *segments: str | int) -> _Place:
        """Another part of the schema for the same place in the instance."""
        path = self.path + "".join(f"/{str(s).replace('~', '~0').replace('/', '~1')}" for s in segments)
        return _Place(path, self.grounding, self.depth + 1)

    def below(self, segment: str | None, *segments: str | int) -> _Place:
        """One level down in the instance, too; None is a key or index that is not known."""
        place = self.at(*segments)
        return _Place(place.path, self.grounding.below(segment), place.depth)


class _Compiler:
    def __init__(
        self, root: Json, *, style: Style, open_objects: bool, grounding: Mapping[str, Sequence[str]]
    ) -> None:
        if style not in _SEPARATORS:
            raise SchemaError(f"`style` must be one of {', '.join(_SEPARATORS)}, got {style!r}")
        self._root = root
        self._open_objects = open_objects
        self._separators = _SEPARATORS[style]
        self._comma, self._colon = (s.encode() for s in self._separators)
        self._sources = Sources(grounding)
        self._rules: dict[tuple[str, Grounding], Rule] = {}
        self._known: dict[tuple[str, Grounding], int] = {}  # shortest sentences found in earlier rounds
        self._open: set[tuple[str, Grounding]] = set()
        self._is_recursive = False
        self._any: Rule | None = None
        self._shortest: dict[tuple[int, Grounding], int] = {}

    def start(self) -> Node:
        """The node where a text of the whole schema begins."""
        return self._value(self._root, END, _Place("", self._sources.root))

    # -- any schema ---------------------------------------------------------------------------------------------

    def _value(self, schema: Json, after: Node, place: _Place) -> Node:
        """The node where a value of the schema begins; dead when nothing satisfies it or `after` is dead."""
        if after.is_dead or schema is False:
            return NOWHERE
        if schema is True:
            return call(self._any_json(), after)
        checked = self._check(schema, place)
        constraints = [k for k in checked if k in _KEYWORDS]
        if not constraints:
            return call(self._any_json(), after)
        if "enum" in checked or "const" in checked:
            return self._listed(checked, after, place)
        if "$ref" in checked:
            if len(constraints) > 1:
                other = next(k for k in constraints if k != "$ref")
                raise SchemaError(
                    f"`{other}` beside `$ref` is not supported; move it into the referenced schema",
                    path=place.path,
                    keyword=other,
                )
            return call(self._rule(checked["$ref"], place), after)
        if "anyOf" in checked:
            return self._any_of(checked, after, place)
        ways: list[Node] = []
        for name in self._types(checked, place):
            ways.append(self._typed(name, checked, after, place))
        return choice(ways)

    def _check(self, schema: Json, place: _Place) -> Object:
        if not isinstance(schema, dict):
            raise SchemaError(f"a schema must be an object or a boolean, got {schema!r:.80}", path=place.path)
        if place.depth > _MAX_DEPTH:
            raise SchemaError(f"the schema is nested more than {_MAX_DEPTH} levels deep", path=place.path)
        checked = cast("dict[str, Json]", schema)
        for keyword in checked:
            if keyword in _KEYWORDS or keyword in _ANNOTATIONS or keyword in _DEFINITIONS:
                continue
            if keyword == "$id" and not place.path:
                continue
            raise SchemaError(f"`{keyword}` is not supported", path=place.path, keyword=keyword)
        return checked

    def _types(self, schema: Object, place: _Place) -> list[str]:
        """The types a schema admits; without `type`, those that its keywords speak of (narrower than the standard)."""
        if "type" not in schema:
            return [t for t, keywords in _KEYWORDS_OF.items() if any(k in schema for k in keywords)]
        types: Json = schema["type"]
        names: list[Json] = types if isinstance(types, list) else [types]
        for name in names:
            if name not in TYPES:
                raise SchemaError(
                    f"`type` must be one of {', '.join(TYPES)}, got {name!r:.80}", path=place.path, keyword="type"
                )
        return [t for t in names if not (t == "integer" and "number" in names)]

    def _typed(self, name: str, schema: Object, after: Node, place: _Place) -> Node:
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

    def _listed(self, schema: Object, after: Node, place: _Place) -> Node:
        """`enum` and `const`: the values that the rest of the schema lets through, as one trie."""
        values: Json = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list):
            raise SchemaError("`enum` must be a list", path=place.path, keyword="enum")
        good = [v for v in values if conforms(v, schema, lambda ref: self._resolve(ref, place)[0])]
        return _one_of([spell(v, self._separators, path=place.path) for v in good], after)

    def _any_of(self, schema: Object, after: Node, place: _Place) -> Node:
        beside = {k: v for k, v in schema.items() if k in _KEYWORDS and k != "anyOf"}
        branches: Json = schema["anyOf"]
        if not isinstance(branches, list):
            raise SchemaError("`anyOf` must be a list of schemas", path=place.path, keyword="anyOf")
        ways: list[Node] = []
        for i, branch in enumerate(cast("list[Json]", branches)):
            inner = place.at("anyOf", i)
            if beside:
                branch = self._joined(beside, branch, inner)
            ways.append(self._value(branch, after, inner))
        return choice(ways)

    def _joined(self, beside: Object, branch: Json, place: _Place) -> Json:
        """A branch of `anyOf` with what stands beside it, where that is a plain union of keywords."""
        if isinstance(branch, bool):
            return {**beside} if branch else False
        own = {k: v for k, v in self._check(branch, place).items() if k in _KEYWORDS}
        clash = next((k for k in own if k in beside and own[k] != beside[k]), None)
        if clash is None and "$ref" in own:
            clash = "$ref"
        # These read each other: apart they say something else than together.
        for together in (("properties", "additionalProperties"), ("prefixItems", "items")):
            mine, theirs = [k for k in together if k in own], [k for k in together if k in beside]
            if clash is None and mine and theirs and set(mine) != set(theirs):
                clash = mine[0]
        if clash is not None:
            raise SchemaError(
                f"`{clash}` in a branch of `anyOf` meets keywords beside the `anyOf`; write it out in each branch",
                path=place.path,
                keyword="anyOf",
            )
        return {**beside, **own}

    # -- references ---------------------------------------------------------------------------------------------

    def _resolve(self, ref: str, place: _Place) -> tuple[Json, str]:
        """A local `$ref` → (schema, its pointer)."""
        if ref == "#":
            return self._root, ""
        if not ref.startswith("#/"):
            raise SchemaError(
                f"`$ref` {ref!r} is not supported; only local ones (`#/...`) are", path=place.path, keyword="$ref"
            )
        here: Json = self._root
        for raw in ref[2:].split("/"):
            segment = unquote(raw).replace("~1", "/").replace("~0", "~")
            try:
                here = here[int(segment)] if isinstance(here, list) else here[segment]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(f"`$ref` {ref!r} leads nowhere", path=place.path, keyword="$ref") from None
        return here, unquote(ref[1:])

    def _rule(self, ref: Json, place: _Place) -> Rule:
        """The rule of a `$ref` at a place in the instance, compiled once.

        The shortest sentence of a rule that refers to itself is a fixpoint: the rules are compiled again, each round
        with what the last one found, until nothing gets shorter. Rules without recursion take one round.
        """
        if not isinstance(ref, str):
            raise SchemaError(f"`$ref` must be a string, got {ref!r:.80}", path=place.path, keyword="$ref")
        schema, path = self._resolve(ref, place)
        key = (path, place.grounding)
        rule = self._rules.get(key)
        if rule is not None:
            self._is_recursive |= key in self._open
            return rule
        is_outermost = not self._open
        if is_outermost:
            self._is_recursive = False
        settled = set(self._rules)
        for _ in range(_MAX_ROUNDS):
            rule = self._rules[key] = Rule(self._known.get(key, INFINITE))
            self._open.add(key)
            # Deeper than its caller only in the instance: the depth of the schema begins anew, recursion is bounded
            # by the number of rules.
            rule.start = self._value(schema, END, _Place(path, place.grounding))
            self._open.discard(key)
            rule.near = rule.start.near
            if not is_outermost:
                return rule
            found = {k: r.near for k, r in self._rules.items() if k not in settled}
            if not self._is_recursive or all(self._known.get(k) == n for k, n in found.items()):
                break
            self._known.update(found)
            self._shortest.clear()
            for k in found:
                del self._rules[k]
        assert rule is not None
        return rule

    def _shortest_of(self, schema: Json, place: _Place) -> int:
        """Bytes of the shortest value of a schema, or INFINITE."""
        key = (id(schema), place.grounding)
        known = self._shortest.get(key)
        if known is None:
            known = self._shortest[key] = self._value(schema, END, place).near
        return known

    # -- strings and numbers ------------------------------------------------------------------------------------

    def _string(self, schema: Object, after: Node, place: _Place) -> Node:
        lowest = _count(schema, "minLength", place) or 0
        highest = _count(schema, "maxLength", place)
        sources = place.grounding.sources
        if sources:
            return self._sources.span(sources, lowest, highest, after)
        return string(lowest, highest, after)

    def _number(self, schema: Object, after: Node, place: _Place, *, whole: bool) -> Node:
        lowest = _tightest(schema, "minimum", "exclusiveMinimum", place, sign=1)
        highest = _tightest(schema, "maximum", "exclusiveMaximum", place, sign=-1)
        if whole:
            lowest, highest = integer_bounds(lowest, highest)
        return number(lowest, highest, whole=whole, after=after)

    # -- arrays -------------------------------------------------------------------------------------------------

    def _array(self, schema: Object, after: Node, place: _Place) -> Node:
        fewest = _count(schema, "minItems", place) or 0
        most = _count(schema, "maxItems", place)
        first: list[Json] = schema.get("prefixItems", [])
        if not isinstance(first, list):
            raise SchemaError("`prefixItems` must be a list of schemas", path=place.path, keyword="prefixItems")
        if isinstance(schema.get("items"), list):
            raise SchemaError(
                "`items` must be a schema; a list of schemas is `prefixItems`", path=place.path, keyword="items"
            )
        rest: Json = schema.get("items", True)

        def item(index: int) -> tuple[Json, _Place]:
            """The schema and place of the item at `index`."""
            if index < len(first):
                return first[index], place.below(str(index), "prefixItems", index)
            known = str(index) if index < named else None
            return rest, place.below(known, "items")

        # From `named` on, all items are alike.
        named = max([len(first), *(int(s) + 1 for s in place.grounding.named if s.isdecimal())])
        lengths = [self._shortest_of(*item(i)) for i in range(named + 1)]
        possible = next((i for i, length in enumerate(lengths) if length >= INFINITE), None)
        if possible is not None:  # an item that cannot be ends the list before it
            most = possible if most is None else min(most, possible)
        if most is not None and most < fewest:
            return NOWHERE

        def bytes_left(count: int) -> int:
            """Bytes of the items still owed after `count`, with their separators."""
            head = sum(lengths[i] for i in range(count, min(fewest, named)))
            tail = lengths[named] * max(0, fewest - max(count, named)) if fewest > named else 0
            separators = max(0, fewest - max(count, 1))
            return head + tail + len(self._comma) * separators

        def behind(count: int) -> Node:
            """After `count` items: close, or a further one."""
            if most is None and count > max(fewest, named, 1):
                count = max(fewest, named, 1)  # alike from here on
            node = nodes.get(count)
            if node is None:
                node = nodes[count] = Node(bytes_left(count) + 1 + after.near, lambda n: fill(n, count))
            return node

        def fill(node: Node, count: int) -> None:
            if count >= fewest:
                node.skips.append(closed)
            if most is None or count < most:
                value = self._value(item(count)[0], behind(count + 1), item(count)[1])
                if not value.is_dead:
                    node.skips.append(literal(self._comma, value) if count else value)

        nodes: dict[int, Node] = {}
        closed = literal(b"]", after)
        return literal(b"[", behind(0))

    # -- objects ------------------------------------------------------------------------------------------------

    def _object(self, schema: Object, after: Node, place: _Place) -> Node:
        declared, required, rest = self._members(schema, place)
        excluded = {*declared, *place.grounding.named}
        for name in required:
            if name not in declared:
                declared[name] = (rest, place.below(name, "additionalProperties"))
        if "additionalProperties" not in schema and schema.get("properties") and not self._open_objects:
            rest = False
        # Right to left; per place in the order of keys one node with nothing before it and one with.
        close = literal(b"}", after)
        bare, following = self._tail(rest, excluded | set(declared), close, place)
        for name, (value_schema, inner) in reversed(declared.items()):
            value = self._value(value_schema, following, inner)
            if value.is_dead:
                if name in required:
                    return NOWHERE
                continue
            key = literal(spell(name, self._separators, path=place.path) + self._colon, value)
            continued = literal(self._comma, key)
            if name in required:
                bare, following = key, continued
            else:
                bare, following = choice([key, bare]), choice([continued, following])
        return literal(b"{", bare)

    def _members(
        self, schema: Object, place: _Place
    ) -> tuple[dict[str, tuple[Json, _Place]], list[str], Json]:
        """(declared keys → schema and place, required keys, schema of the other keys)."""
        properties: Json = schema.get("properties", {})
        required: Json = schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError("`properties` must be an object", path=place.path, keyword="properties")
        if not isinstance(required, list) or not all(isinstance(k, str) for k in required):
            raise SchemaError("`required` must be a list of strings", path=place.path, keyword="required")
        declared = {
            name: (value, place.below(name, "properties", name))
            for name, value in cast("dict[str, Json]", properties).items()
        }
        return declared, cast("list[str]", required), schema.get("additionalProperties", True)

    def _tail(
        self, rest: Json, excluded: set[str], close: Node, place: _Place
    ) -> tuple[Node, Node]:
        """Keys beyond the declared ones, then the end: (with nothing before, with a member before)."""
        inner = place.below(None, "additionalProperties")
        if rest is False or self._shortest_of(rest, inner) >= INFINITE:
            return close, close
        spelled = [spell(name, self._separators, path=place.path)[1:-1] for name in excluded]

        def entry(following: Node) -> Node:
            value = literal(self._colon, self._value(rest, following, inner))
            return literal(b'"', OtherKey(spelled, value).start())

        def fill(node: Node) -> None:
            node.skips += [close, literal(self._comma, entry(node))]

        following = Node(close.near, fill)
        return choice([close, entry(following)]), following

    # -- any JSON -----------------------------------------------------------------------------------------------

    def _any_json(self) -> Rule:
        """The rule of any JSON value; its shortest sentence is one digit."""
        if self._any is None:
            rule = self._any = Rule(near=1)
            place = _Place("", Grounding())
            rule.start = choice([self._typed(t, {}, END, place) for t in TYPES if t != "integer"])
        return self._any


def _one_of(texts: list[bytes], after: Node) -> Node:
    """Return a node that takes one of these texts, then goes on; the trie is filled as it is walked."""
    ordered = sorted(set(texts))
    if after.is_dead or not ordered:
        return NOWHERE

    def node(low: int, high: int, depth: int) -> Node:
        if high - low == 1:
            return literal(ordered[low][depth:], after)
        shortest = min(len(text) for text in ordered[low:high]) - depth

        def fill(node_: Node) -> None:
            i = low
            if len(ordered[i]) == depth:
                node_.skips.append(after)
                i += 1
            while i < high:
                byte, j = ordered[i][depth], i + 1
                while j < high and ordered[j][depth] == byte:
                    j += 1
                node_.arcs.append((byte, byte, node(i, j, depth + 1)))
                i = j

        return Node(shortest + after.near, fill)

    return node(0, len(ordered), 0)


def _count(schema: Object, keyword: str, place: _Place) -> int | None:
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if not is_number(value) or value < 0 or value != int(value):
        raise SchemaError(
            f"`{keyword}` must be a whole number >= 0, got {value!r:.80}", path=place.path, keyword=keyword
        )
    return int(value)


def _tightest(schema: Object, closed: str, opened: str, place: _Place, *, sign: int) -> Bound | None:
    """The stricter of an inclusive and an exclusive bound; `sign` is 1 for lower bounds, -1 for upper ones."""
    bounds: list[Bound] = []
    is_open = schema.get(opened) is True  # draft 4: a flag on the inclusive bound
    for keyword, strict in ((closed, is_open), (opened, True)):
        value = schema.get(keyword)
        if keyword not in schema or (keyword == opened and isinstance(value, bool)):
            continue
        if not is_number(value) or not math.isfinite(value):
            raise SchemaError(f"`{keyword}` must be a number, got {value!r:.80}", path=place.path, keyword=keyword)
        bounds.append(Bound(Decimal(repr(value)), strict))
    return max(bounds, key=lambda b: (sign * b.value, b.is_open), default=None)
