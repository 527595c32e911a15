"""What can be counted over many runs: tokens, seconds, how budgets are filled, what they cut.

Instruments of `opentelemetry-api`: without a meter provider they record nothing and cost next to
nothing. Names and units are the GenAI conventions' where they have one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram, Meter

from agentdiff.generation import Finish, Request
from agentdiff.telemetry import names

Labels = Mapping[names.Name, names.AttributeValue | None]


@dataclass(frozen=True, slots=True)
class Instruments:
    """The instruments of one meter provider."""

    tokens: Histogram
    duration: Histogram
    first_commit: Histogram
    fill: Histogram
    truncations: Counter
    run_duration: Histogram
    tool_duration: Histogram


def count_generation(
    request: Request,
    finish: Finish | None,
    labels: Labels,
    *,
    seconds: float,
    first_commit_s: float | None,
    error: str | None,
) -> None:
    """Count one generation; `finish` is None when it did not come to its end."""
    made = _instruments()
    named = names.spelled({**labels, names.STEP_KIND: request.kind})
    ended = {**named, "error.type": error} if error else named
    made.duration.record(seconds, ended)
    if first_commit_s is not None:
        made.first_commit.record(first_commit_s, named)
    if finish is None:
        return
    usage, budget = finish.usage, finish.budget or request.budget
    for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
        if count is not None:
            made.tokens.record(count, {**named, "gen_ai.token.type": kind})
    if budget is not None and usage.output_tokens is not None:
        made.fill.record(usage.output_tokens / budget.target, named)
    if finish.reason == "length":
        made.truncations.add(1, named)


def count_run(labels: Labels, *, seconds: float, error: str | None) -> None:
    """Count one run."""
    _record(_instruments().run_duration, labels, seconds, error)


def count_tool_call(labels: Labels, *, seconds: float, error: str | None) -> None:
    """Count one tool call."""
    _record(_instruments().tool_duration, labels, seconds, error)


def _record(histogram: Histogram, labels: Labels, seconds: float, error: str | None) -> None:
    histogram.record(seconds, names.spelled({**labels, names.ERROR_TYPE: error}))


@functools.cache
def _instruments() -> Instruments:
    """Made once; the API wires them to the provider that the application sets, whenever it does."""
    return instruments_of(metrics.get_meter(names.SCOPE))


def instruments_of(meter: Meter) -> Instruments:
    """All instruments, made by a meter."""
    return Instruments(
        tokens=meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens read and written by a generation."
        ),
        duration=meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Time of a generation."
        ),
        first_commit=meter.create_histogram(
            "agentdiff.time_to_first_commit", "s", "Time to the first text that is final."
        ),
        fill=meter.create_histogram(
            "agentdiff.budget.fill", "1", "Tokens written divided by tokens expected."
        ),
        truncations=meter.create_counter(
            "agentdiff.truncations", "{generation}", "Generations that their budget cut."
        ),
        run_duration=meter.create_histogram("agentdiff.run.duration", "s", "Time of a run."),
        tool_duration=meter.create_histogram(
            "agentdiff.tool.duration", "s", "Time of a tool call."
        ),
    )
