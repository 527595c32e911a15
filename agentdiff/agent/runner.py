"""What can be asked of an agent: to run, to be followed, to plan, to resume, to be a tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any, Generic, cast

import anyio

from agentdiff.agent.budgets import BudgetChoice
from agentdiff.agent.config import Mode, RunConfig
from agentdiff.agent.context import DepsT, RunContext
from agentdiff.agent.events import Approval, RunEvent, RunResult
from agentdiff.agent.following import followed
from agentdiff.agent.journal import JournaledRun
from agentdiff.agent.lifetime import only_plan, run
from agentdiff.agent.limits import UsageLimits
from agentdiff.agent.output import OutputT
from agentdiff.agent.plan import Plan
from agentdiff.agent.state import RunState
from agentdiff.agent.task import new_task, resumed_task
from agentdiff.agent.tools import AnyTool, tool
from agentdiff.errors import ConfigurationError, RunPaused, ToolFailed
from agentdiff.messages import Message

_NO_DEPS: Any = None


class Runner(Generic[OutputT, DepsT]):
    """The runs of an agent; `Agent` is one, and says what there is to run."""

    _config: RunConfig[OutputT]
    """Read once by each run, which goes on with it whatever changes."""

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
        task = await new_task(
            config,
            prompt,
            deps=deps,
            history=history,
            limits=limits,
            budget=budget,
            mode=mode,
            plan=plan,
            journal=journal,
        )
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
        task = await new_task(
            config,
            prompt,
            deps=deps,
            history=history,
            limits=limits,
            budget=budget,
            mode=mode,
            plan=plan,
            journal=journal,
        )
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
        config = self._config
        task = await new_task(config, prompt, deps=deps, history=history, mode="plan")
        return await only_plan(config, task)

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
            ConfigurationError: The state is another agent's, or has no such call that waits.
            AgentDiffError: As `run`.
        """
        config = self._config
        task = resumed_task(
            config,
            state,
            approvals=approvals,
            deps=deps,
            limits=limits,
            budget=budget,
            journal=journal,
        )
        return await run(config, task, past=state, emit=None)

    @asynccontextmanager
    async def resume_events(
        self,
        state: RunState,
        *,
        approvals: Mapping[str, Approval] | None = None,
        deps: DepsT = _NO_DEPS,
        limits: UsageLimits | None = None,
        budget: BudgetChoice | None = None,
        journal: JournaledRun | None = None,
    ) -> AsyncGenerator[AsyncIterator[RunEvent]]:
        """`resume` as it goes on: the same stream of events as `run_events`.

        Of what an earlier life had done, each step that was finished is told as its `StepFinished`
        alone.
        """
        config = self._config
        task = resumed_task(
            config,
            state,
            approvals=approvals,
            deps=deps,
            limits=limits,
            budget=budget,
            journal=journal,
        )
        async with followed(lambda emit: run(config, task, past=state, emit=emit)) as events:
            yield events

    def as_tool(self, *, name: str | None = None, description: str = "") -> AnyTool:
        """This agent as a tool of another: it takes a prompt and gives its output.

        A run inside a run keeps to the deadline and the limits of the outer one, and what it uses
        counts there too. It is given the outer run's `deps` where this agent takes any.

        Args:
            name: The tool's name, if not the agent's.
            description: What to ask it for.
        """

        async def ask(context: RunContext[Any], prompt: str) -> OutputT:
            deps = cast("Any", None if self._config.deps_type is NoneType else context.deps)
            try:
                return (await self.run(prompt, deps=deps)).output
            except RunPaused as paused:
                raise ToolFailed(
                    f"{paused.args[0].partition(';')[0]}; nobody can be asked inside another agent"
                ) from paused

        return tool(name=name or self._config.agent, description=description)(ask)


def _in_event_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True
