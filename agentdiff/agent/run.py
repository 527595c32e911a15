"""The loop of a run: route → act → route → … → answer.

One generation at a time, the calls of a turn at once. An output that is not what was asked for is
shown its faults and repaired; then the run ends with `OutputInvalid`. An output that does not fit
its budget ends it with `BudgetExceeded`, a model that finds no tool with `OutOfScope`. Nothing ends
in an empty answer, and nothing loops without a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, NoReturn

import anyio

from agentdiff.agent.calls import Emit, act, answers, with_unique_ids
from agentdiff.agent.config import RunConfig
from agentdiff.agent.events import CallRecord, RunFinished, RunResult, StepFinished, StepRecord
from agentdiff.agent.generating import Ask, Generation, make_generation
from agentdiff.agent.limits import Spending
from agentdiff.agent.output import OutputT
from agentdiff.errors import (
    AgentDiffError,
    BudgetExceeded,
    LimitExceeded,
    OutOfScope,
    OutputInvalid,
    TimedOut,
)
from agentdiff.generation import Enforcement, StepKind
from agentdiff.messages import Message, assistant, user
from agentdiff.telemetry import invoke_agent


async def run(
    config: RunConfig[OutputT], prompt: str, *, before: Sequence[Message], emit: Emit
) -> RunResult[OutputT]:
    """Run one request to its end. Emits every event; the last is `RunFinished`.

    Args:
        config: The agent.
        prompt: What the user asks.
        before: The conversation before the prompt, instructions included.
        emit: Takes the events in order; the run waits for it.

    Raises:
        RunError: The run ended without an output.
        BackendError: The backend failed.
        ConfigurationError: The backend cannot do what was asked for.

    Each of them carries the conversation, the usage and the steps so far.
    """
    with invoke_agent(agent=config.agent, model=config.backend.name) as span:
        this = _Run(config, [*before, user(prompt)], emit)
        try:
            output = await this.in_time()
        except AgentDiffError as error:
            error.messages = tuple(this.messages)
            error.usage = this.spending.usage
            error.steps = tuple(this.steps)
            raise
        finally:
            span.finish(this.spending.usage, len(this.steps))
        result = RunResult(
            output=output,
            messages=tuple(this.messages),
            new_messages=tuple(this.messages[len(before) :]),
            usage=this.spending.usage,
            steps=tuple(this.steps),
            model=this.steps[-1].model,
            trace_id=span.trace_id,
        )
    await emit(RunFinished(result=result))
    return result


class _Run(Generic[OutputT]):
    """One run: what was said, done and spent."""

    def __init__(self, config: RunConfig[OutputT], messages: list[Message], emit: Emit) -> None:
        self.messages = messages
        self.steps: list[StepRecord] = []
        self.spending = Spending(config.limits)
        self._config = config
        self._emit = emit
        self._specs = tuple(tool.spec for tool in config.tools.values())
        self._call_ids = {call.id for message in messages for call in message.tool_calls}

    async def in_time(self) -> OutputT:
        """The loop, cancelled when the run's time is over."""
        wall_s = self._config.limits.wall_s
        if wall_s is None:
            return await self._loop()
        self.spending.start_clock()
        with anyio.move_on_after(wall_s) as scope:
            try:
                return await self._loop()
            except TimedOut as error:  # a backend that knows the deadline may notice it first
                if anyio.current_time() < scope.deadline:
                    raise
                raise LimitExceeded("seconds", limit=wall_s) from error
        raise LimitExceeded("seconds", limit=wall_s)

    async def _loop(self) -> OutputT:
        output = self._config.output
        repairs_left = self._config.max_output_repairs
        # Once the model stops calling tools, a typed output is asked for with its schema.
        must_answer = not self._config.tools
        kind: StepKind = "answer" if must_answer else "route"
        while True:
            generation = await self._generate(kind, must_answer=must_answer)
            if generation.was_cut:
                await self._finish(generation)
                _too_long(generation)
            if generation.result.reason == "refused":
                await self._finish(generation)
                self._refused()
            if generation.result.tool_calls:
                await self._turn(generation)
                kind = "answer" if must_answer else "route"
                continue
            text = generation.result.text
            try:
                value = output.parse(text)
            except OutputInvalid as invalid:
                await self._finish(generation)
                if not must_answer and output.schema is not None:
                    must_answer, kind = True, "answer"
                    continue
                if repairs_left == 0:
                    raise
                repairs_left -= 1
                kind = "repair"
                self._show_faults(text, invalid)
                continue
            self.messages.append(assistant(text))
            await self._finish(generation, is_output=True)
            return value

    async def _generate(self, kind: StepKind, *, must_answer: bool) -> Generation:
        ask = Ask(
            number=len(self.steps) + 1,
            kind=kind,
            messages=tuple(self.messages),
            tools=() if must_answer else self._specs,
            schema=self._config.output.schema if must_answer else None,
        )
        return await make_generation(self._config, ask, spending=self.spending, emit=self._emit)

    async def _turn(self, generation: Generation) -> None:
        """Run the calls of a turn.

        Calls and results join the conversation together: it never ends between them.
        """
        calls = with_unique_ids(generation.result.tool_calls, self._call_ids)
        try:
            self.spending.count_calls(calls)
        except LimitExceeded:
            await self._finish(generation)
            raise
        records = await act(calls, self._config.tools, self._emit)
        told = answers(calls, records)
        self.spending.note_turn(calls, told)
        self.messages += [assistant(generation.result.text, tool_calls=calls), *told]
        await self._finish(generation, calls=records)

    async def _finish(
        self,
        generation: Generation,
        *,
        calls: tuple[CallRecord, ...] = (),
        is_output: bool = False,
    ) -> None:
        """Record a step that is done."""
        result = generation.result
        record = StepRecord(
            number=len(self.steps) + 1,
            kind="answer" if is_output and generation.kind == "route" else generation.kind,
            reason=result.reason,
            calls=calls,
            text=result.text,
            budget=generation.budget,
            usage=generation.usage,
            stats=replace(result.stats, attempts=generation.attempts),
            enforcement=self._enforcement(generation) if is_output else result.enforcement,
            model=result.model,
            warnings=generation.warnings,
        )
        self.steps.append(record)
        await self._emit(StepFinished(record=record))

    def _enforcement(self, generation: Generation) -> Enforcement:
        """What held for the output: our own validation at least."""
        claimed = generation.result.enforcement
        if self._config.output.schema is None or claimed != "none":
            return claimed
        return "repaired" if generation.kind == "repair" else "validated"

    def _show_faults(self, text: str, invalid: OutputInvalid) -> None:
        if text.strip():
            self.messages.append(assistant(text))
        how = "" if self._config.output.schema is None else " with JSON only"
        self.messages.append(user(f"{invalid}. Reply again{how}."))

    def _refused(self) -> NoReturn:
        what = "found no tool for" if self._config.tools else "declined"
        raise OutOfScope(
            f"the model {what} this request; a larger diffusion model (`--backend local:…`) could answer "
            "in words, and an API backend (`mercury:…`, `openai:…`) could use what it knows"
        )


def _too_long(generation: Generation) -> NoReturn:
    budget, used = generation.budget, generation.result.usage.output_tokens
    raise BudgetExceeded(
        f"the {generation.kind} step did not fit its budget (target {budget.target}, ceiling"
        f" {budget.ceiling}, from {budget.source}; used {'unknown' if used is None else used}):"
        " ask for less in one step, or give the predictor a higher `ceiling`"
    )
