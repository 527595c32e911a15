"""Tools for a server that has no field for them: told in words, called by writing JSON.

The reply is one JSON action, as local models write it (`actions`): a call, or an answer. Pure
functions, from a request with tools to one without, and from its text back to calls.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from agentdiff.backends.actions import ReplyFormat, instructions, reply_schema
from agentdiff.generation import Request
from agentdiff.messages import Message, ToolSpec, assistant, system, user

FORMAT: Final = ReplyFormat()


def in_words(request: Request) -> Request:
    """The same without tools, whose schema is that of an action. What was called is told as it was written."""
    told = "\n".join([instructions(request), "The tools:", *map(_described, request.tools)])
    messages = [plain(message) for message in request.messages]
    if messages[0].role == "system":
        messages[0] = system(f"{messages[0].content}\n\n{told}")
    else:
        messages.insert(0, system(told))
    return replace(
        request,
        messages=tuple(messages),
        tools=(),
        tool_choice="auto",
        schema=reply_schema(request, FORMAT),
    )


def _described(tool: ToolSpec) -> str:
    parameters = json.dumps(dict(tool.parameters), ensure_ascii=False)
    return f"- {tool.name}: {tool.description} Its arguments: {parameters}"


def plain(message: Message) -> Message:
    """The same message without calls and results, for a template that knows neither."""
    if message.role == "tool":
        return user(f"{message.name or 'the tool'} returned: {message.content}")
    if message.tool_calls:
        # One action is one call; of several at once the model sees all.
        written = [{"tool": c.name, "args": dict(c.arguments)} for c in message.tool_calls]
        return assistant("\n".join(json.dumps(one, ensure_ascii=False) for one in written))
    return message
