"""A conversation that a server will accept: every call answered once, every answer to a call.

Servers refuse a conversation that ends, or goes on, between a call and its result; so does a run
that was cancelled there leave one, or a program that cut its history at some length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentdiff.messages import Message, ToolCall, tool_result

INTERRUPTED = "error: interrupted; this call has no result"
"""What stands for the result of a call that has none."""


def repaired(history: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation with its gaps closed.

    A call without a result gets one that says so; a result moves to its call; a result without a
    call, a second result of one call, and an assistant message with nothing in it are left out.
    Of calls with the same id in one message the later ones get an id of their own. A conversation
    without gaps comes back as it is.
    """
    whole: list[Message] = []
    results = _results(history)
    for place, message in enumerate(history):
        if message.role == "tool":
            continue
        if message.role != "assistant" or not message.tool_calls:
            if message.role != "assistant" or message.content:
                whole.append(message)
            continue
        calls = _with_ids(message.tool_calls, place)
        whole.append(message if calls == message.tool_calls else replace(message, tool_calls=calls))
        whole.extend(_answered(calls, message.tool_calls, results.get(place, [])))
    return tuple(whole)


def _results(history: Sequence[Message]) -> dict[int, list[Message]]:
    """The results that belong to each assistant message with calls, by its place.

    Servers count calls anew in every reply (`call_0`), so an id belongs to the newest message
    before it that has it.
    """
    results: dict[int, list[Message]] = {}
    callers: dict[str, int] = {}
    for place, message in enumerate(history):
        callers |= {call.id: place for call in message.tool_calls}
        if message.role == "tool" and message.call_id in callers:
            results.setdefault(callers[message.call_id], []).append(message)
    return results


def _with_ids(calls: Sequence[ToolCall], place: int) -> tuple[ToolCall, ...]:
    seen: set[str] = set()
    named: list[ToolCall] = []
    for number, call in enumerate(calls):
        if not call.id or call.id in seen:
            call = replace(call, id=f"call_{place}_{number}")
        seen.add(call.id)
        named.append(call)
    return tuple(named)


def _answered(
    calls: Sequence[ToolCall], before: Sequence[ToolCall], results: Sequence[Message]
) -> list[Message]:
    """One result for each call, in the order of the calls; the first that was given, if any."""
    left = list(results)
    answers: list[Message] = []
    for call, old in zip(calls, before, strict=True):
        found = next((result for result in left if result.call_id == old.id), None)
        if found is None:
            answers.append(tool_result(call, INTERRUPTED))
            continue
        left.remove(found)
        answers.append(found if found.call_id == call.id else replace(found, call_id=call.id))
    return answers
