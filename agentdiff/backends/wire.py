"""OpenAI's chat completions as JSON: a `Request` becomes a body, chunks become a reply.

Pure functions and one fold; knows no HTTP. A body holds only what the caller set. A reply is read
with tolerance: nearly every field may be missing or null, and a whole completion is one chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from agentdiff.backends.profiles import EngineProfile
from agentdiff.backends.validation import parse_json
from agentdiff.errors import ConfigurationError, ProtocolError, Rejected, Unavailable
from agentdiff.generation import FinishReason, Request
from agentdiff.messages import Json, Message, ToolCall, ToolSpec, Usage

_STOPPED = {"stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"}
_CUT = {"length", "max_tokens", "model_context_window_exceeded"}
_FILTERED = {"content_filter", "sensitive"}
_FAILED = {"error", "abort", "network_error", "insufficient_system_resource"}
_STRICT_KEYWORDS = frozenset(
    {"$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "format"}
    | {
        "exclusiveMaximum",
        "exclusiveMinimum",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
    }
    | {"multipleOf", "pattern", "properties", "required", "title", "type"}
)


# --- A request becomes a body ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is sent, and what was asked for but could not be sent as asked."""

    body: Mapping[str, Json]
    cap: int | None
    """Tokens after which the server ends the output, where it was told."""
    warnings: tuple[str, ...]


