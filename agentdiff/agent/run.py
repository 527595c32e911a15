"""The loop of a run: route → act → route → … → answer.

One generation at a time, the calls of a turn at once. A generation that was cut never reaches the parser or the history: it
is made once more with twice the room, then the run ends with `BudgetExceeded`. An output that is not what was asked for is
shown its faults and repaired, then the run ends with `OutputInvalid`. Nothing ends in an empty answer, and nothing loops
without a limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NoReturn, TypeVar

import anyio

from agentdiff.agent.calls import Emit, act, answers, with_unique_ids
from agentdiff.agent.events import (
    CallRecord,
    Committed,
    Drafting,
    RunFinished,
    RunResult,
    StepFinished,
    StepRecord,
    StepStarted,
)
from agentdiff.agent.limits import UsageLimits
from agentdiff.agent.output import Output
from agentdiff.agent.tools import AnyTool
from agentdiff.errors import (
    BudgetExceeded,
    LimitExceeded,
    OutOfScope,
    OutputInvalid,
    ProtocolError,
    RunError,
    TimedOut,
)
from agentdiff.generation import (
    Backend,
    Budget,
    Commit,
    Draft,
    Enforcement,
    Request,
    Result,
    Sampling,
    StepKind,
    finish,
)
from agentdiff.length import LengthPredictor, StepContext, cost_of, schema_bounds
from agentdiff.messages import Json, Message, ToolCall, Usage, assistant, user
from agentdiff.telemetry import invoke_agent

OutputT = TypeVar("OutputT")

_BYTES_PER_TOKEN = 4
"""For the length of what was said last, which only has to be told in the same way each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Generic[OutputT]):
    """What all runs of an agent share."""

    agent: str
    backend: Backend
    tools: Mapping[str, AnyTool]
    output: Output[OutputT]
    limits: UsageLimits
    predictor: LengthPredictor
    sampling: Sampling
    max_output_repairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """A generation that is done and not cut, before it is known what it was."""

    kind: StepKind
    budget: Budget
    result: Result
    usage: Usage
    attempts: int
    warnings: tuple[str, ...]


async def run(
    config: RunConfig[OutputT], *, before: Sequence[Message], prompt: str, emit: Emit
) -> RunResult[OutputT]:
    """Run one request to its end. Emits every event; the last is `RunFinished`.

    Args:
        config: The agent's.
        before: The conversation before the prompt, instructions included.
        prompt: What the user asks.
        emit: Takes the events in order; the run waits for it.

    Raises:
        RunError: The run ended without an output; carries the conversation, the usage and the steps so far.
        BackendError: The backend failed.
        ConfigurationError: The backend cannot do what was asked for.
    """
    with invoke_agent(agent=config.agent, model=config.backend.name) as span:
        this = _Run(config, [*before, user(prompt)], emit)
        try:
            output = await this.within_wall_time()
        except RunError as error:
            error.messages, error.usage, error.steps = (
                tuple(this.messages),
                this.usage,
                tuple(this.steps),
            )
            raise
        finally:
            span.finish(this.usage, len(this.steps))
        result = RunResult(
            output=output,
            messages=tuple(this.messages),
            new_messages=tuple(this.messages[len(before) :]),
            usage=this.usage,
            steps=tuple(this.steps),
            model=this.steps[-1].model,
            trace_id=span.trace_id,
        )
    await emit(RunFinished(result=result))
    return result


