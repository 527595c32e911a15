"""`--json`: a run as one JSON object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from pydantic_core import to_jsonable_python

from agentdiff.agent import RunEvent, RunFinished, RunResult, StepFinished, StepRecord
from agentdiff.errors import AgentDiffError
from agentdiff.messages import Json, Usage

if TYPE_CHECKING:
    from agentdiff.generation import Backend, Stats


class JsonDisplay:
    """Says nothing until the end; then prints the object, also where the run ended in an error.

    What tools print meanwhile goes to stderr.
    """

    def __init__(self) -> None:
        self._stdout: TextIO | None = None
        self._steps: list[StepRecord] = []
        self._model = ""

    def __enter__(self) -> JsonDisplay:
        self._stdout, sys.stdout = sys.stdout, sys.stderr
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._stdout is not None
        sys.stdout = self._stdout
        if isinstance(error, AgentDiffError | KeyboardInterrupt):
            print(_dumps(self._failure(error)))

    @contextmanager
    def loading(self, spec: str) -> Generator[None]:
        """See `Display.loading`."""
        yield

    def begin(self, backend: Backend) -> None:
        """See `Display.begin`."""
        self._model = backend.name

    def show(self, event: RunEvent) -> float:
        """See `Display.show`."""
        if isinstance(event, StepFinished):
            self._steps.append(event.record)
        elif isinstance(event, RunFinished):
            print(_dumps(as_object(event.result)), file=self._stdout)
        return 0.0

    def _failure(self, error: BaseException) -> dict[str, Json]:
        usage = sum((step.usage for step in self._steps), Usage(requests=0))
        is_interrupt = isinstance(error, KeyboardInterrupt)
        return {
            "output": None,
            "steps": steps_as_objects(self._steps),
            "usage": _known(asdict(usage)),
            "model": self._steps[-1].model if self._steps else self._model,
            "error": {
                "type": "Interrupted" if is_interrupt else type(error).__name__,
                "message": "interrupted" if is_interrupt else str(error),
            },
        }


def as_object(result: RunResult[Any]) -> dict[str, Json]:
    """A run that is done."""
    return {
        "output": result.output,
        "steps": steps_as_objects(result.steps),
        "usage": _known(asdict(result.usage)),
        "model": result.model,
    }


def steps_as_objects(steps: Sequence[StepRecord]) -> list[dict[str, Json]]:
    """One object for each tool call, and one for each step without calls.

    What a step cost stands in its first object only, so that sums over all objects are right.
    """
    rows: list[dict[str, Json]] = []
    for step in steps:
        cost: dict[str, Json] = {
            "budget": step.budget
            and {"target": step.budget.target, "used": step.usage.output_tokens},
            "stats": stats_as_object(step.stats, step.usage.output_tokens),
            "enforcement": step.enforcement,
        }
        if step.warnings:
            cost["warnings"] = list(step.warnings)
        if not step.calls:
            rows.append({"kind": step.kind, "tool": None, "arguments": None, "result": None} | cost)
        for number, call in enumerate(step.calls):
            row: dict[str, Json] = {
                "kind": step.kind,
                "tool": call.tool,
                "arguments": dict(call.arguments),
                "result": call.result,
            }
            if call.error is not None:
                row["error"] = call.error
            same = {"budget": None, "stats": None, "enforcement": step.enforcement}
            rows.append(row | (same if number else cost))
    return rows


def stats_as_object(stats: Stats, output_tokens: int | None) -> dict[str, Json]:
    """What is known of the cost of a generation; what is not is left out."""
    per_forward = stats.tokens_per_forward(output_tokens)
    return _known(asdict(stats) | {"tokens_per_forward": per_forward})


def _known(values: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in values.items() if value is not None}


def _dumps(value: Json) -> str:
    plain = to_jsonable_python(value, inf_nan_mode="null", fallback=str)
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return json.dumps(plain, indent=2, ensure_ascii=not is_unicode)
