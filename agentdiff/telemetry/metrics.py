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

from agentdiff.generation import Finish, Request, StepKind
from agentdiff.messages import Usage
from agentdiff.telemetry import names

Labels = Mapping[str, names.AttributeValue]


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
    backend: str,
    mode: names.Semconv,
    *,
    seconds: float,
    first_commit_s: float | None,
    error: str | None,
) -> None:
    """Count one generation of a backend; `finish` is None when it did not come to its end."""
    made = _instruments()
    labels, read, written = _generation_labels(backend, request.kind, mode)
    made.duration.record(seconds, {**labels, "error.type": error} if error else labels)
    if first_commit_s is not None:
        made.first_commit.record(first_commit_s, labels)
    if finish is None:
        return
    usage, budget = finish.usage, finish.budget or request.budget
    if usage.input_tokens is not None:
        made.tokens.record(usage.input_tokens, read)
    if usage.output_tokens is not None:
        made.tokens.record(usage.output_tokens, written)
        if budget is not None:
            made.fill.record(usage.output_tokens / budget.target, labels)
    if finish.reason == "length":
        made.truncations.add(1, labels)


def count_call(
    values: names.Values,
    usage: Usage | None,
    mode: names.Semconv,
    *,
    seconds: float,
    error: str | None,
) -> None:
    """Count what was asked of a backend beside a generation; `usage` is None where it had none of its own."""
    made, labels = _instruments(), names.spelled({**values, names.ERROR_TYPE: error}, mode)
    made.duration.record(seconds, labels)
    if usage is None:
        return
    for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
        if count is not None:
            made.tokens.record(count, labels | names.spelled({names.TOKEN_TYPE: kind}, mode))


def count_run(agent: str, mode: names.Semconv, *, seconds: float, error: str | None) -> None:
    """Count one run."""
    _instruments().run_duration.record(seconds, _labels(names.AGENT, agent, mode, error))


def count_tool_call(tool: str, mode: names.Semconv, *, seconds: float, error: str | None) -> None:
    """Count one tool call."""
    _instruments().tool_duration.record(seconds, _labels(names.TOOL, tool, mode, error))


@functools.lru_cache(maxsize=256)
def _labels(name: names.Name, value: str, mode: names.Semconv, error: str | None) -> Labels:
    return names.spelled({name: value, names.ERROR_TYPE: error}, mode)


@functools.lru_cache(maxsize=64)
def _generation_labels(
    backend: str, kind: StepKind, mode: names.Semconv
) -> tuple[Labels, Labels, Labels]:
    """Those of a generation, and with them those of the tokens that it read and wrote."""
    labels = names.spelled({**names.generation_of(backend), names.STEP_KIND: kind}, mode)
    read = names.spelled({names.TOKEN_TYPE: "input"}, mode)
    written = names.spelled({names.TOKEN_TYPE: "output"}, mode)
    return labels, labels | read, labels | written


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
