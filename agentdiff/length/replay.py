"""Replay recorded steps: what the predictor would have allocated, against what was needed.

One deployment per source, starting from the shipped prior; episodes in a shuffled order, steps in
theirs; predict, then observe. An output that does not fit is written again on twice the budget, as
on a full canvas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from agentdiff.errors import ConfigurationError
from agentdiff.generation import Budget, StepKind
from agentdiff.length.context import StepContext
from agentdiff.length.cost import LARGEST, CanvasCost, CostModel
from agentdiff.length.predictor import LengthPredictor
from agentdiff.messages import Json

OUR_KINDS: Mapping[str, StepKind] = {"tool_args": "arguments"}
"""Names of kinds in recordings that differ from ours."""
BEGINNING = 60
"""Steps of a deployment that count as its beginning."""

Reports = Literal["final", "cut", "squeezed"]
"""What the predictor is told of an output that did not fit: its final length, that it was cut, or,
as if nothing had happened, that it ended where the budget did."""


class Policy(Protocol):
    """What a replay asks: the predictor, or something to compare it with."""

    def predict(self, context: StepContext, cost: CostModel) -> Budget:
        """The budget of a step."""
        ...

    def observe(self, context: StepContext, budget: Budget, used: int, truncated: bool) -> None:
        """What came of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A recorded step and what it was given."""

    source: str
    number: int
    """Of the step in its deployment, from 0."""
    sight: int
    """How often agent and tool have been seen, this time included."""
    context: StepContext
    budget: int
    """The target of the first attempt."""
    length: int
    """Tokens needed, the end of the text included."""
    allocated: int
    """Positions of all attempts."""
    calls: int
    needed: int
    """The length, rounded up to the quantum: what an oracle would allocate."""
    is_derived: bool
    """A part split off from a recorded step: replayed, and not measured."""


def replay(
    rows: Iterable[Mapping[str, Json]], *, quantum: int = 32, target: float = 0.97, seed: int = 7
) -> dict[str, Json]:
    """Replay recorded steps and measure.

    Args:
        rows: Steps with `src`, `ep`, `t`, `agent`, `kind`, `tool`, `model`, `prompt`, `last`, `out`
            and, where there was a schema, `min` and `max`. Rows with `derived` are replayed and not
            measured.
        quantum: Budgets are multiples of this many tokens.
        target: The wanted share of first attempts that fit.
        seed: Orders the episodes.

    Returns:
        `total`, `by_kind`, `by_source`, and of `arguments` steps the `first_sight` of a tool, and
        the `beginning` of each deployment; each with `steps`, `coverage` (share of first attempts
        that fit), `overshoot` (tokens allocated first / tokens needed), `lin` (positions with
        retries / an oracle's), `calls` a step and `wasted` tokens a step.

    Raises:
        ConfigurationError: A row lacks something, or an argument cannot be.
    """
    return measure(play(rows, quantum=quantum, target=target, seed=seed))


def play(
    rows: Iterable[Mapping[str, Json]],
    *,
    quantum: int = 32,
    target: float = 0.97,
    seed: int = 7,
    reports: Reports = "final",
    new_policy: Callable[[], Policy] | None = None,
) -> list[Played]:
    """Replay recorded steps, each deployment with a predictor of its own.

    `rows`, `quantum`, `target` and `seed` as for `replay`; `new_policy` makes what is asked in the
    place of the predictor.
    """
    cost = CanvasCost(quantum)

    def predictor() -> Policy:
        return LengthPredictor(target_miss=1 - target, ceiling=LARGEST)

    played: list[Played] = []
    for source, steps in _deployments(rows, seed).items():
        policy = (new_policy or predictor)()
        sights: dict[tuple[str, str | None], int] = {}
        for number, row in enumerate(steps):
            context = _context(row)
            length = row["out"] + 1  # the end-of-text token has a place on the canvas too
            budget = policy.predict(context, cost)
            fits = length <= budget.target
            used = length if fits or reports == "final" else budget.target
            policy.observe(context, budget, used, not fits and reports == "cut")
            canvas, allocated, calls = budget.target, budget.target, 1
            while canvas < min(length, LARGEST):
                canvas = min(LARGEST, 2 * canvas)
                allocated += canvas
                calls += 1
            name = (context.agent, context.tool)
            sights[name] = sights.get(name, 0) + 1
            played.append(
                Played(
                    source=source,
                    number=number,
                    sight=sights[name],
                    context=context,
                    budget=budget.target,
                    length=length,
                    allocated=allocated,
                    calls=calls,
                    needed=-(-length // quantum) * quantum,
                    is_derived=bool(row.get("derived")),
                )
            )
    return played


def measure(played: Iterable[Played]) -> dict[str, Json]:
    """The figures that `replay` returns."""
    steps = [step for step in played if not step.is_derived]
    by_kind: dict[str, list[Played]] = {}
    by_source: dict[str, list[Played]] = {}
    for step in steps:
        by_kind.setdefault(step.context.kind, []).append(step)
        by_source.setdefault(step.source, []).append(step)
    arguments = by_kind.get("arguments", [])
    return {
        "total": figures(steps),
        "by_kind": {kind: figures(of_kind) for kind, of_kind in sorted(by_kind.items())},
        "by_source": {source: figures(of_source) for source, of_source in by_source.items()},
        "first_sight": figures([step for step in arguments if step.sight == 1]),
        "beginning": figures([step for step in steps if step.number < BEGINNING]),
    }


def figures(steps: Sequence[Played]) -> dict[str, float]:
    """What some steps got, against what they needed."""
    count = len(steps)
    if not count:
        return {"steps": 0}
    return {
        "steps": count,
        "coverage": sum(step.budget >= step.length for step in steps) / count,
        "overshoot": sum(step.budget for step in steps) / sum(step.length for step in steps),
        "lin": sum(step.allocated for step in steps) / sum(step.needed for step in steps),
        "calls": sum(step.calls for step in steps) / count,
        "wasted": sum(max(0, step.budget - step.length) for step in steps) / count,
    }


def _deployments(
    rows: Iterable[Mapping[str, Json]], seed: int
) -> dict[str, list[Mapping[str, Json]]]:
    episodes: dict[str, dict[str, list[Mapping[str, Json]]]] = {}
    for number, row in enumerate(rows, start=1):
        _check(row, number)
        episodes.setdefault(row["src"], {}).setdefault(row["ep"], []).append(row)
    ordered: dict[str, list[Mapping[str, Json]]] = {}
    for source in sorted(episodes):
        names = list(episodes[source])
        random.Random(seed).shuffle(names)
        ordered[source] = [
            row
            for name in names
            for row in sorted(episodes[source][name], key=lambda row: cast("int", row["t"]))
        ]
    return ordered


def _check(row: Mapping[str, Json], number: int) -> None:
    texts, counts = ("src", "ep", "agent", "kind", "model"), ("t", "prompt", "last", "out")
    for names, kind, what in ((texts, str, "a text"), (counts, int, "a whole number")):
        for name in names:
            if not isinstance(value := row.get(name), kind):
                raise ConfigurationError(f"row {number}: `{name}` must be {what}, got {value!r}")
    if row["out"] < 0:
        raise ConfigurationError(f"row {number}: `out` must not be negative, got {row['out']!r}")


def _context(row: Mapping[str, Json]) -> StepContext:
    longest = row.get("max")
    return StepContext(
        agent=row["agent"],
        kind=OUR_KINDS.get(row["kind"], row["kind"]),
        tool=row.get("tool"),
        model=row["model"],
        schema_min=row.get("min") or 0,
        schema_max=None if longest is None else longest + 1,
        prompt_tokens=row["prompt"],
        last_tokens=row["last"],
        episode=row["ep"],
    )
