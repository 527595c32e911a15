"""The words of a conversation: messages, tool calls, tool specifications, usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Json = Any
"""A JSON value, as `json.loads` gives it; narrowed where it is used."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """JSON Schema of the arguments, an object."""
    grounded: bool = False
    """Whether free string arguments must be spans of the conversation; held where enforcement is `in_block`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's request to run a tool."""

    id: str
    name: str
    arguments: Mapping[str, Json]
    """Parsed arguments."""
    malformed: str | None = None
    """What the model wrote, where that is no JSON object; `arguments` is then empty and the call must not be run, but
    answered with the fault."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Message:
    """One message of a conversation.

    An assistant message has `content`, `tool_calls` or both; a tool message answers the call `call_id`.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    """The tool's name, on tool messages."""


def system(content: str) -> Message:
    """A system message."""
    return Message(role="system", content=content)


def user(content: str) -> Message:
    """A user message."""
    return Message(role="user", content=content)


def assistant(content: str = "", *, tool_calls: Sequence[ToolCall] = ()) -> Message:
    """An assistant message."""
    return Message(role="assistant", content=content, tool_calls=tuple(tool_calls))


def tool_result(call: ToolCall, content: str) -> Message:
    """The message that answers `call`."""
    return Message(role="tool", content=content, call_id=call.id, name=call.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one generation or of many. None means that the backend did not say, never zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    """The part of `output_tokens` spent on hidden reasoning."""
    requests: int = 1
    """Generations counted here, failed attempts included."""

    def __add__(self, other: Usage) -> Usage:
        """The sum; a count that only one side knows is kept, so a sum with gaps is a lower bound."""

        def plus(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else a + b

        return Usage(
            input_tokens=plus(self.input_tokens, other.input_tokens),
            output_tokens=plus(self.output_tokens, other.output_tokens),
            reasoning_tokens=plus(self.reasoning_tokens, other.reasoning_tokens),
            requests=self.requests + other.requests,
        )
