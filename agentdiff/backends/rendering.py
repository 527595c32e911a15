"""Messages and tools as the JSON text of a request, each written once for as long as it lives.

A run sends its whole history with each step; what was sent before is not written anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar
from weakref import ref

from agentdiff.backends.loose import as_json
from agentdiff.backends.profiles import CallContent
from agentdiff.messages import Json, Message, ToolCall, ToolSpec

_K = TypeVar("_K")
_V = TypeVar("_V")


class PerObject(Generic[_K, _V]):
    """A function of objects that never change, remembered for as long as each of them lives."""

    def __init__(self, make: Callable[[_K], _V]) -> None:
        self._make = make
        self._made: dict[int, tuple[ref[_K], _V]] = {}

    def __call__(self, thing: _K) -> _V:
        """What `make` gives."""
        key = id(thing)
        found = self._made.get(key)
        if found is not None and found[0]() is thing:
            return found[1]
        value = self._make(thing)
        self._made[key] = ref(thing, lambda _: self._made.pop(key, None)), value
        return value

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._made)


class Rendering:
    """Writes messages and tools, and remembers what it wrote."""

    def __init__(self) -> None:
        contents: tuple[CallContent, ...] = ("empty", "null", "absent")
        self._messages = {each: PerObject(_message_with(each)) for each in contents}
        self._tool = PerObject(_tool)

    def body(
        self,
        fields: Mapping[str, Json],
        messages: tuple[Message, ...],
        tools: tuple[ToolSpec, ...],
        *,
        call_content: CallContent,
    ) -> bytes:
        """The body of a chat completion.

        Args:
            fields: All of it but messages and tools; never empty.
            messages: The conversation.
            tools: None are left out.
            call_content: See `EngineProfile.call_content`.

        Raises:
            ConfigurationError: Something in it is no JSON.
        """
        head = as_json(fields)[:-1]
        said = ",".join(map(self._messages[call_content], messages))
        shown = f',"tools":[{",".join(map(self._tool, tools))}]' if tools else ""
        # Half of a surrogate pair, as a broken text may hold, is no UTF-8: it goes as `?`.
        return f'{head},"messages":[{said}]{shown}}}'.encode("utf-8", "replace")


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call as they are sent.

    Malformed ones go back as `{}`: templates parse them, and fail on what does not parse.
    """
    return json.dumps(dict(call.arguments))


def _message_with(call_content: CallContent) -> Callable[[Message], str]:
    def written(message: Message) -> str:
        said: dict[str, Json] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            if not message.content and call_content == "null":
                said["content"] = None
            elif not message.content and call_content == "absent":
                del said["content"]
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": arguments_of(call)},
                }
                for call in message.tool_calls
            ]
        if message.call_id is not None:
            said["tool_call_id"] = message.call_id
        return as_json(said)

    return written


def _tool(tool: ToolSpec) -> str:
    function: dict[str, Json] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters) or {"type": "object", "properties": {}}
    return as_json({"type": "function", "function": function})
