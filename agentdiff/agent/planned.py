"""A run that plans first: a plan is made or given, held against the tools, run as dataflow, mended.

What is done stays done: a new plan for the rest may refer to it, and nothing of it runs again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from agentdiff.agent.calls import told, with_unique_ids
from agentdiff.agent.config import Emit
from agentdiff.agent.dataflow import Dataflow, Outcome, PlanRun, Returned, dataflow
from agentdiff.agent.events import CallRecord, Committed, RunEvent, StepStarted
from agentdiff.agent.generating import Ask, Generation
from agentdiff.agent.plan import Plan, PlanStep
from agentdiff.agent.plan_check import adapted, check_plan
from agentdiff.agent.plan_schema import plan_schema
from agentdiff.agent.plan_stream import PlanStream
from agentdiff.agent.run import Run
from agentdiff.agent.schemas import faults_of
from agentdiff.agent.state import place_of
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
from agentdiff.telemetry import PlanSpan, carry_out_plan

MAX_REPLANS = 2
"""How often the rest of a plan is planned anew after a step has failed."""
MAX_CONCURRENCY = 16
"""Calls of a plan at the same time."""


@dataclass(frozen=True, slots=True)
class _Written:
    """What the model wrote when it was asked for a plan."""

    generation: Generation
    plan: Plan | None
    """None where it cannot run."""
    invalid: PlanInvalid | None
    """Why it cannot."""


async def carry_out(run: Run[Any], given: Plan | None) -> None:
    """Plan, act, and plan anew where a step failed; the conversation then holds all results.

    A step of a plan begins as soon as it is written, unless the run may be taken up by another
    process: then what runs is written down first. A plan that cannot be finished is shown its faults;
    what has begun of it is kept.

    Raises:
        PlanInvalid: The plan cannot run, also after it was shown its faults.
        PlanFailed: Steps failed, and a plan may not or cannot be made anew.
        RunPaused: Calls wait for a person.
    """
    known: dict[str, str] = {}
    done: dict[str, Json] = {}
    replans, repairs_left = 0, run.config.max_output_repairs
    faults: tuple[Message, ...] = ()
    if given is not None:
        check_plan(given, run.config.tools)
    while True:
        acting = _Acting(run, done, replan=replans)
        if given is not None and not replans:
            invalid = None
            planned = await acting.carry_out(given)
        else:
            stream = PlanStream(run.config.tools, known=known)
            planned, written = await acting.write_and_carry_out(stream, known, faults)
            invalid = None if written is None else written.invalid
            faults = () if written is None else _shown(written, acting.steps)
        done |= planned.results
        known |= {step.id: step.tool for step in acting.steps if step.id in planned.results}
        failed = planned.failed
        has_failed = any(outcome.step.on_error != "skip" for outcome in failed)
        if invalid is None and not has_failed:
            return
        if invalid is not None:
            if repairs_left == 0:
                raise invalid
            repairs_left -= 1
        if has_failed:
            replans += 1
            if replans > MAX_REPLANS or any(outcome.step.on_error == "fail" for outcome in failed):
                names = "; ".join(f"`{outcome.step.id}`: {outcome.error}" for outcome in failed)
                raise PlanFailed(f"steps of the plan failed ({names})", results=done)


async def make_plan(run: Run[Any]) -> Plan:
    """Have the model write a plan, and run nothing of it.

    Raises:
        PlanInvalid: The model wrote none that can run.
    """
    repairs_left = run.config.max_output_repairs
    faults: tuple[Message, ...] = ()
    while True:
        written = await _write(run, {}, faults)
        if written.invalid is None:
            assert written.plan is not None
            return written.plan
        await run.finish(written.generation)
        if repairs_left == 0:
            raise written.invalid
        repairs_left -= 1
        faults = _shown(written, ())


async def _write(
    run: Run[Any],
    known: Mapping[str, str],
    faults: tuple[Message, ...],
    *,
    stream: PlanStream | None = None,
    watch: Emit | None = None,
) -> _Written:
    """One plan for what is left to do, held against the tools and against what of it has begun."""
    specs = run.config.specs
    if not specs:
        raise PlanInvalid(("the agent has no tools",))
    schema = plan_schema(specs, first=len(known) + 1)
    messages = (*planning_messages(run.messages, specs), *faults)
    ask = Ask(number=run.number, kind="plan", messages=messages, schema=schema)
    generation = await run.generate(ask, watch=watch)
    if generation.was_cut:
        if stream is None or not stream.taken:
            await run.finish(generation)
            run.too_long(generation)
        return _Written(generation, None, PlanInvalid(("it did not fit its budget",)))
    try:
        plan = read_plan(generation.result.text)
        check_plan(plan, run.config.tools, known=known)
        strays = () if stream is None else tuple(stream.strays(plan))
        if strays:
            raise PlanInvalid(strays)
    except PlanInvalid as invalid:
        return _Written(generation, None, invalid)
    return _Written(generation, plan, None)


def _shown(written: _Written, begun: Sequence[PlanStep]) -> tuple[Message, ...]:
    """The faults of a plan, as the model is told them."""
    if written.invalid is None:
        return ()
    then = "Write the whole plan again."
    if begun:
        ids = ", ".join(f"`{step.id}`" for step in begun)
        then = f"The steps {ids} have run, see above: plan only what is left."
    text = written.generation.result.text or "{}"
    return (assistant(text), user(f"{written.invalid}. {then}"))


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


class _Acting:
    """A plan on its way; its calls and results join the conversation together, in the order of the plan."""

    def __init__(self, run: Run[Any], done: Mapping[str, Json], *, replan: int) -> None:
        self.steps: list[PlanStep] = []
        """Those that were begun, in order."""
        self._run = run
        self._done = done
        self._replan = replan
        self._turn: int | None = None
        self._calls: dict[str, ToolCall] = {}
        self._records: dict[str, CallRecord] = {}
        self._waiting: list[ToolCall] = []

    async def carry_out(self, plan: Plan) -> PlanRun:
        """Run a plan that was given."""
        with carry_out_plan(replan=self._replan) as span:
            async with self._flow() as flow:
                for step in plan.steps:
                    self._begin(flow, step)
            _note(span, planned := flow.finished())
        return await self._finished(planned, None)

    async def write_and_carry_out(
        self, stream: PlanStream, known: Mapping[str, str], faults: tuple[Message, ...]
    ) -> tuple[PlanRun, _Written | None]:
        """Have a plan written and run it; what was written is None where a step stopped everything."""
        written: list[_Written] = []
        with carry_out_plan(replan=self._replan) as span:
            async with self._flow() as flow:

                async def watch(event: RunEvent) -> None:
                    if isinstance(event, StepStarted):
                        stream.restart()
                    await self._run.tell(event)
                    if isinstance(event, Committed):
                        for step in stream.read(event.text):
                            self._begin(flow, step)

                is_early = not self._run.may_be_resumed
                made = await _write(
                    self._run, known, faults, stream=stream, watch=watch if is_early else None
                )
                written.append(made)
                # What no event has told: another process made it, or it was not to begin early.
                stream.restart()
                for step in stream.read(made.generation.result.text):
                    self._begin(flow, step)
            _note(span, planned := flow.finished())
        if not written:  # cancelled by a step
            return await self._finished(planned, None), None
        return await self._finished(planned, written[0].generation), written[0]

    def _flow(self) -> AbstractAsyncContextManager[Dataflow]:
        return dataflow(self._call, max_concurrency=MAX_CONCURRENCY, done=self._done)

    def _begin(self, flow: Dataflow, step: PlanStep) -> None:
        if self._turn is None:
            self._turn = self._run.begin_turn()
        draft = ToolCall(id=step.id, name=step.tool, arguments=step.arguments)
        (self._calls[step.id],) = with_unique_ids([draft], self._run.call_ids)
        self.steps.append(step)
        flow.start(step)

    async def _call(self, step: PlanStep, arguments: Mapping[str, Json]) -> Returned:
        tool = self._run.config.tools[step.tool]
        call = replace(self._calls[step.id], arguments=adapted(step, arguments, tool))
        self._calls[step.id] = call
        assert self._turn is not None
        record = await self._run.call(call, place=place_of(self._turn, step.id))
        if record is None:
            self._waiting.append(call)
            return Returned(error="it waits for approval")
        self._records[step.id] = record
        return Returned(result=record.result, error=record.error)

    async def _finished(self, planned: PlanRun, made: Generation | None) -> PlanRun:
        if self._waiting:
            self._run.pause(self._waiting)
        if self.steps:
            outcomes = {outcome.step.id: outcome for outcome in planned.outcomes}
            told_of = [
                tool_result(self._calls[step.id], self._told(step, outcomes.get(step.id)))
                for step in self.steps
            ]
            self._run.messages += [assistant(tool_calls=tuple(self._calls.values())), *told_of]
            self._run.plans.append((Plan(steps=tuple(self.steps)), planned))
        if made is not None:
            ordered = (self._records.get(step.id) for step in self.steps)
            await self._run.finish(made, calls=tuple(each for each in ordered if each is not None))
        return planned

    def _told(self, step: PlanStep, outcome: Outcome | None) -> str:
        if step.id in self._records:
            return told(self._records[step.id])
        return f"error: not run: {(outcome and outcome.error) or 'the plan was stopped'}"


def _note(span: PlanSpan, planned: PlanRun) -> None:
    span.finish(
        steps=len(planned.outcomes),
        critical_path_ms=planned.critical_path_ms,
        sum_ms=planned.sum_ms,
        parallel_gain=planned.parallel_gain,
        failed=len(planned.failed),
    )