def ask(request: Request, *, model: str, profile: EngineProfile, streamed: bool) -> Asked:
    """The body of `request`.

    Raises:
        ConfigurationError: A tool call is required and there are no tools.
    """
    if request.tool_choice == "required" and not request.tools:
        raise ConfigurationError("`tool_choice='required'` needs `tools`, and there are none")
    warnings: list[str] = []
    body: dict[str, Json] = {
        "model": model,
        "messages": [_message(message) for message in request.messages],
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
    if request.schema is not None:
        body["response_format"] = _response_format(request.schema)
    effort = request.sampling.effort
    cap = None
    if request.budget is not None:
        cap = request.budget.ceiling + profile.reasoning_room.get(effort, 0)
        body[profile.length_field] = cap
    if effort in profile.efforts:
        body["reasoning_effort"] = profile.efforts[effort]
    body |= _sampling(request, profile, warnings)
    if streamed:
        body["stream"] = True
        if profile.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if profile.diffusing:
            body["diffusing"] = True
    return Asked(body=body, cap=cap, warnings=tuple(warnings))


def prompt_texts(request: Request) -> Iterator[str]:
    """Every text of the conversation, as it is sent."""
    for message in request.messages:
        yield message.content
        yield from (json.dumps(dict(call.arguments)) for call in message.tool_calls)


def _message(message: Message) -> dict[str, Json]:
    # Content is always a string: several engines reject null beside tool calls.
    said: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    if message.call_id is not None:
        said["tool_call_id"] = message.call_id
    return said


def _tool(tool: ToolSpec) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _response_format(schema: Mapping[str, Json]) -> dict[str, Json]:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title") or "output"))[:64]
    wanted: dict[str, Json] = {"name": name, "schema": dict(schema)}
    if _is_strict(schema):
        wanted["strict"] = True
    return {"type": "json_schema", "json_schema": wanted}


def _is_strict(schema: Json) -> bool:
    """Whether `strict` takes the schema: known keywords, every object closed, nothing optional."""
    if isinstance(schema, list):
        return all(map(_is_strict, cast("list[Json]", schema)))
    if not isinstance(schema, Mapping):
        return True
    node = _object(cast("Json", schema))
    properties = _object(node.get("properties"))
    if not node.keys() <= _STRICT_KEYWORDS or (
        (node.get("type") == "object" or properties)
        and (
            node.get("additionalProperties") is not False
            or set(_array(node.get("required"))) != set(properties)
        )
    ):
        return False
    definitions = _object(node.get("$defs"))
    inner = (node.get("items"), node.get("anyOf"), *properties.values(), *definitions.values())
    return all(map(_is_strict, inner))


def _sampling(request: Request, profile: EngineProfile, warnings: list[str]) -> dict[str, Json]:
    sampling = request.sampling
    wanted = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    sent: dict[str, Json] = {}
    for name, value in wanted.items():
        if value is None:
            continue
        if name not in profile.sampling_fields:
            warnings.append(f"`{name}` was not sent: {profile.name} does not take it")
            continue
        if name == "temperature" and profile.temperature_range is not None:
            low, high = profile.temperature_range
            if not low <= value <= high:
                asked, value = value, min(max(value, low), high)
                warnings.append(
                    f"`temperature` was {asked:g}, sent as {value:g}: "
                    f"{profile.name} takes {low:g} to {high:g}"
                )
        sent[name] = value
    return sent


# --- Chunks become a reply ---


@dataclass(slots=True)
class _PartialCall:
    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """What has come back so far. `add` is the fold; the rest is asked when the stream has ended."""

    backend: str
    model: str = ""
    finish_reason: str | None = None
    """As the server said it."""
    has_choice: bool = False
    """Whether any chunk held a choice."""
    usage: Usage = field(default_factory=Usage)
    warnings: list[str] = field(default_factory=list[str])
    _calls: list[_PartialCall] = field(default_factory=list[_PartialCall])
    _by_key: dict[int | str, _PartialCall] = field(default_factory=dict[int | str, _PartialCall])

    def add(self, chunk: Mapping[str, Json]) -> str:
        """Take in one chunk, or a whole completion; the text that it brings.

        Raises:
            ProtocolError: It is not a chunk of a chat completion.
        """
        choices = chunk.get("choices", ())
        if not isinstance(choices, list | tuple):
            raise ProtocolError("a chunk has no list of `choices`", backend=self.backend)
        self.model = self.model or _string(chunk.get("model"))
        if warning := _string(chunk.get("warning")):
            self.warnings.append(warning[:200])
        if usage := _object(chunk.get("usage")):
            self.usage = _usage(usage)  # the last one counts; some engines send running totals
        texts: list[str] = []
        for choice in map(_object, cast("list[Json]", choices)):
            if choice.get("index") not in (None, 0):
                continue
            self.has_choice = True
            self.finish_reason = _string(choice.get("finish_reason")) or self.finish_reason
            said = _object(choice.get("delta")) or _object(choice.get("message"))
            texts.append(_content(said.get("content")) or _string(said.get("refusal")))
            for fragment in map(_object, _array(said.get("tool_calls"))):
                self._add_fragment(fragment)
        return "".join(texts)

    def _add_fragment(self, fragment: Mapping[str, Json]) -> None:
        """Append to the call that the fragment belongs to, or begin a new one.

        Engines disagree on `index` and `id`: either may be missing, repeated or fresh in every
        fragment. The index counts first; the same index with another id begins a call only where a
        name comes with it.
        """
        function = _object(fragment.get("function"))
        name, call_id = _string(function.get("name")), _string(fragment.get("id"))
        index = fragment.get("index")
        key: int | str = index if isinstance(index, int) else call_id
        call = self._by_key.get(key) if key != "" else None
        if call is None and key == "" and not name and self._calls:
            call = self._calls[-1]
        if call is None or (name and call_id and call_id != call.id):
            call = _PartialCall(id=call_id, name=name)
            self._calls.append(call)
            if key != "":
                self._by_key[key] = call
        call.name = call.name or name
        arguments = function.get("arguments")
        call.arguments += (
            json.dumps(arguments) if isinstance(arguments, Mapping) else _string(arguments)
        )

    @property
    def has_calls(self) -> bool:
        """Whether the reply asks for tools."""
        return bool(self._calls)

    def reason(self) -> FinishReason:
        """Why the output ended. Calls count more than what the server calls them.

        Raises:
            Rejected: A content filter ended it.
            Unavailable: The server gave up.
        """
        said = self.finish_reason
        if said in _CUT:
            return "length"
        if said in _FILTERED:
            raise Rejected("a content filter ended the output", backend=self.backend)
        if said in _FAILED:
            raise Unavailable(
                f"the server gave up in the middle (finish_reason {said!r})", backend=self.backend
            )
        if said is not None and said not in _STOPPED:
            self.warnings.append(f"finish_reason {said[:40]!r} is unknown; taken as 'stop'")
        return "tool_calls" if self._calls else "stop"

    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, each with an id of its own; empty arguments are `{}`.

        Raises:
            ProtocolError: A call has no name, or its arguments are not a JSON object.
        """
        return tuple(self._read_calls())

    def _read_calls(self) -> Iterator[ToolCall]:
        seen: set[str] = set()
        for call in self._calls:
            if not call.name:
                raise ProtocolError("a tool call has no name", backend=self.backend)
            call_id = call.id if call.id and call.id not in seen else f"call_{uuid4().hex[:12]}"
            seen.add(call_id)
            yield ToolCall(id=call_id, name=call.name, arguments=self._arguments(call))

    def _arguments(self, call: _PartialCall) -> dict[str, Json]:
        try:
            arguments = parse_json(call.arguments.strip() or "{}")
        except ValueError:
            arguments = None
            problem = "are not JSON"
        else:
            if arguments is None:
                return {}
            problem = f"are {type(arguments).__name__}, not an object"
        if not isinstance(arguments, dict):
            raise ProtocolError(
                f"the arguments of the call to {call.name[:64]!r} {problem}", backend=self.backend
            )
        return cast("dict[str, Json]", arguments)


def _usage(usage: Mapping[str, Json]) -> Usage:
    details = _object(usage.get("completion_tokens_details"))
    reasoning = _count(details.get("reasoning_tokens"))
    return Usage(
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        reasoning_tokens=_count(usage.get("reasoning_tokens")) if reasoning is None else reasoning,
    )


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _content(value: Json) -> str:
    if isinstance(value, list):  # parts, as some gateways send them
        parts = map(_object, cast("list[Json]", value))
        return "".join(_string(part.get("text")) for part in parts)
    return _string(value)


def _string(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _array(value: Json) -> list[Json]:
    return cast("list[Any]", value) if isinstance(value, list) else []
