"""The loop of a run: route → act → route → … → answer.

One generation at a time, the calls of a turn at once. An output that is not what was asked for is
shown its faults and repaired; then the run ends with `OutputInvalid`. An output that does not fit
its budget ends it with `BudgetExceeded`, a model that finds no tool with `OutOfScope`, calls that
wait for a person with `RunPaused`. Nothing ends in an empty answer, and nothing loops without a
limit.

A run that was paused or broken off goes on by the same loop: what its state holds is taken from
there instead of being made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NoReturn
from uuid import uuid4

import anyio

from agentdiff.agent.calls import Caller, answers, with_unique_ids
from agentdiff.agent.config import Emit, RunConfig, Task
from agentdiff.agent.context import RunContext
from agentdiff.agent.dataflow import PlanRun
from agentdiff.agent.events import (
    CallRecord,
    RunEvent,
    RunFinished,
    RunResult,
    StepFinished,
    StepRecord,
)
from agentdiff.agent.generating import Ask, Generation, make_generation
from agentdiff.agent.limits import Spending, spending_around
from agentdiff.agent.output import OutputT
from agentdiff.agent.plan import Plan
from agentdiff.agent.planned import carry_out, looks_like_several, make_plan
from agentdiff.agent.routing import (
    NONE,
    arguments_ask,
    call_of,
    choice_ask,
    chosen,
    wants_two,
)
from agentdiff.agent.state import RunState, place_of
from agentdiff.errors import (
    AgentDiffError,
    BudgetExceeded,
    LimitExceeded,
    ModelRetry,
    OutOfScope,
    OutputInvalid,
    RunPaused,
    TimedOut,
)
from agentdiff.generation import Enforcement, StepKind
from agentdiff.messages import Json, Message, ToolCall, assistant, user
from agentdiff.telemetry import RunSpan, invoke_agent


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
            output = await this.in_time()
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
    """Have a plan made for the task, and run nothing of it."""
    past = RunState(agent=config.agent, prompt=task.prompt, before=task.before)
    with invoke_agent(agent=config.agent, model=config.backend.name) as span:
        this = Run(config, task, past, None, span)
        try:
            return await make_plan(this)
        finally:
            this.report()


class Run(Generic[OutputT]):
    """One run: what was said, done and spent."""

    def __init__(
        self,
        config: RunConfig[OutputT],
        task: Task,
        past: RunState,
        emit: Emit | None,
        span: RunSpan,
    ) -> None:
        self.messages: list[Message] = [*past.before, user(past.prompt)]
        self.steps: list[StepRecord] = []
        self.plans: list[tuple[Plan, PlanRun]] = []
        """That have run."""
        self.spending = Spending(
            task.limits or config.limits, price=config.price, outer=spending_around()
        )
        self.config = config
        self._task = task
        self._past = past
        self._episode = uuid4().hex
        """What its steps are known by to the predictor of lengths."""
        self._emit = emit
        self._span = span
        self._generations: list[Generation] = []
        self._turns = 0
        self._calls: dict[str, CallRecord] = {}
        self.call_ids = {call.id for message in self.messages for call in message.tool_calls}
        self._caller = Caller(
            config,
            spending=self.spending,
            emit=emit,
            context=self._context,
            approvals=task.approvals or {},
        )

    async def in_time(self) -> OutputT:
        """The loop, cancelled when the run's time is over."""
        wall_s = self.spending.limits.wall_s
        if wall_s is None:
            return await self._go()
        self.spending.start_clock()
        with anyio.move_on_after(wall_s):
            try:
                return await self._go()
            except TimedOut as error:  # a backend that knows the deadline may notice it first
                if not self.spending.is_late:
                    raise
                raise LimitExceeded("seconds", limit=wall_s) from error
        raise LimitExceeded("seconds", limit=wall_s)

    def report(self) -> None:
        """Tell the span what the run came to, however it ended."""
        made = self._generations
        known = [
            (each.result.usage.output_tokens, each.budget.target)
            for each in made
            if each.budget is not None and each.result.usage.output_tokens is not None
        ]
        self._span.finish(
            self.spending.usage,
            len(self.steps),
            tool_calls=len(self._calls),
            cost=self.spending.cost,
            truncations=sum(each.requests - 1 + each.was_cut for each in made) or None,
            budget_fill=sum(used for used, _ in known) / sum(target for _, target in known)
            if known
            else None,
            resumed=min(len(self._past.generations), len(made)) or None,
        )

    # -- the loop ----

    async def _go(self) -> OutputT:
        begun = self._past
        if begun.plan is None:
            if begun.mode == "react":
                return await self._loop()
            if begun.mode == "auto" and not looks_like_several(begun.prompt, self.config.specs):
                return await self._loop()
        await carry_out(self, begun.plan)
        return await self._loop(has_acted=True)

    async def _loop(self, *, has_acted: bool = False) -> OutputT:
        output = self.config.output
        repairs_left = self.config.max_output_repairs
        # Once the model stops calling tools, a typed output is asked for with its schema.
        must_answer = has_acted or not self.config.tools
        kind: StepKind = "answer" if must_answer else "route"
        while True:
            generation = await self._generate(kind, must_answer=must_answer)
            if generation.was_cut:
                await self.finish(generation)
                self.too_long(generation)
            if generation.result.reason == "refused":
                await self.finish(generation)
                self._refused()
            if generation.result.tool_calls:
                await self._turn(generation)
                kind = "answer" if must_answer else "route"
                continue
            text = generation.result.text
            try:
                value = await self._validated(output.parse(text))
            except (OutputInvalid, ModelRetry) as fault:
                invalid = fault if isinstance(fault, OutputInvalid) else OutputInvalid(str(fault))
                await self.finish(generation)
                if isinstance(fault, OutputInvalid) and not must_answer and output.schema:
                    must_answer, kind = True, "answer"
                    continue
                if repairs_left == 0:
                    raise invalid from fault
                repairs_left -= 1
                kind = "repair"
                self._show_faults(text, invalid)
                continue
            self.messages.append(assistant(text))
            await self.finish(generation, is_output=True)
            return value

    async def _generate(self, kind: StepKind, *, must_answer: bool) -> Generation:
        ask = Ask(
            number=len(self.steps) + 1,
            kind=kind,
            messages=tuple(self.messages),
            tools=() if must_answer else self.config.specs,
            schema=self.config.output.schema if must_answer else None,
        )
        if kind == "route" and not must_answer and self._makes_two(ask):
            return await self._choose(ask)
        return await self._make(ask)

    def _makes_two(self, ask: Ask) -> bool:
        number = len(self._generations)
        if number < len(self._past.generations):
            return self._past.generations[number].is_choice
        return wants_two(self.config, ask)

    async def _choose(self, ask: Ask) -> Generation:
        """A name first, then its arguments; where no tool is wanted, or none is named, both at once."""
        choice = await self._make(choice_ask(ask))
        name = None if choice.was_cut else chosen(choice.result.text, ask.tools)
        await self.finish(choice)
        ask = replace(ask, number=len(self.steps) + 1)
        if name is None or name == NONE:
            return await self._make(ask)
        spec = next(spec for spec in ask.tools if spec.name == name)
        made = await self._make(arguments_ask(ask, spec))
        if made.was_cut:
            return made
        call = call_of(name, made.result.text)
        return replace(
            made, result=replace(made.result, text="", tool_calls=(call,), reason="tool_calls")
        )

    async def make(
        self,
        kind: StepKind,
        *,
        messages: Sequence[Message],
        schema: Mapping[str, Json],
        watch: Emit | None = None,
    ) -> Generation:
        """The next generation of the run, of a schema; `watch` sees its events before all others."""
        number = len(self.steps) + 1
        return await self._make(
            Ask(number=number, kind=kind, messages=tuple(messages), schema=schema), watch=watch
        )

    async def tell(self, event: RunEvent) -> None:
        """Tell an event to whoever watches the run."""
        if self._emit is not None:
            await self._emit(event)

    @property
    def may_be_resumed(self) -> bool:
        """Whether another process may take the run up: it has a journal, or a tool asks a person."""
        asks = any(tool.approval is not False for tool in self.config.tools.values())
        return self._task.journal is not None or asks

    async def _make(self, ask: Ask, *, watch: Emit | None = None) -> Generation:
        """The next generation: the one that an earlier life made, or a new one."""
        number = len(self._generations)
        if number < len(self._past.generations):
            generation = self._past.generations[number]
            for _ in range(generation.requests):
                self.spending.count_request()
            self.spending.add(generation.usage, model=generation.result.model)
        else:
            generation = await make_generation(
                self.config,
                ask,
                spending=self.spending,
                emit=watch or self._emit,
                budget=self._task.budget,
                episode=self._episode,
                span=self._span,
            )
            if self._task.journal is not None:
                await self._task.journal.keep_generation(number, generation)
        self._generations.append(generation)
        return generation

    async def _turn(self, generation: Generation) -> None:
        """Run the calls of a turn.

        Calls and results join the conversation together: it never ends between them.
        """
        calls = with_unique_ids(generation.result.tool_calls, self.call_ids)
        try:
            self.spending.count_calls(calls)
        except LimitExceeded:
            await self.finish(generation)
            raise
        number = self.begin_turn()
        turn = await self._caller.turn(
            calls,
            known=lambda place: self._known(place_of(number, place)),
            keep=lambda place, record: self._keep(place_of(number, place), record),
        )
        if turn.pending:
            self.pause(turn.pending)
        records = tuple(turn.records[place] for place in range(len(calls)))
        told = answers(calls, records)
        self.spending.note_turn(calls, told)
        self.messages += [assistant(generation.result.text, tool_calls=calls), *told]
        await self.finish(generation, calls=records)
        self._caller.note(records)

    def begin_turn(self) -> int:
        """The number under which the calls of the next turn, or of a plan, are remembered."""
        self._turns += 1
        return self._turns - 1

    async def call_once(self, call: ToolCall, *, key: str) -> CallRecord | None:
        """One call of a plan: what an earlier life made of it, or a new one; None while it waits."""
        record = self._known(key)
        if record is not None:
            return record
        self.spending.count_calls([call])
        return await self._caller.call(call, keep=lambda record: self._keep(key, record))

    async def _keep(self, key: str, record: CallRecord) -> None:
        self._calls[key] = record
        if self._task.journal is not None:
            await self._task.journal.keep_call(key, record)

    def _known(self, place: str) -> CallRecord | None:
        record = self._past.calls.get(place)
        if record is not None:
            self._calls[place] = record
            self.spending.add(record.usage, model="")
        return record

    def pause(self, pending: tuple[ToolCall, ...]) -> NoReturn:
        """End this life of the run until a person has spoken."""
        names = ", ".join(f"`{call.name}` ({call.id})" for call in pending)
        raise RunPaused(
            f"{len(pending)} tool call(s) wait for approval: {names};"
            " go on with `agent.resume(error.state, approvals={id: True})`",
            state=replace(
                self._past,
                generations=tuple(self._generations),
                calls=dict(self._calls),
                pending=pending,
            ),
            pending=pending,
        )

    # -- its parts ----

    def _context(self) -> RunContext[Any]:
        return RunContext(
            deps=self._task.deps,
            agent=self.config.agent,
            step=len(self.steps) + 1,
            messages=tuple(self.messages),
            usage=self.spending.usage,
            _left_s=self.spending.left_s,
        )

    async def _validated(self, value: OutputT) -> OutputT:
        for validator in self.config.validators:
            value = await validator(self._context(), value)
        return value

    async def finish(
        self,
        generation: Generation,
        *,
        calls: tuple[CallRecord, ...] = (),
        is_output: bool = False,
    ) -> None:
        """Record a step that is done."""
        result = generation.result
        stats = result.stats
        if stats.attempts != generation.attempts:
            stats = replace(stats, attempts=generation.attempts)
        record = StepRecord(
            number=len(self.steps) + 1,
            kind="answer" if is_output and generation.kind == "route" else generation.kind,
            reason=result.reason,
            calls=calls,
            text=result.text,
            budget=generation.budget,
            usage=generation.usage,
            stats=stats,
            enforcement=self._enforcement(generation) if is_output else result.enforcement,
            model=result.model,
            warnings=generation.warnings,
            predicted=generation.predicted,
            duration_s=generation.duration_s,
        )
        self.steps.append(record)
        if self._emit is not None:
            await self._emit(StepFinished(record=record))

    def _enforcement(self, generation: Generation) -> Enforcement:
        """What held for the output: our own validation at least."""
        claimed = generation.result.enforcement
        if self.config.output.schema is None or claimed != "none":
            return claimed
        return "repaired" if generation.kind == "repair" else "validated"

    def _show_faults(self, text: str, invalid: OutputInvalid) -> None:
        if text.strip():
            self.messages.append(assistant(text))
        how = "" if self.config.output.schema is None else " with JSON only"
        self.messages.append(user(f"{invalid}. Reply again{how}."))

    def _refused(self) -> NoReturn:
        what = "found no tool for" if self.config.tools else "declined"
        raise OutOfScope(
            f"the model {what} this request; a larger diffusion model (`--backend local:…`) could answer "
            "in words, and an API backend (`mercury:…`, `openai:…`) could use what it knows"
        )

    def too_long(self, generation: Generation) -> NoReturn:
        """End the run with the numbers of a generation that did not fit."""
        budget, used = generation.budget, generation.result.usage.output_tokens
        numbers = (
            "none was sent"
            if budget is None
            else (f"target {budget.target}, ceiling {budget.ceiling}, from {budget.source}")
        )
        raise BudgetExceeded(
            f"the {generation.kind} step did not fit its budget ({numbers};"
            f" used {'unknown' if used is None else used}):"
            " ask for less in one step, or give the predictor a higher `ceiling`",
            predicted=None if generation.predicted.is_off else generation.predicted.target,
            allocated=None if budget is None else budget.ceiling,
            used=used,
        )
