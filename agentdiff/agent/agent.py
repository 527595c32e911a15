"""The agent: a backend, instructions, tools, and the type of the output."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import NoneType
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import anyio
from typing_extensions import TypeVar as DefaultTypeVar

from agentdiff.agent.budgets import BudgetChoice, StepSettings, check
from agentdiff.agent.config import (
    Approve,
    Instructions,
    Mode,
    ModelHook,
    OnToolError,
    RunConfig,
    Task,
    ToolHook,
)
from agentdiff.agent.context import DepsT, RunContext
from agentdiff.agent.events import Approval, RunEvent, RunResult
from agentdiff.agent.following import followed
from agentdiff.agent.history import repaired
from agentdiff.agent.journal import JournaledRun
from agentdiff.agent.limits import Pricing, Spending, UsageLimits, spending_around
from agentdiff.agent.output import Output, OutputT
from agentdiff.agent.parameters import takes_context
from agentdiff.agent.plan import Plan
from agentdiff.agent.run import only_plan, run
from agentdiff.agent.state import RunState
from agentdiff.agent.tools import AnyTool, NeedsApproval, Tool, as_tool, by_name, tool
from agentdiff.errors import ConfigurationError, RunPaused, ToolFailed
from agentdiff.generation import Backend, Budget, Sampling, StepKind
from agentdiff.length import LengthPredictor, schema_bounds
from agentdiff.messages import Message, system

P = ParamSpec("P")
R = TypeVar("R")
D = DefaultTypeVar("D", default=None)
_NO_DEPS: Any = None
ValidatorT = TypeVar("ValidatorT", bound=Callable[..., Any])


class Agent(Generic[OutputT, DepsT]):
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
        self.name = name
        self.instructions = instructions
        self._deps_type: object = deps_type
        output: Output[OutputT] = Output(output_type)
        self._config = RunConfig(
            agent=name,
            backend=backend,
            tools={},
            specs=(),
            shortest_call={},
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
        self._config = _with_tools(self._config, [as_tool(each) for each in tools])
        Spending(self._config.limits, price=price)  # a limit of cost needs a price

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

    async def run(
        self,
        prompt: str,
        *,
        deps: DepsT = _NO_DEPS,
        history: Sequence[Message] = (),
        limits: UsageLimits | None = None,
        budget: BudgetChoice | None = None,
        mode: Mode = "react",
        plan: Plan | None = None,
        journal: JournaledRun | None = None,
    ) -> RunResult[OutputT]:
        """Answer a prompt.

        Args:
            prompt: What the user asks.
            deps: What tools, validators and instructions find in their `RunContext`.
            history: The conversation before it, such as `messages` of an earlier result. This
                agent's instructions take the place of the system message there. Calls without a
                result, as a cancelled run leaves them, are closed.
            limits: In place of the agent's.
            budget: Before all other budgets.
            mode: `react`: a call, its result, the next call. `plan`: all calls are planned first, and
                those that need nothing of each other run at once. `auto`: plans where two or more
                tools look needed.
            plan: A plan to run, in place of one that the model makes.
            journal: Where the run is written down while it goes on. A run that is there already
                goes on where it was, and one that had ended gives its result again.

        Raises:
            ConfigurationError: The prompt is empty, or the backend cannot do what was asked for.
            RunPaused: Calls wait for a person; see `resume`.
            RunError: The run ended without an output.
            BackendError: The backend failed. Like every error that ends a run, it carries the
                `messages`, the `usage` and the `steps` until then.
            StoreError: The journal cannot be used.
        """
        config = self._config
        task = await self._task(prompt, deps, history, limits, budget, mode, plan, journal)
        return await run(config, task, emit=None)

    def run_sync(
        self,
        prompt: str,
        *,
        deps: DepsT = _NO_DEPS,
        history: Sequence[Message] = (),
        limits: UsageLimits | None = None,
        budget: BudgetChoice | None = None,
        mode: Mode = "react",
        plan: Plan | None = None,
        journal: JournaledRun | None = None,
    ) -> RunResult[OutputT]:
        """`run` for code that is not async; the same errors.

        Raises:
            ConfigurationError: There is a running event loop in this thread.
        """
        if _in_event_loop():
            raise ConfigurationError(
                "`run_sync` was called inside a running event loop; use `await agent.run(...)`"
            )

        async def main() -> RunResult[OutputT]:
            return await self.run(
                prompt,
                deps=deps,
                history=history,
                limits=limits,
                budget=budget,
                mode=mode,
                plan=plan,
                journal=journal,
            )

        return anyio.run(main)

    @asynccontextmanager
    async def run_events(
        self,
        prompt: str,
        *,
        deps: DepsT = _NO_DEPS,
        history: Sequence[Message] = (),
        limits: UsageLimits | None = None,
        budget: BudgetChoice | None = None,
        mode: Mode = "react",
        plan: Plan | None = None,
        journal: JournaledRun | None = None,
    ) -> AsyncGenerator[AsyncIterator[RunEvent]]:
        """`run` as it goes on: opens an iterator of events, the last of which is `RunFinished`.

        Leaving the context early cancels the generation and the tools. An error of the run is
        raised by the iterator.
        """
        config = self._config
        task = await self._task(prompt, deps, history, limits, budget, mode, plan, journal)
        async with followed(lambda emit: run(config, task, emit=emit)) as events:
            yield events

    async def plan(
        self, prompt: str, *, deps: DepsT = _NO_DEPS, history: Sequence[Message] = ()
    ) -> Plan:
        """Have a plan made and held against the tools; nothing of it runs.

        `run(prompt, plan=…)` runs it, as it is or changed.

        Raises:
            PlanInvalid: The model wrote none that can run.
            AgentDiffError: As `run`.
        """
        task = await self._task(prompt, deps, history, None, None, "plan", None, None)
        return await only_plan(self._config, task)

    async def resume(
        self,
        state: RunState,
        *,
        approvals: Mapping[str, Approval] | None = None,
        deps: DepsT = _NO_DEPS,
        limits: UsageLimits | None = None,
        budget: BudgetChoice | None = None,
        journal: JournaledRun | None = None,
    ) -> RunResult[OutputT]:
        """Go on with a run that was paused, in this process or another.

        What its state holds is not done again: generations, tool calls, spending. The clock of
        `wall_s` begins anew.

        Args:
            state: From `RunPaused.state`, `RunState.from_json`, or `JournaledRun.state`.
            approvals: What a person says, by the id of the call: True, False, or why not. A call
                that needs it and is not named here pauses the run again.
            deps: The state holds none; give them again.
            limits: In place of the agent's.
            budget: Before all other budgets.
            journal: Where the run is written down while it goes on.

        Raises:
            ConfigurationError: The state is another agent's, or has no call of that id.
            AgentDiffError: As `run`.
        """
        if state.agent != self.name:
            raise ConfigurationError(
                f"the state is of a run of agent {state.agent!r}, and this one is {self.name!r}"
            )
        self._check_deps(deps)
        check(budget)
        task = Task(
            prompt=state.prompt,
            before=state.before,
            deps=deps,
            limits=limits,
            budget=budget,
            mode=state.mode,
            plan=state.plan,
            journal=journal,
            approvals=approvals,
        )
        return await run(self._config, task, past=state, emit=None)

    def as_tool(self, *, name: str | None = None, description: str = "") -> AnyTool:
        """This agent as a tool of another: it takes a prompt and gives its output.

        A run inside a run keeps to the deadline and the limits of the outer one, and what it uses
        counts there too. It is given the outer run's `deps` where this agent takes any.

        Args:
            name: The tool's name, if not the agent's.
            description: What to ask it for.
        """

        async def ask(context: RunContext[Any], prompt: str) -> OutputT:
            deps = cast("Any", None if self._deps_type is NoneType else context.deps)
            try:
                return (await self.run(prompt, deps=deps)).output
            except RunPaused as paused:
                raise ToolFailed(
                    f"{paused.args[0].partition(';')[0]}; nobody can be asked inside another agent"
                ) from paused

        return tool(name=name or self.name, description=description)(ask)

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

    async def _task(
        self,
        prompt: str,
        deps: Any,
        history: Sequence[Message],
        limits: UsageLimits | None,
        budget: BudgetChoice | None,
        mode: Mode,
        plan: Plan | None,
        journal: JournaledRun | None,
    ) -> Task:
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty; say what is to be done")
        self._check_deps(deps)
        check(budget)
        before = repaired(history)
        if instructions := await self._written_instructions(deps, before):
            before = (system(instructions), *(each for each in before if each.role != "system"))
        return Task(
            prompt=prompt,
            before=before,
            deps=deps,
            limits=limits,
            budget=budget,
            mode=mode,
            plan=plan,
            journal=journal,
        )

    async def _written_instructions(self, deps: Any, before: tuple[Message, ...]) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        around = spending_around() or Spending(self._config.limits, price=self._config.price)
        written = self.instructions(
            RunContext(
                deps=deps,
                agent=self.name,
                step=1,
                messages=before,
                usage=around.usage,
                _left_s=around.left_s,
            )
        )
        return await written if inspect.isawaitable(written) else written

    def _check_deps(self, deps: object) -> None:
        wanted = self._deps_type
        if isinstance(wanted, type) and not isinstance(deps, wanted):
            how = f"an instance of `{wanted.__name__}`, its `deps_type`"
            if wanted is NoneType:
                how = "no `deps`: it has no `deps_type`"
            raise ConfigurationError(f"agent `{self.name}` takes {how}, got {type(deps).__name__}")


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
        shortest_call={
            name: schema_bounds(each.parameters).min_tokens for name, each in named.items()
        },
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


def _in_event_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True
