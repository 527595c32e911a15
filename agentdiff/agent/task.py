"""What one run is given, held against the agent before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

from agentdiff.agent.budgets import BudgetChoice, check
from agentdiff.agent.config import Mode, RunConfig
from agentdiff.agent.context import RunContext
from agentdiff.agent.events import Approval
from agentdiff.agent.history import repaired
from agentdiff.agent.limits import Spending, UsageLimits, spending_around
from agentdiff.agent.plan import Plan
from agentdiff.errors import ConfigurationError
from agentdiff.messages import Message, system

if TYPE_CHECKING:
    from agentdiff.agent.journal import JournaledRun
    from agentdiff.agent.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one run is given."""

    prompt: str
    before: tuple[Message, ...]
    """The conversation before the prompt, instructions included."""
    deps: Any = None
    limits: UsageLimits | None = None
    """None takes the agent's."""
    budget: BudgetChoice | None = None
    journal: JournaledRun | None = None
    mode: Mode = "react"
    plan: Plan | None = None
    """A plan to run; None has one made where the mode wants it."""
    approvals: Mapping[str, Approval] | None = None
    """What a person has said, by the id of the call."""


async def new_task(
    config: RunConfig[Any],
    prompt: str,
    *,
    deps: Any,
    history: Sequence[Message],
    limits: UsageLimits | None = None,
    budget: BudgetChoice | None = None,
    mode: Mode = "react",
    plan: Plan | None = None,
    journal: JournaledRun | None = None,
) -> Task:
    """The task of a new run: its gaps closed, its instructions written.

    Raises:
        ConfigurationError: The prompt is empty, or the deps or the budget are none for this agent.
    """
    if not prompt.strip():
        raise ConfigurationError("the prompt is empty; say what is to be done")
    _check_deps(config, deps)
    check(budget)
    before = repaired(history) if history else ()
    if instructions := await _instructions(config, deps, before):
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


def resumed_task(
    config: RunConfig[Any],
    state: RunState,
    *,
    approvals: Mapping[str, Approval] | None,
    deps: Any,
    limits: UsageLimits | None,
    budget: BudgetChoice | None,
    journal: JournaledRun | None,
) -> Task:
    """The task of a run that goes on.

    Raises:
        ConfigurationError: The state is another agent's or has no such call that waits, or the deps
            or the budget are none for this agent.
    """
    if state.agent != config.agent:
        raise ConfigurationError(
            f"the state is of a run of agent {state.agent!r}, and this one is {config.agent!r}"
        )
    waiting = {call.id for call in state.pending}
    for id in approvals or {}:
        if waiting and id not in waiting:
            names = ", ".join(f"{call.id!r} (`{call.name}`)" for call in state.pending)
            raise ConfigurationError(f"`approvals` names {id!r}, and these calls wait: {names}")
    _check_deps(config, deps)
    check(budget)
    return Task(
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


async def _instructions(config: RunConfig[Any], deps: Any, before: tuple[Message, ...]) -> str:
    instructions = config.instructions
    if isinstance(instructions, str):
        return instructions
    around = spending_around() or Spending(config.limits, price=config.price)
    written = instructions(
        RunContext(
            deps=deps,
            agent=config.agent,
            step=1,
            messages=before,
            usage=around.usage,
            _left_s=around.left_s,
        )
    )
    return await written if inspect.isawaitable(written) else written


def _check_deps(config: RunConfig[Any], deps: object) -> None:
    wanted = config.deps_type
    if isinstance(wanted, type) and not isinstance(deps, wanted):
        how = f"an instance of `{wanted.__name__}`, its `deps_type`"
        if wanted is NoneType:
            how = "no `deps`: it has no `deps_type`"
        raise ConfigurationError(f"agent `{config.agent}` takes {how}, got {type(deps).__name__}")
