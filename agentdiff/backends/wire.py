"""A `Request` as the body of OpenAI's chat completions. Pure functions; knows no HTTP.

A body holds only what the caller set: several engines refuse, or do something else on, a default
that is spelled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from agentdiff.backends.loose import a_list, an_object
from agentdiff.backends.pinned_canvas import HINT, Canvas
from agentdiff.backends.profiles import EngineProfile, LengthField
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Request
from agentdiff.messages import Json, Message, ToolSpec

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

_REFUSED_FIELD = re.compile(
    r"unsupported|not supported|unrecognized|unknown|extra|not permitted|unexpected|use .?max_",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is sent, and what was asked for but could not be sent as asked."""

    body: Mapping[str, Json]
    cap: int | None
    """Tokens after which the server ends the output, where it was told."""
    length_field: LengthField
    warnings: tuple[str, ...]

    def with_cap(self, cap: int) -> Asked:
        """The same with another cap."""
        return replace(self, cap=cap, body={**self.body, self.length_field: cap})

    def with_length_field(self, name: LengthField) -> Asked:
        """The same with its cap in another field."""
        body = {k: v for k, v in self.body.items() if k != self.length_field}
        if self.cap is not None:
            body[name] = self.cap
        return replace(self, body=body, length_field=name)


def ask(request: Request, *, model: str, profile: EngineProfile, streamed: bool) -> Asked:
    """The body of `request`.

    Raises:
        ConfigurationError: A tool call is required and there are no tools.
    """
    if request.tool_choice == "required" and not request.tools:
        raise ConfigurationError("`tool_choice='required'` needs `tools`, and there are none")
    warnings: list[str] = []
    messages = [_message(message, profile) for message in request.messages]
    if request.schema is not None and profile.enforcement != "native":
        messages = _told(messages, schema_in_words(request.schema))
    body: dict[str, Json] = {"model": model, "messages": messages}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
    if request.schema is not None and profile.structured == "response_format":
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
    return Asked(body=body, cap=cap, length_field=profile.length_field, warnings=tuple(warnings))


def pinned(asked: Asked, canvas: Canvas) -> Asked:
    """The same with the skeleton of its output pinned; the output is exactly the canvas."""
    width = len(canvas.tokens)
    fields = {
        "diffusion_canvas_length": width,
        "diffusion_seed_canvas": list(canvas.tokens),
        "diffusion_pinned": list(canvas.pinned),
        "diffusion_read_only": 1,
    }
    messages = _told(cast("list[dict[str, Json]]", asked.body["messages"]), HINT)
    body = {**asked.body, "messages": messages, "vllm_xargs": fields}
    # A thought would be written into the canvas.
    body["chat_template_kwargs"] = {"enable_thinking": False}
    return replace(asked, body=body).with_cap(width)


def other_length_field(asked: Asked, complaint: str) -> LengthField | None:
    """The field that the server wants the cap in, if that is what its refusal is about."""
    if (
        asked.cap is None
        or asked.length_field not in complaint
        or not _REFUSED_FIELD.search(complaint)
    ):
        return None
    return (
        "max_tokens" if asked.length_field == "max_completion_tokens" else "max_completion_tokens"
    )


def prompt_texts(request: Request) -> Iterator[str]:
    """Every text of the conversation, as it is sent."""
    for message in request.messages:
        yield message.content
        yield from (json.dumps(dict(call.arguments)) for call in message.tool_calls)


def schema_in_words(schema: Mapping[str, Json]) -> str:
    """The instruction for a model whose engine does not decode by a schema."""
    written = json.dumps(dict(schema), ensure_ascii=False, separators=(",", ":"))
    return (
        "Reply with one JSON value and nothing else: no prose, no code fence. "
        f"It must satisfy this JSON Schema: {written}"
    )


def _told(messages: list[dict[str, Json]], instruction: str) -> list[dict[str, Json]]:
    """The messages with an instruction in the system message: some templates take only one, first."""
    if messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{instruction}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def _message(message: Message, profile: EngineProfile) -> dict[str, Json]:
    said: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        if not message.content and profile.call_content != "empty":
            if profile.call_content == "null":
                said["content"] = None
            else:
                del said["content"]
        # Malformed arguments go back as `{}`: templates parse them, and fail on what does not parse.
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
    node = an_object(cast("Json", schema))
    properties = an_object(node.get("properties"))
    if not node.keys() <= _STRICT_KEYWORDS or (
        (node.get("type") == "object" or properties)
        and (
            node.get("additionalProperties") is not False
            or set(a_list(node.get("required"))) != set(properties)
        )
    ):
        return False
    definitions = an_object(node.get("$defs"))
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
