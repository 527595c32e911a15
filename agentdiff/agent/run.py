"""One run: what was said, done and spent in it, and the acts by which it goes on.

An act is a generation, the calls of a turn, or the record of a step. Which of them come, and in what
order, is for the loop (`loop.py`) or the plan (`planned.py`) to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, NoReturn
from uuid import uuid4

from agentdiff.agent.calls import Caller, answers, with_unique_ids
from agentdiff.agent.config import Emit, RunConfig
from agentdiff.agent.context import RunContext
from agentdiff.agent.dataflow import PlanRun
from agentdiff.agent.events import CallRecord, RunEvent, StepFinished, StepRecord
from agentdiff.agent.generating import Ask, Generation, make_generation
from agentdiff.agent.limits import Repetition, Spending, spending_around
from agentdiff.agent.memory import Memory
from agentdiff.agent.output import OutputT
from agentdiff.agent.plan import Plan
from agentdiff.agent.state import RunState
from agentdiff.agent.task import Task
from agentdiff.errors import BudgetExceeded, LimitExceeded, RunPaused
from agentdiff.generation import Enforcement
from agentdiff.messages import Message, ToolCall, assistant, user
from agentdiff.telemetry import RunSpan


class Run(Generic[OutputT]):
    """One run that is under way."""

    def __init__(
        self,
        config: RunConfig[OutputT],
        task: Task,
        past: RunState,
        emit: Emit | None,
        span: RunSpan,
    ) -> None:
        self.config = config
        self.messages: list[Message] = [*past.before, user(past.prompt)]
        self.steps: list[StepRecord] = []
        self.plans: list[tuple[Plan, PlanRun]] = []
        """That have run."""
        self.memory = Memory(past, task.journal)
        limits = task.limits or config.limits
        self.spending = Spending(limits, price=config.price, outer=spending_around())
        self.call_ids = {call.id for message in self.messages for call in message.tool_calls}
        self._task = task
        self._emit = emit
        self._span = span
        self._episode = uuid4().hex
        """What its steps are known by to the predictor of lengths."""
        self._turns = 0
        self._repetition = Repetition(limits.identical_turns)
        self._caller = Caller(
            config,
            memory=self.memory,
            spending=self.spending,
            emit=emit,
            approvals=task.approvals or {},
        )

    # -- what it is ----

    @property
    def number(self) -> int:
        """Of the step that is under way, from 1."""
        return len(self.steps) + 1

    def context(self) -> RunContext[Any]:
        """The run as tools, validators and instructions see it now."""
        return RunContext(
            deps=self._task.deps,
            agent=self.config.agent,
            step=self.number,
            messages=tuple(self.messages),
            usage=self.spending.usage,
            _left_s=self.spending.left_s,
        )

    @property
    def may_be_resumed(self) -> bool:
        """Whether another process may take it up: it has a journal, or a tool asks a person."""
        asks = any(tool.approval is not False for tool in self.config.tools.values())
        return self.memory.has_journal or asks

    async def tell(self, event: RunEvent) -> None:
        """Tell an event to whoever watches the run."""
        if self._emit is not None:
            await self._emit(event)

    # -- how it goes on ----

    async def generate(self, ask: Ask, *, watch: Emit | None = None) -> Generation:
        """The next generation: the one that an earlier life made, or a new one.

        Args:
            ask: What is wanted.
            watch: Takes the events in place of whoever watches the run, and tells them.

        Raises:
            LimitExceeded: The limits have no room for it.
            BackendError: The backend failed.
        """
        generation = self.memory.hand_out()
        if generation is not None:
            for _ in range(generation.requests):
                self.spending.count_request()
            self.spending.add(generation.usage, model=generation.result.model)
            return generation
        generation = await make_generation(
            self.config,
            ask,
            spending=self.spending,
            emit=watch or self._emit,
            budget=self._task.budget,
            episode=self._episode,
            span=self._span,
        )
        await self.memory.keep(generation)
        return generation

    async def act(self, generation: Generation) -> None:
        """Run the calls of a turn.

        Calls and results join the conversation together: it never ends between them.

        Raises:
            LimitExceeded: There is no room for the calls, or they go round in circles.
            RunPaused: Some of them wait for a person.
        """
        calls = with_unique_ids(generation.result.tool_calls, self.call_ids)
        try:
            self._repetition.check(calls)
            self.spending.count_calls(len(calls))
        except LimitExceeded:
            await self.finish(generation)
            raise
        turn = await self._caller.turn(self.begin_turn(), calls, context=self.context)
        if turn.pending:
            self.pause(turn.pending)
        records = tuple([record for record in turn.records if record is not None])  # all of them
        told = answers(calls, records)
        self._repetition.note(calls, told)
        self.messages += [assistant(generation.result.text, tool_calls=calls), *told]
        await self.finish(generation, calls=records)
        self._caller.note(records)

    def begin_turn(self) -> int:
        """The number under which the calls of the next turn, or of a plan, are remembered."""
        self._turns += 1
        return self._turns - 1

    async def call(self, call: ToolCall, *, place: str) -> CallRecord | None:
        """One call of a plan: what an earlier life made of it, or a new one; None while it waits."""
        if place not in self.memory.past.calls:
            self.spending.count_calls(1)
        return await self._caller.call(call, place=place, context=self.context)

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
            number=self.number,
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

    # -- how it ends ----

    def pause(self, pending: Sequence[ToolCall]) -> NoReturn:
        """End this life of the run until a person has spoken."""
        names = ", ".join(f"`{call.name}` ({call.id})" for call in pending)
        raise RunPaused(
            f"{len(pending)} tool call(s) wait for approval: {names};"
            " go on with `agent.resume(error.state, approvals={id: True})`",
            state=self.memory.state(tuple(pending)),
            pending=tuple(pending),
        )

    def too_long(self, generation: Generation) -> NoReturn:
        """End it with the numbers of a generation that did not fit."""
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

    def report(self) -> None:
        """Tell the span what the run came to, however it ended."""
        made = self.memory.generations
        known = [
            (each.result.usage.output_tokens, each.budget.target)
            for each in made
            if each.budget is not None and each.result.usage.output_tokens is not None
        ]
        self._span.finish(
            self.spending.usage,
            len(self.steps),
            tool_calls=len(self.memory.calls),
            cost=self.spending.cost,
            truncations=sum(each.requests - 1 + each.was_cut for each in made) or None,
            budget_fill=sum(used for used, _ in known) / sum(target for _, target in known)
            if known
            else None,
            resumed=self.memory.resumed or None,
        )
