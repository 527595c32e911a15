"""A run from its first word to its end: traced, written down and timed.

It ends in a result, or in an error that carries what there was.
"""

from __future__ import annotations

from typing import Any

import anyio

from agentdiff.agent.auto import looks_like_several
from agentdiff.agent.config import Emit, RunConfig
from agentdiff.agent.events import RunFinished, RunResult
from agentdiff.agent.loop import loop
from agentdiff.agent.output import OutputT
from agentdiff.agent.plan import Plan
from agentdiff.agent.planned import carry_out, make_plan
from agentdiff.agent.run import Run
from agentdiff.agent.state import RunState
from agentdiff.agent.task import Task
from agentdiff.errors import AgentDiffError, LimitExceeded, TimedOut
from agentdiff.telemetry import invoke_agent


async def run(
    config: RunConfig[OutputT], task: Task, *, past: RunState | None = None, emit: Emit | None
) -> RunResult[OutputT]:
    """Run one request to its end. Emits every event; the last is `RunFinished`.

    Args:
        config: The agent.
        task: What is to be done.
        past: What an earlier life of this run has done.
        emit: Takes the events in order, and the run waits for it; None where nobody watches.

    Raises:
        RunError: The run ended without an output.
        BackendError: The backend failed.
        ConfigurationError: The backend cannot do what was asked for.
        StoreError: The journal cannot be written.

    Each of them carries the conversation, the usage and the steps so far.
    """
    if past is None:
        past = RunState(
            agent=config.agent,
            prompt=task.prompt,
            before=task.before,
            mode=task.mode,
            plan=task.plan,
        )
    if task.journal is not None:
        past = await task.journal.begin(past)
    with invoke_agent(agent=config.agent, model=config.backend.name) as span:
        this = Run(config, task, past, emit, span)
        try:
            output = await _in_time(this)
        except AgentDiffError as error:
            error.messages = tuple(this.messages)
            error.usage = this.spending.usage
            error.steps = tuple(this.steps)
            raise
        finally:
            this.report()
        result = RunResult(
            output=output,
            messages=tuple(this.messages),
            new_messages=tuple(this.messages[len(past.before) :]),
            usage=this.spending.usage,
            steps=tuple(this.steps),
            model=this.steps[-1].model,
            cost=this.spending.cost,
            plan=this.plans[-1][0] if this.plans else None,
            plan_runs=tuple(planned for _, planned in this.plans),
            trace_id=span.trace_id,
        )
    if task.journal is not None:
        await task.journal.end()
    if emit is not None:
        await emit(RunFinished(result=result))
    return result


async def only_plan(config: RunConfig[Any], task: Task) -> Plan:
    """Have a plan made for the task, and run nothing of it.

    Raises:
        PlanInvalid: The model wrote none that can run.
        AgentDiffError: As `run`.
    """
    past = RunState(agent=config.agent, prompt=task.prompt, before=task.before)
    with invoke_agent(agent=config.agent, model=config.backend.name) as span:
        this = Run(config, task, past, None, span)
        try:
            return await make_plan(this)
        finally:
            this.report()


async def _in_time(run: Run[OutputT]) -> OutputT:
    """The run, cancelled when its time is over."""
    wall_s = run.spending.limits.wall_s
    if wall_s is None:
        return await _by_its_mode(run)
    run.spending.start_clock()
    with anyio.move_on_after(wall_s):
        try:
            return await _by_its_mode(run)
        except TimedOut as error:  # a backend that knows the deadline may notice it first
            if not run.spending.is_late:
                raise
            raise LimitExceeded("seconds", limit=wall_s) from error
    raise LimitExceeded("seconds", limit=wall_s)


async def _by_its_mode(run: Run[OutputT]) -> OutputT:
    begun = run.memory.past
    if begun.plan is None:
        if begun.mode == "react":
            return await loop(run)
        if begun.mode == "auto" and not looks_like_several(begun.prompt, run.config.specs):
            return await loop(run)
    await carry_out(run, begun.plan)
    return await loop(run, has_acted=True)
