"""The tool calls of a run: unique ids, all of a turn at once, results in the order of the calls.

Whatever goes wrong in a tool goes back to the model as text. A call that waits for a person stops
nothing beside it. `Caller.call` is the way of one call, whoever asks for it: the loop or a plan.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import anyio
from pydantic_core import to_jsonable_python

from agentdiff.agent.config import Emit, RunConfig, ToolHook
from agentdiff.agent.context import RunContext
from agentdiff.agent.events import Approval, CallRecord, ToolFinished, ToolStarted
from agentdiff.agent.limits import Spending, inside
from agentdiff.agent.memory import Memory
from agentdiff.agent.state import place_of
from agentdiff.agent.tools import AnyTool
from agentdiff.errors import (
    ApprovalRequired,
    InvalidArguments,
    LimitExceeded,
    ModelRetry,
    ToolError,
    ToolFailed,
    UnknownTool,
)
from agentdiff.messages import Json, Message, ToolCall, tool_result
from agentdiff.telemetry import ToolSpan, execute_tool

Context: TypeAlias = Callable[[], RunContext[Any]]
"""Gives the run as tools see it now. It is passed on and not kept: a run that holds a `Caller` that
holds the run would be freed by the garbage collector only."""

_SHOWN_CHARS = 200
"""Of what the model wrote in place of arguments, when it is told so."""


class Turn(NamedTuple):
    """The calls of one turn, as far as they are done."""

    records: list[CallRecord | None]
    """In the order of the calls; None for those that are not done."""
    pending: tuple[ToolCall, ...]
    """Calls that wait for a person. A `sequential` call behind one of them is not begun, nor is what is
    behind a `sequential` one of them."""


class Caller:
    """Runs the tool calls of one run."""

    def __init__(
        self,
        config: RunConfig[Any],
        *,
        memory: Memory,
        spending: Spending,
        emit: Emit | None,
        approvals: Mapping[str, Approval],
    ) -> None:
        """Nothing runs yet.

        Args:
            config: The agent.
            memory: Knows the calls that were made before, and keeps those that are made.
            spending: Of the run.
            emit: Takes the events; None where nobody watches.
            approvals: What a person has said, by the id of the call.
        """
        self._config = config
        self._memory = memory
        self._spending = spending
        self._emit = emit
        self._approvals = approvals
        self._again: Counter[str] = Counter()

    async def turn(self, number: int, calls: Sequence[ToolCall], *, context: Context) -> Turn:
        """Run the calls of a turn at once, all but those that an earlier life has made.

        A `sequential` tool runs alone: after the calls before it, and before those after it.

        Args:
            number: Of the turn.
            calls: With unique ids.
            context: The run as tools see it now.

        Raises:
            Exception: What a tool raised, where the agent wants it to end the run.
        """
        records: list[CallRecord | None] = [None] * len(calls)
        begun: set[int] = set()

        async def run(at: int) -> None:
            begun.add(at)
            records[at] = await self.call(calls[at], place=place_of(number, at), context=context)

        def waiting() -> list[int]:
            return [at for at in sorted(begun) if records[at] is None]

        for batch in _batches(calls, self._config.tools):
            is_alone = _is_sequential(calls[batch[0]], self._config.tools)
            if is_alone and waiting():
                break
            if len(batch) == 1:
                await run(batch[0])
            else:
                await _all(run, batch)
            if is_alone and waiting():
                break
        return Turn(records, tuple([calls[at] for at in waiting()]))

    async def call(self, call: ToolCall, *, place: str, context: Context) -> CallRecord | None:
        """Run one call, unless an earlier life has: approval, validation, hooks, timeout, span.

        None when it waits for a person.

        Args:
            call: With an id that no other call of the run has.
            place: Of the call in the run, to know it again.
            context: The run as tools see it now.

        Raises:
            Exception: What the tool raised, where the agent wants it to end the run.
        """
        record = self._memory.hand_out_call(place)
        if record is not None:
            self._spending.add(record.usage, model="")
            return record
        if self._emit is not None:
            await self._emit(ToolStarted(call=call))
        record = await self._made(call, context)
        if record is None:
            return None
        await self._memory.keep_call(place, record)
        if self._emit is not None:
            await self._emit(ToolFinished(call=call, record=record))
        return record

    async def _made(self, call: ToolCall, context: Context) -> CallRecord | None:
        own = self._spending.part()
        tool = self._config.tools.get(call.name)
        started = time.perf_counter()
        result: Json = None
        problem: str | None = None
        asks_again = False
        asked: _Asked | None = None
        with execute_tool(tool=call.name, call_id=call.id, arguments=call.arguments) as span:
            try:
                if tool is None:
                    raise UnknownTool(call.name, known=tuple(self._config.tools))
                asked = _Asked(self, call, self._approvals.get(call.id), context, span)
                with inside(own):
                    result = _as_json(await asked.run(tool))
            except _Waits:
                span.waits()
                return None
            except Exception as error:
                span.fail(error)
                problem = self._told(call, error)
                asks_again = isinstance(error, InvalidArguments | ModelRetry | UnknownTool)
            record = CallRecord(
                tool=call.name,
                arguments=call.arguments,
                result=result,
                error=problem,
                duration_s=time.perf_counter() - started,
                call_id=call.id,
                asks_again=asks_again,
                approval=None if asked is None else asked.approval,
                usage=own.usage,
            )
            if span.wants_content:
                span.returned(told(record))
        return record

    def note(self, records: Iterable[CallRecord]) -> None:
        """Count the calls of a turn that the model was told to make again.

        Raises:
            LimitExceeded: That was once too often in a row for one tool.
        """
        for record in records:
            if not record.asks_again:
                del self._again[record.tool]
                continue
            self._again[record.tool] += 1
            tool = self._config.tools.get(record.tool)
            limit = self._config.retries if tool is None or tool.retries is None else tool.retries
            if self._again[record.tool] > limit:
                raise LimitExceeded(
                    f"retries of `{record.tool}` (the last: {record.error})",
                    limit=limit,
                    raise_with="retries=",
                )

    def attempt_of(self, call: ToolCall) -> int:
        """From 1; higher where the model was told to make a call of this tool again."""
        return self._again[call.name] + 1

    async def ask(self, call: ToolCall) -> Approval:
        """What a person says to a call.

        Raises:
            _Waits: Nobody is there to say.
        """
        approve = self._config.approve
        answer = None if approve is None else approve(call)
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer is None:
            raise _Waits
        return answer

    @property
    def hooks(self) -> tuple[ToolHook, ...]:
        """The hooks of the agent, the first outermost."""
        return self._config.tool_hooks

    def _told(self, call: ToolCall, error: Exception) -> str:
        how = self._config.on_tool_error
        if isinstance(error, ToolError):
            return str(error) or type(error).__name__  # written for the model
        if how == "raise":
            raise error
        if how == "hide":
            return "the tool failed"
        return _explained(error) if how == "tell" else how(call, error)


class _Waits(Exception):
    """A call waits for a person."""


class _Asked:
    """One call on its way to the function, and what a person says to it."""

    def __init__(
        self,
        caller: Caller,
        call: ToolCall,
        approval: Approval | None,
        context: Context,
        span: ToolSpan,
    ) -> None:
        self.approval = approval
        self._caller = caller
        self._call = call
        self._context = context
        self._span = span

    async def run(self, tool: AnyTool) -> Any:
        call = self._call
        if call.malformed is not None:
            raise InvalidArguments(
                f"the arguments of `{call.name}` are not a JSON object: {_shown(call.malformed)}"
            )
        if tool.approval is not False and self.approval is None:
            tool.check(call.arguments)  # nobody is asked about a call that cannot run
            if await tool.needs_approval(call.arguments):
                self.approval = await self._caller.ask(call)
        try:
            return await self._approved(tool)
        except ApprovalRequired:
            if self.approval is not None:
                raise
            self.approval = await self._caller.ask(call)
            return await self._approved(tool)

    async def _approved(self, tool: AnyTool) -> Any:
        approval = self.approval
        if approval is not None:
            self._span.approved(approval is True)
            if approval is not True:
                reason = f": {approval}" if approval else ""
                raise ToolFailed(f"a person did not allow this call{reason}")
        attempt = self._caller.attempt_of(self._call)
        if attempt > 1:
            self._span.again(attempt)
        hooks = self._caller.hooks
        if not hooks and not tool.takes_context:
            return await tool.call(self._call.arguments)
        context = replace(
            self._context(),
            call_id=self._call.id,
            attempt=attempt,
            is_approved=approval is True,
        )

        async def run(call: ToolCall) -> Any:
            return await tool.call(call.arguments, context)

        way: Callable[[ToolCall], Awaitable[Any]] = run
        for hook in reversed(hooks):
            way = functools.partial(_hooked, hook, context, way)
        return await way(self._call)


async def _hooked(
    hook: ToolHook,
    context: RunContext[Any],
    way: Callable[[ToolCall], Awaitable[Any]],
    call: ToolCall,
) -> Any:
    return await hook(context, call, way)


async def _all(run: Callable[[int], Awaitable[None]], places: Iterable[int]) -> None:
    """Run them at once. The first error cancels the others and is raised as it is."""
    failures: list[Exception] = []

    async def one(place: int) -> None:
        try:
            await run(place)
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for place in places:
            tasks.start_soon(one, place)
    if failures:
        raise failures[0]


def with_unique_ids(calls: Iterable[ToolCall], taken: set[str]) -> tuple[ToolCall, ...]:
    """The calls, with an id of our own where one is missing or taken; adds all ids to `taken`."""
    unique: list[ToolCall] = []
    for call in calls:
        id = call.id
        number = len(taken)
        while not id or id in taken:
            number += 1
            id = f"call_{number}"
        taken.add(id)
        unique.append(call if id == call.id else replace(call, id=id))
    return tuple(unique)


def answers(calls: Sequence[ToolCall], records: Sequence[CallRecord]) -> list[Message]:
    """What the model is told: one message for each call."""
    return [tool_result(call, told(record)) for call, record in zip(calls, records, strict=True)]


def told(record: CallRecord) -> str:
    """What the model is told about a call."""
    if record.error is not None:
        return f"error: {record.error}"
    if isinstance(record.result, str):
        return record.result
    return json.dumps(record.result, ensure_ascii=False, separators=(",", ":"))


def _batches(calls: Sequence[ToolCall], tools: Mapping[str, AnyTool]) -> list[list[int]]:
    """Places of calls that may run at once, batch after batch."""
    batches: list[list[int]] = []
    is_open = False
    for place, call in enumerate(calls):
        is_alone = _is_sequential(call, tools)
        if is_open and not is_alone:
            batches[-1].append(place)
        else:
            batches.append([place])
        is_open = not is_alone
    return batches


def _is_sequential(call: ToolCall, tools: Mapping[str, AnyTool]) -> bool:
    tool = tools.get(call.name)
    return tool is not None and tool.sequential


def _explained(error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


def _shown(written: str) -> str:
    if len(written) <= _SHOWN_CHARS:
        return repr(written)
    return f"{written[:_SHOWN_CHARS]!r}… ({len(written)} characters)"


def _as_json(value: Any) -> Json:
    """The value as JSON; what JSON cannot carry as its `str`."""
    if type(value) is str:
        return value
    try:
        return to_jsonable_python(value, fallback=str)
    except ValueError:  # a circle, or bytes that are not text
        return str(value)
