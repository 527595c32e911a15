"""A `Request` as a body of OpenAI's chat completions. Pure functions; knows no HTTP.

A body holds only what the caller set: several engines refuse, or do something else on, a default
that is spelled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from agentdiff.backends.continuing import prefix_of
from agentdiff.backends.loose import a_list, an_object
from agentdiff.backends.pinned_canvas import HINT, Canvas
from agentdiff.backends.profiles import CallContent, EngineProfile, LengthField
from agentdiff.backends.rendering import Rendering, arguments_of
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Request
from agentdiff.messages import Json, Message, ToolSpec, assistant, system

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

    fields: Mapping[str, Json]
    """The body but for messages and tools."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    call_content: CallContent
    cap: int | None
    """Tokens after which the server ends the output, where it was told."""
    length_field: LengthField
    warnings: tuple[str, ...] = ()
    model: str
    prefix: str = ""
    """What has been written of the reply, from which the server is to write on."""

    def body(self, rendering: Rendering) -> bytes:
        """What goes over the wire.

        Raises:
            ConfigurationError: Something in it is no JSON.
        """
        return rendering.body(
            self.fields, self.messages, self.tools, call_content=self.call_content
        )

    def with_fields(self, more: Mapping[str, Json]) -> Asked:
        """The same with more fields."""
        return replace(self, fields={**self.fields, **more})

    def with_cap(self, cap: int) -> Asked:
        """The same with another cap."""
        return replace(self, cap=cap, fields={**self.fields, self.length_field: cap})

    def with_length_field(self, name: LengthField) -> Asked:
        """The same with its cap in another field."""
        fields = {k: v for k, v in self.fields.items() if k != self.length_field}
        if self.cap is not None:
            fields[name] = self.cap
        return replace(self, fields=fields, length_field=name)


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """Every text of a conversation, as it is sent."""

    request: Request

    def __iter__(self) -> Iterator[str]:
        """One after the other, made as they are asked for."""
        for message in self.request.messages:
            yield message.content
            yield from map(arguments_of, message.tool_calls)


def ask(request: Request, *, model: str, profile: EngineProfile, streamed: bool) -> Asked:
    """What is sent for `request`.

    Raises:
        ConfigurationError: A tool call is required and there are no tools.
    """
    if request.tool_choice == "required" and not request.tools:
        raise ConfigurationError("`tool_choice='required'` needs `tools`, and there are none")
    warnings: list[str] = []
    fields: dict[str, Json] = {"model": model}
    messages, prefix = request.messages, prefix_of(request, profile)
    if prefix:
        # Templates drop blanks at the end, and some then do not find what is to be continued.
        messages = (*messages[:-1], assistant(prefix.rstrip()))
        fields |= profile.continue_fields or {}
    # An engine's grammar begins with what it writes: in the middle of a value it would begin anew.
    is_native = profile.enforcement == "native" and not prefix
    if request.schema is not None and not is_native:
        messages = _told(messages, schema_in_words(request.schema))
    if request.tools and request.tool_choice != "auto":
        fields["tool_choice"] = request.tool_choice
    if request.schema is not None and profile.structured == "response_format" and not prefix:
        fields["response_format"] = _response_format(request.schema)
    effort = request.sampling.effort
    cap = None
    if request.budget is not None:
        cap = request.budget.ceiling + profile.reasoning_room.get(effort, 0)
        fields[profile.length_field] = cap
    if effort in profile.efforts:
        fields["reasoning_effort"] = profile.efforts[effort]
    fields |= _sampling(request, profile, warnings)
    if streamed:
        fields["stream"] = True
        if profile.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        if profile.diffusing:
            fields["diffusing"] = True
    return Asked(
        fields=fields,
        messages=messages,
        tools=request.tools,
        call_content=profile.call_content,
        cap=cap,
        length_field=profile.length_field,
        warnings=tuple(warnings),
        model=model,
        prefix=prefix,
    )


def pinned(asked: Asked, canvas: Canvas) -> Asked:
    """The same with the skeleton of its output pinned; the output is exactly the canvas."""
    width = len(canvas.tokens)
    fields = {
        "diffusion_canvas_length": width,
        "diffusion_seed_canvas": list(canvas.tokens),
        "diffusion_pinned": list(canvas.pinned),
        "diffusion_read_only": 1,
    }
    # A thought would be written into the canvas.
    more: dict[str, Json] = {
        "vllm_xargs": fields,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    messages = _told(asked.messages, HINT)
    return replace(asked.with_fields(more), messages=messages).with_cap(width)


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


def schema_in_words(schema: Mapping[str, Json]) -> str:
    """The instruction for a model whose engine does not decode by a schema."""
    written = json.dumps(dict(schema), ensure_ascii=False, separators=(",", ":"))
    return (
        "Reply with one JSON value and nothing else: no prose, no code fence. "
        f"It must satisfy this JSON Schema: {written}"
    )


def _told(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    """The messages with an instruction in the system message: some templates take only one, first."""
    if messages[0].role == "system":
        return system(f"{messages[0].content}\n\n{instruction}"), *messages[1:]
    return system(instruction), *messages


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
