"""Replies as JSON actions: how a local model calls tools, answers and refuses, under one schema.

    {"tool": NAME, "args": {...}}   call a tool
    {"answer": TEXT}                answer in words
    {"none": true}                  say that no tool fits

The schema of the actions that are allowed now goes to the constraint engine, so an invalid action cannot be written. A
request for a typed output (`schema`) without tools is the bare value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from agentdiff.backends.choices import named
from agentdiff.backends.quantities import quantities, unit_of
from agentdiff.backends.validation import AnyDraftValidator
from agentdiff.errors import ConfigurationError
from agentdiff.messages import Json, Message, ToolCall

if TYPE_CHECKING:
    from agentdiff.generation import FinishReason, Request

MAX_SPOKEN = 160
ANSWER_SCHEMA: dict[str, Json] = {"type": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """What a checkpoint was trained to reply; the `agentdiff` entry of its `config.json`, where there is one."""

    style: str = "spaced"
    """Separators of the JSON it writes: `compact` or `spaced`."""
    grounded: bool = False
    """Arguments come from the conversation, for every tool: free strings are spans of it, numbers are among those that
    it may mean (`quantities`), and a choice that it names is taken (`choices`)."""
    refuses: bool = False
    """It was trained to say `none`; then it answers in words only from tool results."""
    reads_instructions: bool = True
    """Whether system messages reach it."""
    max_tools: int | None = None
    max_reply: int | None = None
    """Tokens beyond which its replies were never trained; a larger ceiling is lowered to it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply."""

    reason: FinishReason
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def reply_schema(request: Request, format: ReplyFormat) -> dict[str, Json] | None:
    """The schema of what may be replied to `request`; None for free text."""
    if not request.tools and not format.refuses:
        return dict(request.schema) if request.schema is not None else None
    has_results = any(message.role == "tool" for message in request.messages)
    actions: list[dict[str, Json]] = []
    definitions: dict[str, Json] = {}
    texts = said(request)
    if request.tool_choice != "none":
        for tool in request.tools:
            parameters: Mapping[str, Json] = tool.parameters
            if format.grounded:
                parameters = _as_chosen(_only_numbers(parameters, texts), request)
            parameters = _hoisted(parameters, f"{tool.name}.args", definitions)
            actions.append(_action(tool={"const": tool.name}, args=parameters))
    if request.tool_choice != "required" and (has_results or not format.refuses):
        answer = _hoisted(request.schema or ANSWER_SCHEMA, "answer", definitions)
        actions.append(_action(answer=answer))
    if format.refuses and not has_results and request.tool_choice != "required":
        actions.append(_action(none={"const": True}))
    if not actions:
        raise ConfigurationError("`tool_choice` is 'required', but the request has no tools")
    return {"anyOf": actions} | ({"$defs": definitions} if definitions else {})


def grounding(request: Request, format: ReplyFormat) -> dict[str, list[str]]:
    """Instance pointer -> texts, for the strings that must be spans of them.

    Arguments are spans of the conversation; a grounded model's answers are spans of what the tools returned, so it
    cannot say a number that no tool gave it. A pointer does not say whose argument it is: where a grounded tool and
    another one have an argument of the same name, both are bound.
    """
    results = "; ".join(spoken(m.content) for m in request.messages if m.role == "tool")
    answers = {"/answer": [results]} if format.grounded and results.strip(" ;") else {}
    return answers | {
        f"/args{pointer}": texts
        for own in argument_grounding(request, format).values()
        for pointer, texts in own.items()
    }


def argument_grounding(request: Request, format: ReplyFormat) -> dict[str, dict[str, list[str]]]:
    """Tool -> pointer into its arguments -> texts, where free strings must be spans of the conversation."""
    texts = said(request)
    return {
        tool.name: {
            f"/{_escape(name)}{suffix}": texts
            for name in tool.parameters.get("properties", {})
            for suffix in ("", "/*")
        }
        for tool in request.tools
        if format.grounded or tool.grounded
    }


def said(request: Request) -> list[str]:
    """The texts that grounded arguments come from: what the user said, and what the tools returned."""
    return [m.content for m in request.messages if m.role in ("user", "tool") and m.content]


def _only_numbers(parameters: Mapping[str, Json], texts: Sequence[str]) -> Mapping[str, Json]:
    """The parameters with every plain number narrowed to those that `texts` may mean and its default, if one fits."""
    properties: dict[str, Json] = dict(parameters.get("properties", {}))
    for name, given in properties.items():
        schema = cast("dict[str, Json]", given) if isinstance(given, dict) else {}
        if schema.get("type") not in ("integer", "number") or "enum" in schema or "const" in schema:
            continue
        validator = AnyDraftValidator(schema)
        for unit in dict.fromkeys([unit_of(name), None]):
            fitting = [n for n in quantities(texts, unit=unit) if validator.is_valid(n)]
            if fitting:
                default: list[Json] = [schema["default"]] if "default" in schema else []
                properties[name] = schema | {"enum": [*fitting, *default]}
                break
    return {**parameters, "properties": properties} if properties else parameters


def _as_chosen(parameters: Mapping[str, Json], request: Request) -> Mapping[str, Json]:
    """The parameters with every choice narrowed to what the conversation names; what the user names must be given.

    A choice that an earlier call has taken up was perhaps meant for that one, so it counts for nothing here.
    """
    texts = said(request)
    by_user = [m.content for m in request.messages if m.role == "user"]
    given_before = [
        value for m in request.messages for c in m.tool_calls for value in c.arguments.values()
    ]
    properties: dict[str, Json] = dict(parameters.get("properties", {}))
    required: list[Json] = [*parameters.get("required", [])]
    for name, given in properties.items():
        schema = cast("dict[str, Json]", given) if isinstance(given, dict) else {}
        choices = named(schema.get("enum", []), texts)
        if not choices or any(choice in given_before for choice in choices):
            continue
        properties[name] = schema | {"enum": choices}
        if name not in required and named(choices, by_user):
            required.append(name)
    return (
        {**parameters, "properties": properties, "required": required} if properties else parameters
    )


def spoken(content: str) -> str:
    """A tool's result as an answer says it.

    The first line of a text; `key: value` pairs of an object; items with commas; at most `MAX_SPOKEN` characters.
    """
    try:
        value = json.loads(content, parse_float=str, parse_int=str)
    except ValueError:
        value = content
    text = _plain(value) if isinstance(value, dict | list) else content
    text = text.split("\n", 1)[0]
    return text if len(text) <= MAX_SPOKEN else text[:MAX_SPOKEN].rsplit(" ", 1)[0]


def _plain(value: Json) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, Json]", value).items()
        return ", ".join(f"{key}: {_plain(item)}" for key, item in pairs)
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in cast("list[Json]", value))
    return value if isinstance(value, str) else json.dumps(value)


def parse_reply(text: str, request: Request, format: ReplyFormat, *, call_id: str) -> Reply:
    """The meaning of a complete reply, which has been checked against `reply_schema`."""
    if not request.tools and not format.refuses:
        return Reply("stop", text)
    action: dict[str, Json] = json.loads(text)
    if "tool" in action:
        call = ToolCall(id=call_id, name=action["tool"], arguments=action["args"])
        return Reply("tool_calls", "", (call,))
    if "none" in action:
        return Reply("refused")
    answer = action["answer"]
    is_text = request.schema is None
    return Reply("stop", answer if is_text else json.dumps(answer, ensure_ascii=False))


def chat_messages(messages: Sequence[Message], format: ReplyFormat) -> list[dict[str, Json]]:
    """Messages in the shape that chat templates take; a model that reads no instructions is not shown any."""
    rows: list[dict[str, Json]] = []
    for message in messages:
        if message.role == "system" and not format.reads_instructions:
            continue
        row: dict[str, Json] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            row["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.id,
                    "function": {"name": call.name, "arguments": _compact(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            row |= {"tool_call_id": message.call_id, "name": message.name}
        rows.append(row)
    return rows


def instructions(request: Request) -> str:
    """What to tell a model that was not trained on actions, before the conversation."""
    lines = ['Reply with one JSON object. To call a tool: {"tool": NAME, "args": {...}}.']
    if request.tool_choice != "required":
        lines.append('To answer: {"answer": TEXT}.')
    return " ".join(lines)


def _action(**properties: Json) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _hoisted(
    schema: Mapping[str, Json], name: str, definitions: dict[str, Json]
) -> dict[str, Json]:
    """`schema` as a part of a larger one; if it refers to itself, it moves into `definitions`, under `name`."""
    root = f"#/$defs/{quote(_escape(name), safe='~')}"
    refers = False

    def moved(value: Json) -> Json:
        nonlocal refers
        if isinstance(value, list):
            return [moved(item) for item in cast("list[Json]", value)]
        if not isinstance(value, dict):
            return value
        node = cast("dict[str, Json]", value)
        rewritten = {key: moved(item) for key, item in node.items()}
        reference = node.get("$ref")
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            rewritten["$ref"] = root + reference[1:]
            refers = True
        return rewritten

    whole: dict[str, Json] = moved({key: schema[key] for key in schema if key != "$id"})
    if not refers:
        return whole or {"type": "object", "properties": {}}
    definitions[name] = whole
    return {"$ref": root}


def _compact(value: Mapping[str, Json]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