class _Run(Generic[OutputT]):
    """One run: what was said, what was spent."""

    def __init__(self, config: RunConfig[OutputT], messages: list[Message], emit: Emit) -> None:
        self.config = config
        self.messages = messages
        self.usage = Usage(requests=0)
        self.steps: list[StepRecord] = []
        self._emit = emit
        self._requests = 0
        self._calls = 0
        self._call_ids = {call.id for message in messages for call in message.tool_calls}
        self._turns = _Turns()
        self._specs = tuple(tool.spec for tool in config.tools.values())
        self._cost = cost_of(config.backend.capabilities)
        self._deadline: float | None = None

    async def within_wall_time(self) -> OutputT:
        """The loop, cancelled when the run's time is over."""
        wall_s = self.config.limits.wall_s
        if wall_s is None:
            return await self._loop()
        self._deadline = anyio.current_time() + wall_s
        with anyio.move_on_after(wall_s):
            try:
                return await self._loop()
            except TimedOut as error:
                if anyio.current_time() < self._deadline:
                    raise
                raise LimitExceeded("seconds", limit=wall_s) from error
        raise LimitExceeded("seconds", limit=wall_s)

    async def _loop(self) -> OutputT:
        output = self.config.output
        repairs_left = self.config.max_output_repairs
        kind: StepKind = "route" if self.config.tools else "answer"
        is_final = not self.config.tools
        """Whether the model may only write the output; a typed output is asked for once the model stops calling tools."""
        while True:
            generation = await self._generate(kind, is_final=is_final)
            reply = generation.result
            if reply.reason == "refused":
                await self._finish(generation)
                self._refuse()
            if reply.tool_calls:
                await self._turn(generation)
                kind = "answer" if is_final else "route"
                continue
            try:
                value = output.parse(reply.text)
            except OutputInvalid as invalid:
                await self._finish(generation)
                if not is_final and output.schema is not None:
                    kind, is_final = "answer", True
                    continue
                if repairs_left == 0:
                    raise
                repairs_left -= 1
                self._show_faults(reply.text, invalid)
                kind = "repair"
                continue
            self.messages.append(assistant(reply.text))
            await self._finish(generation, is_output=True)
            return value

    # -- one generation -------------------------------------------------------------------------------------------

    async def _generate(self, kind: StepKind, *, is_final: bool) -> _Generation:
        """A generation that is usable; made once more with twice the room if the budget cut it."""
        config = self.config
        context = self._context(kind, is_final=is_final)
        budget = config.predictor.predict(context, self._cost)
        usage = Usage(requests=0)
        warnings: tuple[str, ...] = ()
        attempts = 0
        while True:
            self._check_before_request()
            await self._emit(StepStarted(number=len(self.steps) + 1, kind=kind, budget=budget))
            request = Request(
                kind=kind,
                messages=tuple(self.messages),
                tools=() if is_final else self._specs,
                schema=config.output.schema if is_final else None,
                budget=budget,
                sampling=config.sampling,
                deadline_s=self._left_s(),
            )
            self._requests += 1
            result = await self._stream(request)
            self.usage += result.usage
            usage += result.usage
            attempts += result.stats.attempts
            was_cut = result.reason == "length"
            if result.usage.output_tokens is not None:
                config.predictor.observe(
                    context, budget, used=result.usage.output_tokens, truncated=was_cut
                )
            generation = _Generation(
                kind=kind,
                budget=budget,
                result=result,
                usage=usage,
                attempts=attempts,
                warnings=warnings + result.warnings,
            )
            if not was_cut or self._is_whole(result, is_final=is_final):
                return generation
            if warnings or config.backend.capabilities.extends:
                await self._finish(replace(generation, result=replace(result, text="")))
                raise BudgetExceeded(
                    f"the {kind} step did not fit its budget: target {budget.target}, ceiling {budget.ceiling}"
                    f" ({budget.source}), used {_or_unknown(result.usage.output_tokens)} tokens;"
                    " ask for less in one step"
                )
            wider = 2 * budget.ceiling
            warnings = (f"cut at {budget.ceiling} tokens, made again with {wider}",)
            budget = Budget(
                target=wider, ceiling=wider, source=f"{budget.source}, doubled after a cut"
            )

    async def _stream(self, request: Request) -> Result:
        number = len(self.steps) + 1
        committed: list[str] = []
        async with self.config.backend.stream(request) as events:
            async for event in events:
                if isinstance(event, Draft):
                    await self._emit(Drafting(number=number, text=event.text))
                elif isinstance(event, Commit):
                    committed.append(event.text)
                    await self._emit(Committed(number=number, text=event.text))
                else:
                    return finish(event, "".join(committed))
        raise ProtocolError("the stream ended without `Finish`", backend=self.config.backend.name)

    def _is_whole(self, result: Result, *, is_final: bool) -> bool:
        """Whether a reply that ended at the ceiling still says all: calls that parsed, or an output that is valid."""
        if result.tool_calls:
            return True
        if not is_final or self.config.output.schema is None:
            return False
        try:
            self.config.output.parse(result.text)
        except OutputInvalid:
            return False
        return True

    def _context(self, kind: StepKind, *, is_final: bool) -> StepContext:
        backend = self.config.backend
        schema = self.config.output.schema
        shortest, longest = 0, None
        if is_final and schema is not None:
            bounds = schema_bounds(schema)
            shortest, longest = bounds.min_tokens, bounds.max_tokens
        elif not is_final:
            shortest = min(schema_bounds(spec.parameters).min_tokens for spec in self._specs)
        return StepContext(
            agent=self.config.agent,
            kind=kind,
            model=backend.capabilities.tokenizer or backend.name,
            schema_min=shortest,
            schema_max=longest,
            last_tokens=len(self.messages[-1].content.encode(errors="replace")) // _BYTES_PER_TOKEN,
        )

    # -- what follows from it -------------------------------------------------------------------------------------

    async def _turn(self, generation: _Generation) -> None:
        """Run the calls of a turn; calls and results join the conversation together, so it never ends in between."""
        calls = with_unique_ids(generation.result.tool_calls, self._call_ids)
        try:
            self._check_before_calls(calls)
        except LimitExceeded:
            await self._finish(generation)
            raise
        self._calls += len(calls)
        records = await act(calls, self.config.tools, self._emit)
        told = answers(calls, records)
        self._turns.add(calls, told)
        self.messages += [assistant(generation.result.text, tool_calls=calls), *told]
        await self._finish(generation, calls=records)

    async def _finish(
        self,
        generation: _Generation,
        *,
        calls: tuple[CallRecord, ...] = (),
        is_output: bool = False,
    ) -> None:
        result = generation.result
        is_answer = is_output and generation.kind == "route"
        record = StepRecord(
            number=len(self.steps) + 1,
            kind="answer" if is_answer else generation.kind,
            calls=calls,
            text=result.text,
            budget=result.budget or generation.budget,
            usage=generation.usage,
            stats=replace(result.stats, attempts=generation.attempts),
            enforcement=self._enforcement(generation) if is_output else result.enforcement,
            model=result.model,
            warnings=generation.warnings,
        )
        self.steps.append(record)
        await self._emit(StepFinished(record=record))

    def _enforcement(self, generation: _Generation) -> Enforcement:
        """What held for the output: at least our own validation."""
        claimed = generation.result.enforcement
        if self.config.output.schema is None or claimed != "none":
            return claimed
        return "repaired" if generation.kind == "repair" else "validated"

    def _show_faults(self, text: str, invalid: OutputInvalid) -> None:
        if text.strip():
            self.messages.append(assistant(text))
        wanted = "text" if self.config.output.schema is None else "JSON only"
        self.messages.append(user(f"{invalid}. Reply again, with {wanted}."))

    def _refuse(self) -> NoReturn:
        model = self.steps[-1].model or self.config.backend.name
        what = "found no tool for this request" if self.config.tools else "declined this request"
        raise OutOfScope(
            f"the model {model} {what}: a larger diffusion model (`--backend local:…`) or an API backend"
            " (`--backend mercury:…` or `openai:…`) may answer it"
        )

    # -- limits ---------------------------------------------------------------------------------------------------

    def _left_s(self) -> float | None:
        if self._deadline is None:
            return None
        return max(self._deadline - anyio.current_time(), 0.001)

    def _check_before_request(self) -> None:
        limits = self.config.limits
        written = self.usage.output_tokens or 0
        if limits.requests is not None and self._requests >= limits.requests:
            raise LimitExceeded("requests", limit=limits.requests)
        if limits.output_tokens is not None and written >= limits.output_tokens:
            raise LimitExceeded("output tokens", limit=limits.output_tokens)

    def _check_before_calls(self, calls: Sequence[ToolCall]) -> None:
        limits = self.config.limits
        if limits.tool_calls is not None and self._calls + len(calls) > limits.tool_calls:
            raise LimitExceeded("tool calls", limit=limits.tool_calls)
        if (
            limits.identical_turns is not None
            and self._turns.repeats(calls) >= limits.identical_turns
        ):
            names = ", ".join(f"`{call.name}`" for call in calls)
            raise LimitExceeded(
                f"identical turns (repeated calls of {names} with the same results)",
                limit=limits.identical_turns,
            )


class _Turns:
    """Recognises turns without progress: the same calls, with the same arguments and the same results, in a row."""

    def __init__(self) -> None:
        self._calls = ""
        self._told: list[str] = []
        self._in_a_row = 0

    def add(self, calls: Sequence[ToolCall], told: Sequence[Message]) -> None:
        written, texts = _written(calls), [message.content for message in told]
        is_same = written == self._calls and texts == self._told
        self._in_a_row = self._in_a_row + 1 if is_same else 1
        self._calls, self._told = written, texts

    def repeats(self, calls: Sequence[ToolCall]) -> int:
        """How many turns in a row were these calls with one and the same outcome."""
        return self._in_a_row if _written(calls) == self._calls else 0


def _written(calls: Sequence[ToolCall]) -> str:
    pairs: Json = [[call.name, dict(call.arguments)] for call in calls]
    return json.dumps(pairs, sort_keys=True, default=str)


def _or_unknown(count: int | None) -> str:
    return "an unknown number of" if count is None else str(count)
