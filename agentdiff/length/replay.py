"""Replay recorded steps: what the predictor would have allocated, against what was needed.

One deployment per source, starting from the shipped prior; episodes in a shuffled order, steps in
theirs; predict, then observe. An output that does not fit is written again on twice the budget, as
on a full canvas.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentdiff.generation import StepKind
from agentdiff.length.context import StepContext
from agentdiff.length.cost import LARGEST, CanvasCost
from agentdiff.length.predictor import LengthPredictor
from agentdiff.messages import Json

OUR_KINDS: Mapping[str, StepKind] = {"tool_args": "arguments"}
"""Names of kinds in recordings that differ from ours."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    budget: int
    length: int
    allocated: int
    calls: int
    needed: int
    """The length, rounded up to the quantum: what an oracle would allocate."""


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
        `total`, `by_kind` and `by_source`, each with `steps`, `coverage` (share of first attempts
        that fit), `overshoot` (tokens allocated first / tokens needed), `lin` (positions with
        retries / an oracle's), `calls` a step and `wasted` tokens a step.
    """
    total: list[_Outcome] = []
    by_kind: dict[str, list[_Outcome]] = {}
    by_source: dict[str, list[_Outcome]] = {}
    for source, steps in _deployments(rows, seed).items():
        predictor = LengthPredictor(target_miss=1 - target, ceiling=LARGEST)
        for row in steps:
            outcome = _step(predictor, row, CanvasCost(quantum))
            if not row.get("derived"):
                total.append(outcome)
                by_kind.setdefault(OUR_KINDS.get(row["kind"], row["kind"]), []).append(outcome)
                by_source.setdefault(source, []).append(outcome)
    return {
        "total": _measure(total),
        "by_kind": {kind: _measure(outcomes) for kind, outcomes in sorted(by_kind.items())},
        "by_source": {source: _measure(outcomes) for source, outcomes in by_source.items()},
    }


def _deployments(
    rows: Iterable[Mapping[str, Json]], seed: int
) -> dict[str, list[Mapping[str, Json]]]:
    episodes: dict[str, dict[str, list[Mapping[str, Json]]]] = {}
    for row in rows:
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


def _step(predictor: LengthPredictor, row: Mapping[str, Json], cost: CanvasCost) -> _Outcome:
    longest = row.get("max")
    context = StepContext(
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
    length = row["out"] + 1  # the end-of-text token has a place on the canvas too
    budget = predictor.predict(context, cost)
    predictor.observe(context, budget, used=length, truncated=False)
    canvas, allocated, calls = budget.target, budget.target, 1
    while canvas < min(length, LARGEST):
        canvas = min(LARGEST, 2 * canvas)
        allocated += canvas
        calls += 1
    needed = -(-length // cost.quantum) * cost.quantum
    return _Outcome(budget.target, length, allocated, calls, needed)


def _measure(outcomes: Sequence[_Outcome]) -> dict[str, float]:
    count = len(outcomes)
    if not count:
        return {"steps": 0}
    return {
        "steps": count,
        "coverage": sum(one.budget >= one.length for one in outcomes) / count,
        "overshoot": sum(one.budget for one in outcomes) / sum(one.length for one in outcomes),
        "lin": sum(one.allocated for one in outcomes) / sum(one.needed for one in outcomes),
        "calls": sum(one.calls for one in outcomes) / count,
        "wasted": sum(max(0, one.budget - one.length) for one in outcomes) / count,
    }
