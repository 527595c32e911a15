"""From claims to cases: `$ref` followed, `allOf` merged, unions and conditions split.

A goal (claims that all hold) comes to a disjunction of cases, each a plain conjunction. `oneOf` is
split into its branches, each with the contrary of the others, unless two branches are proved to
exclude each other; `if` into (`if` and `then`) or (not `if` and `else`). A contrary that cannot be
said in full is said in part, so cases may be missing but never wrong; where that costs a whole
branch it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from agentdiff.constraint.checking import fits, matches
from agentdiff.constraint.emptiness import Proofs
from agentdiff.constraint.facts import EMPTY, Case, Claim, Goal, KeyLayer, Objects
from agentdiff.constraint.instances import Json
from agentdiff.constraint.keywords import Part, Reading, Split, Way, read
from agentdiff.constraint.negation import read_contrary
from agentdiff.constraint.references import Document
from agentdiff.constraint.unevaluated import other_items, other_keys
from agentdiff.errors import SchemaError

OneOf = Literal["exact", "validate"]

MANY_CASES = 200
"""Cases of one goal beyond which contraries are said more plainly."""
MAX_CASES = 1_000
"""Cases that one goal may come to."""
MAX_STEPS = 50_000
"""Claims that one compilation may read, again and again ones included."""
_MAX_OF_BRANCH = 32
"""Cases of a `oneOf` branch beyond which the contraries of the others are said more plainly."""
_PROOF_DEPTH = 3
"""Levels down in the instance that a proof of emptiness looks."""

_Origin = tuple[frozenset[Claim], frozenset[str]]
"""(claims that a part is an in-place part of, their scopes of unevaluated things)."""


@dataclass(slots=True)
class _Run:
    """One expansion, over all its branches."""

    is_exact: bool = True
    """Whether no case has been left out."""
    lost: Split | None = None
    """A split that came to nothing because a way could not be said."""
    is_plain: bool = False
    """Whether contraries are said in one way only: by a tag or a missing key, where that can be."""


@dataclass(slots=True)
class _Branch:
    """One conjunction on its way."""

    case: Case = EMPTY
    pending: list[tuple[Part, _Origin]] = field(default_factory=list)
    """Last first."""
    splits: list[tuple[Split, _Origin]] = field(default_factory=list)
    seen: set[tuple[Claim, frozenset[str]]] = field(default_factory=set)
    unevaluated: list[tuple[str, Claim, str, frozenset[str]]] = field(default_factory=list)
    """(keys or items, what they must be, the scope's path, the scopes around it)."""

    def fork(self, way: Way, origin: _Origin) -> _Branch:
        """A copy that takes one way."""
        return _Branch(
            self.case,
            [(part, origin) for part in reversed(way.parts)],
            self.splits.copy(),
            self.seen.copy(),
            self.unevaluated.copy(),
        )


_NO_ORIGIN: _Origin = (frozenset(), frozenset())


class Cases:
    """The cases of the goals of one document, each found once."""

    def __init__(self, document: Document, one_of: OneOf) -> None:
        self.document = document
        self._one_of = one_of
        self._readings: dict[Claim, Reading] = {}
        self._known: dict[Goal, tuple[Case, ...]] = {}
        self._disjoint: dict[Goal, bool] = {}
        self._steps = 0
        self._proofs = Proofs(self.is_empty, self.holds)
        self.undecided: SchemaError | None = None
        """Why some values that are allowed cannot be written, as far as that is known."""

    def of(self, goal: Goal) -> tuple[Case, ...]:
        """Return the cases of a goal: none when nothing meets it.

        Raises:
            SchemaError: A keyword is malformed, a contrary cannot be said, or there are too many
                cases.
        """
        known = self._known.get(goal)
        if known is None:
            run = _Run()
            found = list(islice(self._expand(self._begin(EMPTY, goal), run), MANY_CASES + 1))
            if len(found) > MANY_CASES:
                run = _Run(is_plain=True)
                whole = self._expand(self._begin(EMPTY, goal), run)
                found = list(islice(whole, MAX_CASES + 1))
            if len(found) > MAX_CASES:
                raise SchemaError(
                    f"the schema comes to more than {MAX_CASES} cases here; "
                    "it has too many unions or conditions side by side",
                    path=goal[0].path,
                )
            if not found and run.lost is not None:
                self.undecided = _undecided(run.lost)
                if run.lost.path.endswith("/not"):  # somebody wrote it: not a contrary of ours
                    raise self.undecided
            known = self._known[goal] = tuple(found)
        return known

    def forget_readings(self) -> None:
        """Let go of what was read; it is read again where somebody asks for a new goal."""
        self._readings.clear()

    def holds(self, goal: Goal, value: Json) -> bool | None:
        """Whether a value meets a goal; None when that is not known."""
        run, verdict = _Run(), False
        for case in self._expand(self._begin(EMPTY, goal), run):
            match fits(value, case, self.holds):
                case True:
                    return True
                case None:
                    verdict = None
                case False:
                    pass
        return verdict if run.is_exact else None

    def is_empty(self, goal: Goal, depth: int = _PROOF_DEPTH) -> bool:
        """Whether it is proved that no value meets the goal."""
        return self._is_empty(EMPTY, goal, depth)

    # -- expansion ----------------------------------------------------------------------------

    def _begin(self, case: Case, goal: Goal) -> _Branch:
        return _Branch(case, [(claim, _NO_ORIGIN) for claim in reversed(goal)])

    def _expand(self, branch: _Branch, run: _Run) -> Iterator[Case]:
        if not self._settle(branch, run):
            return
        if not branch.splits:
            yield from self._with_strays(self._finished(branch), run)
            return
        split, origin = branch.splits.pop(0)
        if split.is_exclusive and self._one_of == "exact":
            yield from self._exclusive(split, origin, branch, run)
            return
        is_lost = True
        ways = split.ways
        is_greedy = run.is_plain and split.keyword == "not"
        if is_greedy:
            ways = tuple(sorted(ways, key=lambda way: not way.is_plain))
            run.is_exact = False
        for way in ways:
            if is_greedy and not is_lost:
                return
            inner = _Run(is_plain=run.is_plain) if split.keyword == "if" else run
            is_closed = True
            for case in self._expand(branch.fork(way, origin), inner):
                is_closed = is_lost = False
                yield case
            if is_closed and inner is not run and inner.lost:
                raise _undecided(split)
            run.is_exact &= inner.is_exact
        if split.is_partial:
            run.is_exact = False
            if is_lost:
                run.lost = run.lost or split

    def _settle(self, branch: _Branch, run: _Run) -> bool:
        """Read all that is pending; whether the branch is still open."""
        while branch.pending:
            part, (above, scopes) = branch.pending.pop()
            if isinstance(part, Case):
                for scope in scopes:
                    part = part.within(scope)
                joined = branch.case.joined(part)
                if joined is None:
                    return False
                branch.case = joined
                continue
            if part.never or part in above:
                # A schema that is its own in-place part says nothing; the least that can be meant
                # is no value.
                return False
            if (part, scopes) in branch.seen:
                continue
            branch.seen.add((part, scopes))
            reading = self._read(part)
            run.is_exact &= not reading.is_narrowed
            if not part.holds:
                scopes = frozenset[str]()  # what fails has evaluated nothing
            elif reading.unevaluated:
                run.is_exact = False  # of several ways that hold, only one is credited
                for kind, claim in reading.unevaluated:
                    branch.unevaluated.append((kind, claim, part.path, scopes))
                scopes |= {part.path}
            if reading.parts or reading.splits:
                origin = (above | {part}, scopes)
                branch.pending += [(inner, origin) for inner in reversed(reading.parts)]
                branch.splits += [(split, origin) for split in reading.splits]
        return True

    def _exclusive(
        self, split: Split, origin: _Origin, branch: _Branch, run: _Run
    ) -> Iterator[Case]:
        """`oneOf`: each branch with the contrary of those that it may overlap with."""
        claims = [part for way in split.ways for part in way.parts if isinstance(part, Claim)]
        for i, claim in enumerate(claims):
            others = [
                other.negated()
                for j, other in enumerate(claims)
                if i != j and not self._are_disjoint(branch.case, claim, other)
            ]
            way, inner = Way((claim, *others)), _Run(is_plain=run.is_plain)
            found = list(islice(self._expand(branch.fork(way, origin), inner), _MAX_OF_BRANCH + 1))
            if len(found) > _MAX_OF_BRANCH:
                inner = _Run(is_plain=True)
                found = self._expand(branch.fork(way, origin), inner)
            is_lost = True
            for case in found:
                is_lost = False
                yield case
            if is_lost and not inner.is_exact and not self._is_empty(branch.case, (claim,)):
                raise _undecided(split)
            run.is_exact &= inner.is_exact

    def _finished(self, branch: _Branch) -> Case:
        """The case, with what is said of unevaluated things made plain: the inner ones first."""
        case = branch.case
        for kind, claim, scope, around in reversed(branch.unevaluated):
            if kind == "keys":
                case = replace(case, objects=other_keys(case.objects, claim, scope, around))
            else:
                case = replace(case, arrays=other_items(case.arrays, claim, scope, around))
        return case

    def _with_strays(self, case: Case, run: _Run) -> Iterator[Case]:
        """The cases in which a key that must be outside a list is one that somebody speaks of."""
        if not case.objects.strays:
            yield case
            return
        run.is_exact = False  # it may be any other key, too
        stray, *left = case.objects.strays
        case = replace(case, objects=replace(case.objects, strays=tuple(left)))
        for name in case.objects.declared:
            if name in stray.names or any(matches(name, w) is not False for w in stray.patterns):
                continue
            facts = Objects((KeyLayer({name: stray.claim}),), required=(name,))
            joined = case.joined(Case(frozenset(("object",)), objects=facts))
            if joined is not None and not self._proofs.lacks_key(joined.objects, name, 1):
                yield from self._with_strays(joined, run)

    def _read(self, claim: Claim) -> Reading:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise SchemaError(
                f"the schema takes more than {MAX_STEPS} steps to work out; "
                "it has too many unions or conditions inside each other",
                path=claim.path,
            )
        reading = self._readings.get(claim)
        if reading is None:
            schema, path, document = claim.schema, claim.path, self.document
            target = None
            if isinstance(schema, dict):
                target = document.resolve(schema, path)
            target = Claim(*target) if target else None
            how = read if claim.holds else read_contrary
            reading = self._readings[claim] = how(schema, path, document.dialect, target)
        return reading

    # -- proofs -------------------------------------------------------------------------------

    def _are_disjoint(self, case: Case, a: Claim, b: Claim) -> bool:
        """Whether it is proved that no value meets both, beside what else holds."""
        pair = (a, b) if a.path < b.path else (b, a)
        known = self._disjoint.get(pair)
        if known is None:
            known = self._disjoint[pair] = self._is_empty(EMPTY, pair)
        return known or (case is not EMPTY and self._is_empty(case, pair))

    def _is_empty(self, case: Case, goal: Goal, depth: int = _PROOF_DEPTH) -> bool:
        run, proofs = _Run(), self._proofs
        try:
            for found in self._expand(self._begin(case, goal), run):
                if not proofs.is_empty(found, depth):
                    return False
        except SchemaError:
            return False  # what cannot be said is not proved
        return run.is_exact


def _undecided(split: Split) -> SchemaError:
    advice = {
        "oneOf": "its branches may overlap, and what one of them rules out cannot be said; "
        "give them different constants in one required property, or use `anyOf`",
        "not": "what it rules out cannot be said; say what is allowed instead",
    }
    message = advice.get(split.keyword, "its condition cannot be decided")
    return SchemaError(
        f"`{split.keyword}` cannot be enforced: {message}", path=split.path, keyword=split.keyword
    )
