"""Conversations as the GenAI conventions write them: JSON lists of messages made of parts.

Each text is cut to a limit. Only called when content capture is on (`names.captures_content`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentdiff.messages import Json, Message, ToolCall

MAX_CHARS = 4000
"""Characters kept of one text, one set of arguments or one result."""


def clipped(text: str) -> str:
    """`text`, or its beginning and how much was left out."""
    left_out = len(text) - MAX_CHARS
    return text if left_out <= 0 else f"{text[:MAX_CHARS]}… [{left_out} more characters]"


def arguments_json(arguments: Mapping[str, Json]) -> str:
    """Tool arguments as one JSON object, clipped (and then no longer JSON)."""
    return clipped(json.dumps(dict(arguments), ensure_ascii=False, default=str))


def input_messages(messages: Sequence[Message]) -> str:
    """The value of `gen_ai.input.messages`."""
    return _dumps([_message(message) for message in messages])


def output_messages(text: str, tool_calls: Sequence[ToolCall], *, finish_reason: str) -> str:
    """The value of `gen_ai.output.messages`."""
    reply = Message(role="assistant", content=text, tool_calls=tuple(tool_calls))
    return _dumps([{**_message(reply), "finish_reason": finish_reason}])


def _message(message: Message) -> dict[str, Json]:
    if message.role == "tool":
        response = {
            "type": "tool_call_response",
            "id": message.call_id,
            "response": clipped(message.content),
        }
        return {"role": message.role, "parts": [response]}
    parts: list[dict[str, Json]] = []
    if message.content:
        parts.append({"type": "text", "content": clipped(message.content)})
    parts.extend(
        {
            "type": "tool_call",
            "id": call.id,
            "name": call.name,
            "arguments": arguments_json(call.arguments),
        }
        for call in message.tool_calls
    )
    return {"role": message.role, "parts": parts}


def _dumps(messages: list[dict[str, Json]]) -> str:
    return json.dumps(messages, ensure_ascii=False)
