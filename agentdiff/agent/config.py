"""What all runs of an agent share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias

from agentdiff.agent.budgets import BudgetChoice, StepSettings
from agentdiff.agent.context import RunContext
from agentdiff.agent.events import Approval, RunEvent
from agentdiff.agent.limits import Pricing, UsageLimits
from agentdiff.agent.output import Output, OutputT
from agentdiff.agent.tools import AnyTool
from agentdiff.generation import Backend, Budget, Request, Result, Sampling, StepKind
from agentdiff.length import LengthPredictor
from agentdiff.messages import ToolCall, ToolSpec

Mode: TypeAlias = Literal["auto", "react", "plan"]
"""How a run goes about its task.

`react`: a call, its result, the next call. `plan`: all calls planned first, those that need nothing of
each other at once. `auto`: plans where two or more tools look needed.
"""
Emit: TypeAlias = Callable[[RunEvent], Awaitable[None]]

ModelHook: TypeAlias = Callable[
    [Request, Callable[[Request], Awaitable[Result]]], Awaitable[Result]
]
"""Stands around a generation: gets the request and the way to make it, gives the result."""
ToolHook: TypeAlias = Callable[
    [RunContext[Any], ToolCall, Callable[[ToolCall], Awaitable[Any]]], Awaitable[Any]
]
"""Stands around a tool call: gets the call and the way to run it, gives what the tool returns."""
Approve: TypeAlias = Callable[[ToolCall], Approval | Awaitable[Approval | None] | None]
"""Asks a person about a call; None where nobody is there to say, and the run pauses."""
OnToolError: TypeAlias = Literal["tell", "hide", "raise"] | Callable[[ToolCall, Exception], str]
"""What becomes of an exception in a tool.

`tell`: the model reads its type and message; `hide`: the model reads that the tool failed; `raise`:
it ends the run; a function says what the model reads. What a tool raises for the model
(`ToolFailed`, `ModelRetry`, wrong arguments) is always told.
"""
Instructions: TypeAlias = str | Callable[[RunContext[Any]], str | Awaitable[str]]
"""The system message, or a function, async or not, that writes it for a run."""
Validator: TypeAlias = Callable[[RunContext[Any], Any], Awaitable[Any]]
"""Takes an output; gives it, the same or a better one, or raises `ModelRetry`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Generic[OutputT]):
    """An agent, put together and checked."""

    agent: str
    """The agent's name."""
    backend: Backend
    instructions: Instructions
    deps_type: object
    """Of the `deps` of its runs; `NoneType` where it takes none."""
    tools: Mapping[str, AnyTool]
    """By name, in the order in which the model sees them."""
    specs: tuple[ToolSpec, ...]
    """The same tools as the model sees them."""
    shortest_call: int
    """Tokens of the shortest arguments that any tool takes; 0 without tools."""
    tool_budgets: Mapping[str, Budget]
    """Of the tools that bring one."""
    output: Output[OutputT]
    validators: tuple[Validator, ...]
    limits: UsageLimits
    predictor: LengthPredictor
    sampling: Sampling
    steps: Mapping[StepKind, StepSettings]
    budget: BudgetChoice | None
    max_output_repairs: int
    retries: int
    """How often in a row the model may be told to make a call of one tool again."""
    cut_retries: int
    """How often a generation that its budget cut is made again."""
    on_tool_error: OnToolError
    approve: Approve | None
    price: Pricing | None
    model_hooks: tuple[ModelHook, ...]
    tool_hooks: tuple[ToolHook, ...]

    def backend_of(self, kind: StepKind) -> Backend:
        """Who makes the steps of a kind."""
        settings = self.steps.get(kind)
        return self.backend if settings is None or settings.backend is None else settings.backend

    def sampling_of(self, kind: StepKind) -> Sampling:
        """How tokens are chosen in the steps of a kind."""
        settings = self.steps.get(kind)
        return self.sampling if settings is None or settings.sampling is None else settings.sampling
