"""JSON Schema → byte automaton.

Built from right to left: `value(goal, after)` is the node where a value begins that meets all claims
of the goal, given the node that follows it. So every node knows its distance to the end when it is
made, and a goal that nothing meets is a dead node rather than an exception: an optional property
drops out, an `anyOf` branch falls away.

Narrow, never widen. One spelling of separators and no other white space; keys in the declared
order, unless any is asked for; optional keys may be left out; objects with `properties` are closed unless the schema or
`open_objects` opens them. What cannot be narrowed soundly is an error that names keyword and path.
A goal that comes back, as recursion does, is a rule that is called.

Knows no tokens and no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from agentdiff.constraint.automaton import END, INFINITE, NOWHERE, Node, Rule, call, choice, literal
from agentdiff.constraint.cases import Cases, OneOf
from agentdiff.constraint.checking import fits
from agentdiff.constraint.containers import Layout, Part, one_of
from agentdiff.constraint.facts import EMPTY, Case, Claim, Goal
from agentdiff.constraint.grounding import Grounding, Sources
from agentdiff.constraint.instances import Json, as_list, as_object, identity
from agentdiff.constraint.language import matches
from agentdiff.constraint.lists import list_node
from agentdiff.constraint.notation import Notation, Style, json_notation
from agentdiff.constraint.objects import object_node
from agentdiff.constraint.reading import KEYWORDS
from agentdiff.constraint.references import Document
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.scalars import bare_key_node, number_node, string_node
from agentdiff.constraint.spot import Spot
from agentdiff.errors import ConfigurationError, SchemaError

KeyOrder = Literal["schema", "free"]

_MAX_ROUNDS = 1000
"""Rounds of the search for shortest sentences of recursive rules; each finds at least one
shorter."""
_MAX_DEPTH = 100
"""Schemas nested deeper than this are refused."""
_MAX_LEVEL = 24
"""Values nested deeper than this are not written in the indented style, where every level is a
text of its own."""
_IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not")


def compile_to_nodes(
    schema: Json,
    *,
    style: Style | Notation = "spaced",
    open_objects: bool = False,
    key_order: KeyOrder = "schema",
    grounding: Mapping[str, Sequence[str]] | None = None,
    one_of: OneOf = "exact",
) -> Node:
    """Return the node where a text of the schema begins.

    Args:
        schema: A JSON Schema, 2020-12 unless its `$schema` says otherwise.
        style: `"spaced"` writes `, ` and `: `, `"compact"` writes `,` and `:`, `"indented"` gives
            each member and item a line of its own, indented by two spaces a level. Or a notation
            that is not JSON.
        open_objects: Whether an object with `properties` but without `additionalProperties` may
            have other keys.
        key_order: `"schema"` writes keys in the order in which the schema names them, `"free"` in
            any.
        grounding: JSON pointer into the instance → texts.
        one_of: `"exact"` refuses a `oneOf` whose branches may overlap in ways that cannot be ruled
            out; `"validate"` takes every `oneOf` for an `anyOf`, and whoever asks for that
            validates afterwards.

    Raises:
        SchemaError: A keyword cannot be enforced or is malformed, a `$ref` leads nowhere, or
            nothing satisfies the schema.
        ConfigurationError: The style or the key order is not known, or a grounding pointer is
            malformed.
    """
    notation = json_notation(style) if isinstance(style, str) else style
    if key_order not in get_args(KeyOrder):
        raise ConfigurationError(f"`key_order` must be 'schema' or 'free', got {key_order!r}")
    compiler = Compiler(
        schema,
        notation,
        open_objects=open_objects,
        key_order=key_order,
        sources=Sources(grounding or {}, notation.quotes),
        one_of=one_of,
    )
    try:
        start = compiler.value((Claim(schema, ""),), END, Spot(compiler.sources.root))
    except RecursionError:
        raise SchemaError("the schema and what it refers to are nested too deep") from None
    if start.is_dead and compiler.cases.undecided is not None:
        raise compiler.cases.undecided
    compiler.cases.forget_readings()  # the compiler lives on in nodes that are filled later
    if start.is_dead:
        raise SchemaError("nothing that can be written satisfies the schema")
    return start


_Key = tuple[Goal, Grounding, int]


class Compiler:
    """One compilation; lives on in the nodes that are filled later."""

    def __init__(
        self,
        root: Json,
        notation: Notation,
        *,
        open_objects: bool,
        key_order: KeyOrder,
        sources: Sources,
        one_of: OneOf,
    ) -> None:
        self.cases = Cases(Document(root), one_of)
        self.open_objects, self.key_order = open_objects, key_order
        self.notation, self.sources = notation, sources
        self._is_indented = notation.is_indented
        self._rules: dict[_Key, Rule] = {}
        self._in_progress: set[_Key] = set()
        self._is_recursive = False
        self._known_near: dict[_Key, int] = {}
        """Shortest sentences of rules, as found in earlier rounds."""
        self._shortest: dict[_Key, int] = {}
        self._refers: dict[str, bool] = {}

    # -- any goal -----------------------------------------------------------------------------

    def value(self, goal: Goal, after: Node, spot: Spot) -> Node:
        """The node where a value begins; dead when there is none or `after` is dead."""
        goal = tuple(claim for claim in goal if not _asks_nothing(claim))
        if after.is_dead or any(claim.never for claim in goal):
            return NOWHERE
        if self._is_indented and spot.level > _MAX_LEVEL:
            return NOWHERE
        if spot.depth > _MAX_DEPTH:
            raise SchemaError(
                f"the schema is nested more than {_MAX_DEPTH} levels deep", path=_path_of(goal)
            )
        if not goal:
            return call(self._rule(goal, spot), after)
        first, *others = goal
        if others:
            return self.called(goal, after, spot)
        alone = self._lone_applicator(first, after, spot)
        if alone is not None:
            return alone
        build = self.called if self._refers_in_place(first) else self._of_cases
        return build(goal, after, spot)

    def called(self, goal: Goal, after: Node, spot: Spot) -> Node:
        """The same, as a call: for what is built more than once."""
        if after.is_dead:
            return NOWHERE
        return call(self._rule(goal, spot), after)

    def part(self, goal: Goal, spot: Spot, *, is_shared: bool = False) -> Part:
        """A goal as a part of a container."""
        key = (goal, spot.grounding, spot.level)
        shortest = self._shortest.get(key)
        build = self.called if is_shared else self.value
        if shortest is None:
            shortest = self._shortest[key] = build(goal, END, spot).near
        return Part(shortest, lambda after: build(goal, after, spot))

    def case(self, case: Case, after: Node, spot: Spot, *, is_shared: bool, path: str) -> Node:
        """The node where a value begins that fits a case."""
        if case.values is not None:
            good = [v for v in case.values.values() if fits(v, case, self.cases.holds)]
            return one_of([self.spell(v, spot, path) for v in good], after)
        ways: list[Node] = []
        for name in ("null", "boolean", "string", "number", "array", "object"):
            if name not in case.written:
                continue
            match name:
                case "null":
                    ways += self._constants(case, (None,), after)
                case "boolean":
                    ways += self._constants(case, (True, False), after)
                case "string":
                    ways.append(string_node(self, case, after, spot.grounding, path))
                case "number":
                    ways.append(number_node(case, after, path))
                case "array":
                    ways.append(list_node(self, case, after, spot, is_shared=is_shared, path=path))
                case _:
                    ways.append(
                        object_node(self, case, after, spot, is_shared=is_shared, path=path)
                    )
        return choice(ways)

    def key(self, case: Case, after: Node, path: str) -> Node:
        """The node where a key of a case begins, which no text binds."""
        pattern = self.notation.key_pattern
        if pattern is None:
            return self.case(case, after, Spot(Grounding()), is_shared=True, path=path)
        if case.values is None:
            return bare_key_node(case, pattern, after, path)
        keys = [k for k in case.values.values() if fits(k, case, self.cases.holds)]
        bare = parse_pattern(pattern)
        written = [self.notation.spell_key(k, path=path) for k in keys if matches(bare, k)]
        return one_of(written, after)

    def spell(self, value: Json, spot: Spot, path: str) -> bytes:
        """How a ready value is written at a spot."""
        return self.notation.spell(value, level=spot.level, path=path)

    def layout(self, spot: Spot) -> Layout:
        """What stands between the parts of a container at a spot."""
        return self.notation.layout(spot.level)

    def below(self, spot: Spot, segment: str | None) -> Spot:
        """One level down in the instance; None is a key or index that is not known."""
        return Spot(spot.grounding.below(segment), spot.level + self._is_indented, spot.depth + 1)

    def _of_cases(self, goal: Goal, after: Node, spot: Spot) -> Node:
        cases = self.cases.of(goal)
        # What several cases have in common is built once.
        is_shared = sum(c.objects != EMPTY.objects or c.arrays != EMPTY.arrays for c in cases) > 1
        path = _path_of(goal)
        return choice(
            [self.case(case, after, spot, is_shared=is_shared, path=path) for case in cases]
        )

    def _constants(self, case: Case, values: Sequence[Json], after: Node) -> list[Node]:
        left = [value for value in values if identity(value) not in case.excluded]
        return [literal(self.spell(value, Spot(Grounding()), ""), after) for value in left]

    def _lone_applicator(self, claim: Claim, after: Node, spot: Spot) -> Node | None:
        """A schema that only refers, or is only a union; None when it is more."""
        schema = as_object(claim.schema)
        if schema is None or not claim.holds:
            return None
        words = [k for k in schema if k in KEYWORDS]
        is_alone = len(words) == 1 or (
            "$ref" in words and self.cases.document.dialect in {"draft-04", "draft-07"}
        )
        if not is_alone:
            return None
        if "$ref" in words:
            target = self.cases.document.resolve(schema, claim.path)
            if target is not None:
                return self.called((Claim(*target),), after, spot)
        if words[0] in {"anyOf", "allOf"}:
            branches = as_list(schema[words[0]])
            if branches is not None and (words[0] == "anyOf" or len(branches) == 1):
                path = f"{claim.path}/{words[0]}"
                inner = Spot(spot.grounding, spot.level, spot.depth + 1)
                return choice(
                    [
                        self.value((Claim(branch, f"{path}/{i}"),), after, inner)
                        for i, branch in enumerate(branches)
                    ]
                )
        return None

    def _refers_in_place(self, claim: Claim) -> bool:
        """Whether what a claim says of its own place may come from somewhere else."""
        known = self._refers.get(claim.path)
        if known is None:
            known = self._refers[claim.path] = _refers(claim.schema)
        return known

    # -- rules --------------------------------------------------------------------------------

    def _rule(self, goal: Goal, spot: Spot) -> Rule:
        """The rule of a goal at a spot, compiled once.

        The shortest sentence of a rule that refers to itself is a fixpoint: rules are compiled
        again, each round with what the last one found, until nothing gets shorter. Rules without
        recursion take one round.
        """
        key = (goal, spot.grounding, spot.level)
        rule = self._rules.get(key)
        if rule is not None:
            self._is_recursive |= key in self._in_progress and bool(goal)
            return rule
        if not goal:  # any JSON: one digit is the shortest, whatever else there is
            rule = self._rules[key] = Rule(near=1)
            rule.start = self.case(EMPTY, END, _unnested(spot), is_shared=False, path="")
            return rule
        if self._in_progress:
            return self._compile_rule(key)
        settled = set(self._rules)
        self._is_recursive = False
        for _ in range(_MAX_ROUNDS):
            rule = self._compile_rule(key)
            found = {k: r.near for k, r in self._rules.items() if k not in settled}
            if not self._is_recursive or all(
                self._known_near.get(k) == n for k, n in found.items()
            ):
                return rule
            self._known_near.update(found)
            self._shortest.clear()
            for k in found:
                del self._rules[k]
        raise SchemaError(
            "the shortest value of a recursive `$ref` was not found", path=goal[0].path
        )

    def _compile_rule(self, key: _Key) -> Rule:
        goal, grounding, level = key
        rule = self._rules[key] = Rule(self._known_near.get(key, INFINITE))
        self._in_progress.add(key)
        # The depth begins anew: what a rule nests is bounded by the schema, not by who refers to
        # it.
        rule.start = self._of_cases(goal, END, Spot(grounding, level))
        self._in_progress.discard(key)
        rule.near = rule.start.near
        return rule


def _asks_nothing(claim: Claim) -> bool:
    schema = as_object(claim.schema)
    if schema is None:
        return claim.schema is claim.holds
    return claim.holds and not any(keyword.lower() in _LOWER for keyword in schema)


_LOWER = frozenset(keyword.lower() for keyword in KEYWORDS)


def _unnested(spot: Spot) -> Spot:
    return Spot(spot.grounding, spot.level)


def _path_of(goal: Goal) -> str:
    return goal[0].path if goal else ""


def _refers(schema: Json) -> bool:
    work: list[Json] = [schema]
    while work:
        here = as_object(work.pop())
        if here is None:
            continue
        if any(k in here for k in ("$ref", "$dynamicRef", "$recursiveRef")):
            return True
        for keyword in _IN_PLACE:
            work += as_list(here.get(keyword)) or [here.get(keyword)]
        for keyword in ("dependentSchemas", "dependencies"):
            work += (as_object(here.get(keyword)) or {}).values()
    return False
