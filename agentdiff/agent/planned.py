"""A run that plans first: a plan is made or given, held against the tools, run as dataflow, mended.

What is done stays done: a new plan for the rest may refer to it, and nothing of it runs again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentdiff.agent.calls import told, with_unique_ids
from agentdiff.agent.dataflow import PlanRun, Returned, execute
from agentdiff.agent.events import CallRecord
from agentdiff.agent.plan import Plan, PlanStep
from agentdiff.agent.plan_check import adapted, check_plan
from agentdiff.agent.plan_schema import plan_schema
from agentdiff.agent.schemas import faults_of
from agentdiff.errors import PlanFailed, PlanInvalid
from agentdiff.messages import (
    Json,
    Message,
    ToolCall,
    ToolSpec,
    assistant,
    system,
    tool_result,
    user,
)
from agentdiff.telemetry import carry_out_plan

if TYPE_CHECKING:
    from agentdiff.agent.generating import Generation
    from agentdiff.agent.run import Run

MAX_REPLANS = 2
"""How often the rest of a plan is planned anew after a step has failed."""
MAX_CONCURRENCY = 16
"""Calls of a plan at the same time."""
_SAME_CHARS = 5
"""Letters by which two words are taken for forms of one: convert, converting."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan, and the generation that made it; None where it was given."""

    plan: Plan
    generation: Generation | None


async def carry_out(run: Run[Any], given: Plan | None) -> None:
    """Plan, act, and plan anew where a step failed; the conversation then holds all results.

    Raises:
        PlanInvalid: The plan cannot run, also after it was shown its faults.
        PlanFailed: Steps failed, and a plan may not or cannot be made anew.
        RunPaused: Calls wait for a person.
    """
    known: dict[str, str] = {}
    done: dict[str, Json] = {}
    replans = 0
    while True:
        if given is not None and not replans:
            check_plan(given, run.config.tools)
            made = _Made(given, None)
        else:
            made = await make_plan(run, known)
        planned = await _execute(run, made, done)
        done |= planned.results
        known |= {step.id: step.tool for step in made.plan.steps if step.id in planned.results}
        failed = planned.failed
        if not any(outcome.step.on_error != "skip" for outcome in failed):
            return
        replans += 1
        if replans > MAX_REPLANS or any(outcome.step.on_error == "fail" for outcome in failed):
            names = "; ".join(f"`{outcome.step.id}`: {outcome.error}" for outcome in failed)
            raise PlanFailed(f"steps of the plan failed ({names})", results=done)


async def make_plan(run: Run[Any], known: Mapping[str, str]) -> _Made:
    """Have the model write a plan for what is left to do.

    Args:
        run: The run.
        known: Id -> tool of steps that are done.

    Raises:
        PlanInvalid: The model wrote none that can run.
    """
    specs = run.config.specs
    if not specs:
        raise PlanInvalid(("the agent has no tools",))
    schema = plan_schema(specs, first=len(known) + 1)
    faults: tuple[Message, ...] = ()
    repairs_left = run.config.max_output_repairs
    while True:
        messages = (*planning_messages(run.messages, specs), *faults)
        generation = await run.make("plan", messages=messages, schema=schema)
        text = generation.result.text
        try:
            if generation.was_cut:
                await run.finish(generation)
                run.too_long(generation)
            plan = read_plan(text)
            check_plan(plan, run.config.tools, known=known)
        except PlanInvalid as invalid:
            await run.finish(generation)
            if repairs_left == 0:
                raise
            repairs_left -= 1
            faults = (assistant(text or "{}"), user(f"{invalid}. Write the whole plan again."))
        else:
            return _Made(plan, generation)


def read_plan(text: str) -> Plan:
    """The plan that a text is.

    Raises:
        PlanInvalid: It is none; names every fault.
    """
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        raise PlanInvalid(tuple(faults_of(error))) from error


def planning_messages(
    messages: Sequence[Message], specs: Sequence[ToolSpec]
) -> tuple[Message, ...]:
    """The conversation with the request for a plan in its system message."""
    tools = "\n".join(
        f"- {spec.name}({json.dumps(dict(spec.parameters.get('properties', {})))})"
        f": {spec.description}"
        for spec in specs
    )
    how = (
        "Plan the tool calls that are still needed, as JSON:"
        ' {"steps": [{"id": …, "tool": …, "arguments": {…}}]}.'
        " A step begins as soon as what it refers to is there. In an argument, $s1 is the result of"
        f" step s1, and $s1.name a part of it; a plain dollar is $$. The tools:\n{tools}"
    )
    said = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    return (system("\n\n".join([*said, how])), *rest)


def looks_like_several(prompt: str, specs: Sequence[ToolSpec]) -> bool:
    """Whether two or more tools look needed: words of their names stand in the prompt."""
    words = {word[:_SAME_CHARS] for word in re.findall(r"[a-z]{3,}", prompt.lower())}
    named = 0
    for spec in specs:
        parts = re.findall(r"[a-z]{3,}", spec.name.lower())
        named += any(part[:_SAME_CHARS] in words for part in parts)
    return named >= 2


async def _execute(run: Run[Any], made: _Made, done: Mapping[str, Json]) -> PlanRun:
    """Run a plan; its calls and results join the conversation together, in the order of the plan."""
    plan = made.plan
    turn = run.begin_turn()
    drafts = [ToolCall(id=step.id, name=step.tool, arguments=step.arguments) for step in plan.steps]
    calls = dict(
        zip((step.id for step in plan.steps), with_unique_ids(drafts, run.call_ids), strict=True)
    )
    records: dict[str, CallRecord] = {}
    waiting: list[ToolCall] = []

    async def call(step: PlanStep, arguments: Mapping[str, Json]) -> Returned:
        tool = run.config.tools[step.tool]
        calls[step.id] = replace(calls[step.id], arguments=adapted(step, arguments, tool))
        record = await run.call_once(calls[step.id], key=f"{turn}.{step.id}")
        if record is None:
            waiting.append(calls[step.id])
            return Returned(error="it waits for approval")
        records[step.id] = record
        return Returned(result=record.result, error=record.error)

    with carry_out_plan(steps=len(plan.steps)) as span:
        planned = await execute(plan, call, max_concurrency=MAX_CONCURRENCY, done=done)
        span.finish(
            critical_path_ms=planned.critical_path_ms,
            sum_ms=planned.sum_ms,
            parallel_gain=planned.parallel_gain,
            failed=len(planned.failed),
        )
    if waiting:
        run.pause(tuple(waiting))
    outcomes = {outcome.step.id: outcome for outcome in planned.outcomes}
    told_of: list[Message] = []
    for step in plan.steps:
        if step.id in records:
            text = told(records[step.id])
        else:
            outcome = outcomes.get(step.id)
            text = f"error: not run: {(outcome and outcome.error) or 'the plan was stopped'}"
        told_of.append(tool_result(calls[step.id], text))
    run.messages += [assistant(tool_calls=tuple(calls.values())), *told_of]
    run.plans.append((plan, planned))
    if made.generation is not None:
        ordered = tuple(records[step.id] for step in plan.steps if step.id in records)
        await run.finish(made.generation, calls=ordered)
    return planned
