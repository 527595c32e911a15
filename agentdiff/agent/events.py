"""What a run tells while it goes on, and what it leaves behind.

Events come in the order in which things happen; records are their finished form. Drafts appear only
in events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from agentdiff.agent.dataflow import PlanRun
from agentdiff.agent.plan import Plan
from agentdiff.generation import Budget, Enforcement, FinishReason, Stats, StepKind
from agentdiff.messages import Json, Message, ToolCall, Usage

Approval: TypeAlias = bool | str
"""What a person says to a call: yes, no, or no for a reason that the model is told."""

OutputT_co = TypeVar("OutputT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A tool call that is done."""

    tool: str
    arguments: Mapping[str, Json]
    result: Json = None
    """What the tool returned, as JSON; None when it failed."""
    error: str | None = None
    """Why it failed, as the model was told."""
    duration_s: float
    call_id: str = ""
    """Of the `ToolCall` that this record is of."""
    asks_again: bool = False
    """Whether the model was told to make the call again: wrong arguments, or `ModelRetry`."""
    approval: Approval | None = None
    """What a person said to it; None where nobody was asked."""
    usage: Usage = field(default_factory=lambda: Usage(requests=0))
    """Of runs that were made inside the call; part of the run's usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step that is done: a generation, and the tool calls it asked for."""

    number: int
    """From 1."""
    kind: StepKind
    """`route` when it called tools or only ended the calling, `answer` when it became the output.
    """
    reason: FinishReason
    """How the generation ended. After `refused`, and `length` with nothing whole, so does the run."""
    calls: tuple[CallRecord, ...] = ()
    """In the order in which the model asked for them."""
    text: str = ""
    budget: Budget | None
    """The budget that was in force, of the last attempt."""
    usage: Usage
    """Tokens of all attempts."""
    stats: Stats
    """Of the last attempt; `attempts` counts all."""
    enforcement: Enforcement
    model: str
    warnings: tuple[str, ...] = ()
    predicted: Budget | None = None
    """The budget of the first attempt."""
    duration_s: float | None = None
    """Seconds that its generation took, all attempts; its tool calls have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[OutputT_co]):
    """A run that is done."""

    output: OutputT_co
    messages: tuple[Message, ...]
    """The whole conversation; may be the `history` of the next run."""
    new_messages: tuple[Message, ...]
    """What this run added, from the prompt to the answer."""
    usage: Usage
    steps: tuple[StepRecord, ...]
    model: str
    """The model that answered, by its own name."""
    cost: float | None = None
    """By the agent's `price`; a lower bound where a backend did not count, None where none did."""
    plan: Plan | None = None
    """The last plan that ran; None where none did."""
    plan_runs: tuple[PlanRun, ...] = ()
    """How each plan ran: `critical_path_ms`, `sum_ms`, `parallel_gain`, and what became of each step."""
    trace_id: str | None
    """32 hex digits; None when nothing is traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A generation begins. The same number again: the one before was cut, forget its text."""

    number: int
    kind: StepKind
    budget: Budget
    """`Budget.off()` where none is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Text that may still change; replaces the draft before it."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Text that is final; appends, and ends the draft."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool call begins."""

    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A tool call is done, well or not."""

    call: ToolCall
    record: CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """A step is done, its tool calls included."""

    record: StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Generic[OutputT_co]):
    """The run is done; the last event. A run that fails raises instead."""

    result: RunResult[OutputT_co]


RunEvent = (
    StepStarted
    | Drafting
    | Committed
    | ToolStarted
    | ToolFinished
    | StepFinished
    | RunFinished[Any]
)
