"""The end of an answer: why it ended, what was called, what holds of its structure, what to warn of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from agentdiff.backends import tools_in_words
from agentdiff.backends.actions import parse_reply
from agentdiff.backends.validation import arguments_hold, check_output, unfenced
from agentdiff.errors import OutputInvalid
from agentdiff.generation import Enforcement, Finish, FinishReason, Stats

if TYPE_CHECKING:
    from agentdiff.backends.profiles import EngineProfile
    from agentdiff.backends.service import Call
    from agentdiff.backends.terms import Terms
    from agentdiff.generation import Request
    from agentdiff.messages import ToolCall, Usage


def finished(
    call: Call, text: str, terms: Terms, profile: EngineProfile, *, first_commit_s: float | None
) -> Finish:
    """The end of an answer that has been read.

    Args:
        call: The answer; what it used is settled.
        text: All of its text, without what was written before it.
        terms: Of the stream.
        profile: Of the server.
        first_commit_s: Seconds to the first text; None takes the time that it is now.

    Raises:
        OutputInvalid: The output does not satisfy its schema; carries the usage.
        BackendError: The server gave up, or its filter ended the output.
    """
    reply = call.reply
    call.settle()
    usage = replace(terms.spent + reply.usage, requests=terms.attempts)
    reason = reply.reason()
    calls = () if reason == "length" else reply.calls()
    is_full = _is_at_cap(reply.usage, call.asked.cap)
    try:
        enforcement = _enforcement(text, calls, reason, call, terms, profile)
    except OutputInvalid as error:
        if not is_full:
            error.usage = usage
            raise
        # Some servers say "stop" where their cap has cut the output.
        reason, enforcement = "length", "none"
    said = None
    if terms.spoken is not None and enforcement != "none":
        action = parse_reply(
            unfenced(call.asked.prefix + text),
            terms.spoken,
            tools_in_words.FORMAT,
            call_id=f"call_{uuid4().hex[:12]}",
        )
        reason, said, calls = action.reason, action.text, action.tool_calls
    total_s = anyio.current_time() - terms.began
    return Finish(
        reason=reason,
        tool_calls=calls,
        usage=usage,
        stats=Stats(
            total_s=total_s,
            attempts=terms.attempts,
            first_commit_s=first_commit_s if first_commit_s is not None or not text else total_s,
        ),
        text=said,
        enforcement=enforcement,
        budget=terms.request.budget,
        model=reply.model or call.asked.model,
        warnings=(
            *call.asked.warnings,
            *terms.warnings,
            *reply.warnings,
            *_remarks(text, calls, reason, terms.request, is_full=is_full),
        ),
    )


def _enforcement(
    text: str,
    calls: tuple[ToolCall, ...],
    reason: FinishReason,
    call: Call,
    terms: Terms,
    profile: EngineProfile,
) -> Enforcement:
    """What holds of the structure.

    Raises:
        OutputInvalid: The output does not satisfy the schema.
    """
    if reason == "length":
        return "none"
    if calls:
        return "validated" if arguments_hold(calls, terms.request.tools) else "none"
    if terms.schema is None:
        return "none"
    prefix = call.asked.prefix
    # What was written before may have been handed on, so no fence around both can be taken off.
    whole = prefix + text if prefix else unfenced(text)
    check_output(whole, terms.schema, backend=call.reply.backend)
    if call.enforcement is not None:
        return call.enforcement
    is_native = profile.enforcement == "native" and not prefix and whole == text
    return "native" if is_native else "validated"


def _is_at_cap(usage: Usage, cap: int | None) -> bool:
    return cap is not None and usage.output_tokens is not None and usage.output_tokens >= cap


def _remarks(
    text: str,
    calls: tuple[ToolCall, ...],
    reason: FinishReason,
    request: Request,
    *,
    is_full: bool,
) -> list[str]:
    remarks: list[str] = []
    if not text and not calls:
        remarks.append("the reply is empty")
    if is_full and reason == "stop" and request.schema is None:
        remarks.append("the reply may be cut: it is as long as it was allowed to be")
    if request.tool_choice == "required" and not calls and reason != "length":
        remarks.append("a tool call was required, and the server answered without one")
    given = {tool.name for tool in request.tools}
    remarks += [
        f"the server called {call.name[:64]!r}, a tool that it was not given"
        for call in calls
        if call.name not in given
    ]
    return remarks
