"""The agent: a backend, instructions, tools, and the type of the output, put together and checked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import NoneType
from typing import Any, ParamSpec, TypeVar, overload

from typing_extensions import TypeVar as DefaultTypeVar

from agentdiff.agent.budgets import BudgetChoice, StepSettings, check
from agentdiff.agent.config import (
    Approve,
    Instructions,
    ModelHook,
    OnToolError,
    RunConfig,
    ToolHook,
)
from agentdiff.agent.context import DepsT, RunContext
from agentdiff.agent.limits import Pricing, Spending, UsageLimits
from agentdiff.agent.output import Output, OutputT
from agentdiff.agent.parameters import takes_context
from agentdiff.agent.runner import Runner
from agentdiff.agent.tools import AnyTool, NeedsApproval, Tool, as_tool, by_name, tool
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Backend, Budget, Sampling, StepKind
from agentdiff.length import LengthPredictor, schema_bounds

P = ParamSpec("P")
R = TypeVar("R")
D = DefaultTypeVar("D", default=None)
ValidatorT = TypeVar("ValidatorT", bound=Callable[..., Any])


class Agent(Runner[OutputT, DepsT]):
    """Answers prompts with a backend and tools.

    An agent keeps nothing of its runs but what its predictor learned about lengths, so any number
    of runs may be under way at once. It does not own the backend: close that yourself.
    """

    @overload
    def __init__(
        self,
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: Instructions = "",
        output_type: type[OutputT] = str,
        deps_type: type[DepsT] = ...,
        name: str = "agent",
        limits: UsageLimits | None = None,
        budget: BudgetChoice = "auto",
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        steps: Mapping[StepKind, StepSettings] | None = None,
        retries: int = 3,
        max_output_repairs: int = 1,
        cut_retries: int = 1,
        on_tool_error: OnToolError = "tell",
        approve: Approve | None = None,
        price: Pricing | None = None,
        model_hooks: Sequence[ModelHook] = (),
        tool_hooks: Sequence[ToolHook] = (),
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, D],
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: Instructions = "",
        output_type: object,
        deps_type: type[D] = ...,
        name: str = "agent",
        limits: UsageLimits | None = None,
        budget: BudgetChoice = "auto",
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        steps: Mapping[StepKind, StepSettings] | None = None,
        retries: int = 3,
        max_output_repairs: int = 1,
        cut_retries: int = 1,
        on_tool_error: OnToolError = "tell",
        approve: Approve | None = None,
        price: Pricing | None = None,
        model_hooks: Sequence[ModelHook] = (),
        tool_hooks: Sequence[ToolHook] = (),
    ) -> None: ...
    def __init__(
        self,
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: Instructions = "",
        output_type: object = str,
        deps_type: type[Any] = NoneType,
        name: str = "agent",
        limits: UsageLimits | None = None,
        budget: BudgetChoice = "auto",
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        steps: Mapping[StepKind, StepSettings] | None = None,
        retries: int = 3,
        max_output_repairs: int = 1,
        cut_retries: int = 1,
        on_tool_error: OnToolError = "tell",
        approve: Approve | None = None,
        price: Pricing | None = None,
        model_hooks: Sequence[ModelHook] = (),
        tool_hooks: Sequence[ToolHook] = (),
    ) -> None:
        """Put an agent together; nothing is sent.

        Args:
            backend: Who answers.
            tools: What the model may call: `Tool`s or typed functions.
            instructions: The system message, or a function of the `RunContext` that writes it.
            output_type: `str`, or any type that pydantic reads from JSON: a model, a dataclass, a
                `TypedDict`, a list, a union. With `str` in a union, a reply in words is an output.
            deps_type: Of the `deps` that runs are given and that tools find in their `RunContext`.
            name: For traces, and to tell the lengths of this agent's steps from those of others.
            limits: Of each run; `UsageLimits()` by default.
            budget: Of each generation: `"auto"`, tokens, a `Budget`, or these by the name of a tool
                or the kind of a step. What stands at a tool gives way to anything else than `"auto"`.
            predictor: Sets the budget of every step and learns from it; a new one, in memory, by
                default.
            sampling: How tokens are chosen.
            steps: Backend, sampling and budget for steps of one kind, where they differ.
            retries: How often in a row the model may be told to make a call of one tool again.
            max_output_repairs: How often an output that is not valid is shown its faults and asked
                for again.
            cut_retries: How often a generation that its predicted budget cut is continued or made
                again; 0 fails at once.
            on_tool_error: What becomes of an exception in a tool: `tell`, `hide` or `raise`, or a
                function that says what the model reads.
            approve: Asks a person about a call that needs approval; without it, or where it gives
                None, the run ends with `RunPaused`.
            price: What generations cost, for `limits.cost` and `result.cost`.
            model_hooks: Stand around every generation, the first outermost.
            tool_hooks: Stand around every tool call, the first outermost.

        Raises:
            ConfigurationError: A tool or the output type cannot be used, or the backend cannot do
                it.
        """
        _check_backend(backend)
        for each in (steps or {}).values():
            if each.backend is not None:
                _check_backend(each.backend)
            check(each.budget)
        for what, number in (
            ("retries", retries),
            ("max_output_repairs", max_output_repairs),
            ("cut_retries", cut_retries),
        ):
            if number < 0:
                raise ConfigurationError(f"`{what}` must not be negative, got {number!r}")
        check(budget)
        output: Output[OutputT] = Output(output_type)
        config = RunConfig(
            agent=name,
            backend=backend,
            instructions=instructions,
            deps_type=deps_type,
            tools={},
            specs=(),
            shortest_call=0,
            tool_budgets={},
            output=output,
            validators=(),
            limits=limits or UsageLimits(),
            predictor=predictor or LengthPredictor(),
            sampling=sampling or Sampling(),
            steps=dict(steps or {}),
            budget=None if budget == "auto" else budget,
            max_output_repairs=max_output_repairs,
            retries=retries,
            cut_retries=cut_retries,
            on_tool_error=on_tool_error,
            approve=approve,
            price=price,
            model_hooks=tuple(model_hooks),
            tool_hooks=tuple(tool_hooks),
        )
        self._config = _with_tools(config, [as_tool(each) for each in tools])
        Spending(self._config.limits, price=price)  # a limit of cost needs a price

    @property
    def name(self) -> str:
        """Its name in traces and in what was learned."""
        return self._config.agent

    @property
    def instructions(self) -> Instructions:
        """The system message, or the function that writes it."""
        return self._config.instructions

    @property
    def backend(self) -> Backend:
        """Who answers."""
        return self._config.backend

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """What the model may call."""
        return tuple(self._config.tools.values())

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
        sequential: bool = False,
        in_thread: bool = True,
        grounded: bool = False,
        approval: NeedsApproval = False,
        retries: int | None = None,
        budget: int | Budget | None = None,
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    def tool(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
        sequential: bool = False,
        in_thread: bool = True,
        grounded: bool = False,
        approval: NeedsApproval = False,
        retries: int | None = None,
        budget: int | Budget | None = None,
    ) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
        """Make a tool of a function, as `@tool` does, and give it to this agent.

        Runs that are under way go on without it.
        """

        def add(function: Callable[P, R]) -> Tool[P, R]:
            made = tool(
                name=name,
                description=description,
                timeout_s=timeout_s,
                sequential=sequential,
                in_thread=in_thread,
                grounded=grounded,
                approval=approval,
                retries=retries,
                budget=budget,
            )(function)
            self._config = _with_tools(self._config, [*self.tools, made])
            return made

        return add if function is None else add(function)

    def output_validator(self, function: ValidatorT, /) -> ValidatorT:
        """Have every output pass a function, sync or async, before it is the output.

        It takes the output, or a `RunContext` and the output; gives the output, the same or a
        better one; and raises `ModelRetry` to have the model write it again. Validators stand one
        behind the other in the order in which they were given.
        """
        validators = (*self._config.validators, _with_context(function))
        self._config = replace(self._config, validators=validators)
        return function

    @contextmanager
    def override(
        self,
        *,
        backend: Backend | None = None,
        tools: Sequence[AnyTool | Callable[..., Any]] | None = None,
        budget: BudgetChoice | None = None,
    ) -> Generator[None]:
        """Another backend, other tools or another budget for the runs that begin in this block.

        The backend takes the place of those of single kinds of steps, too. For tests: it holds in
        every task and thread, so two overrides of one agent must not overlap.
        """
        before = config = self._config
        if backend is not None:
            _check_backend(backend)
            plain = {kind: replace(each, backend=None) for kind, each in config.steps.items()}
            config = replace(config, backend=backend, steps=plain)
        if budget is not None:
            check(budget)
            config = replace(config, budget=budget)
        given = self.tools if tools is None else [as_tool(each) for each in tools]
        self._config = _with_tools(config, given)
        try:
            yield
        finally:
            self._config = before


def _with_tools(config: RunConfig[OutputT], tools: Sequence[AnyTool]) -> RunConfig[OutputT]:
    """The same agent with these tools.

    Raises:
        ConfigurationError: Two have one name, or the backend cannot take them.
    """
    named = by_name(tools)
    capabilities, name, count = config.backend.capabilities, config.backend.name, len(named)
    if count and not capabilities.tools:
        raise ConfigurationError(f"backend `{name}` cannot call tools, and {count} were given")
    if capabilities.max_tools is not None and count > capabilities.max_tools:
        raise ConfigurationError(
            f"backend `{name}` takes at most {capabilities.max_tools} tools, got {count};"
            " give it fewer, or use a larger model"
        )
    return replace(
        config,
        tools=named,
        specs=tuple(each.spec for each in named.values()),
        shortest_call=min(
            (schema_bounds(each.parameters).min_tokens for each in named.values()), default=0
        ),
        tool_budgets={each.name: each.budget for each in named.values() if each.budget is not None},
    )


def _with_context(function: Callable[..., Any]) -> Callable[[RunContext[Any], Any], Awaitable[Any]]:
    wants_context = takes_context(function)

    async def call(context: RunContext[Any], value: Any) -> Any:
        answer = function(context, value) if wants_context else function(value)
        return await answer if inspect.isawaitable(answer) else answer

    return call


def _check_backend(backend: object) -> None:
    if not isinstance(backend, Backend):
        raise ConfigurationError(
            f"`backend` must be a Backend, got {backend!r}; `connect(...)` makes one"
        )
