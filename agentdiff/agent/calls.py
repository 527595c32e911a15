"""The calls of one turn: unique ids, all at once, results in the order in which the model asked.

Whatever goes wrong in a tool goes back to the model as text; only cancellation ends a turn early.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
from pydantic_core import to_jsonable_python

from agentdiff.agent.events import CallRecord, RunEvent, ToolFinished, ToolStarted
from agentdiff.agent.tools import AnyTool
from agentdiff.errors import ToolError, UnknownTool
from agentdiff.messages import Json, Message, ToolCall, tool_result
from agentdiff.telemetry import execute_tool

Emit = Callable[[RunEvent], Awaitable[None]]


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


async def act(
    calls: Sequence[ToolCall], tools: Mapping[str, AnyTool], emit: Emit
) -> tuple[CallRecord, ...]:
    """Run the calls of a turn at once.

    A `sequential` tool runs alone: after the calls before it, and before those after it.
    """
    records: dict[str, CallRecord] = {}

    async def run(call: ToolCall) -> None:
        records[call.id] = await _run_call(call, tools, emit)

    for batch in _batches(calls, tools):
        if len(batch) == 1:
            await run(batch[0])
            continue
        async with anyio.create_task_group() as tasks:
            for call in batch:
                tasks.start_soon(run, call)
    return tuple(records[call.id] for call in calls)


def answers(calls: Sequence[ToolCall], records: Sequence[CallRecord]) -> list[Message]:
    """What the model is told: one message for each call."""
    return [tool_result(call, _told(record)) for call, record in zip(calls, records, strict=True)]


def _batches(calls: Sequence[ToolCall], tools: Mapping[str, AnyTool]) -> Iterator[list[ToolCall]]:
    batch: list[ToolCall] = []
    for call in calls:
        tool = tools.get(call.name)
        if tool is None or not tool.sequential:
            batch.append(call)
            continue
        if batch:
            yield batch
            batch = []
        yield [call]
    if batch:
        yield batch


async def _run_call(call: ToolCall, tools: Mapping[str, AnyTool], emit: Emit) -> CallRecord:
    await emit(ToolStarted(call=call))
    started = time.perf_counter()
    result: Json = None
    problem: str | None = None
    with execute_tool(tool=call.name, call_id=call.id, arguments=call.arguments) as span:
        try:
            tool = tools.get(call.name)
            if tool is None:
                raise UnknownTool(call.name, known=tuple(tools))
            result = _as_json(await tool.call(call.arguments))
        except Exception as error:
            span.fail(error)
            problem = _explained(error)
        record = CallRecord(
            tool=call.name,
            arguments=call.arguments,
            result=result,
            error=problem,
            duration_s=time.perf_counter() - started,
        )
        span.returned(_told(record))
    await emit(ToolFinished(call=call, record=record))
    return record


def _explained(error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    if isinstance(error, ToolError) and text:
        return text  # written for the model
    return f"{name}: {text}" if text else name


def _told(record: CallRecord) -> str:
    if record.error is not None:
        return f"error: {record.error}"
    if isinstance(record.result, str):
        return record.result
    return json.dumps(record.result, ensure_ascii=False, separators=(",", ":"))


def _as_json(value: Any) -> Json:
    """The value as JSON; what JSON cannot carry as its `str`."""
    try:
        return to_jsonable_python(value, fallback=str)
    except ValueError:  # a circle, or bytes that are not text
        return str(value)
