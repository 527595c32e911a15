"""Route and arguments in one generation or in two.

A canvas is computed whole at every pass, and one that may hold any call is laid out for the longest.
Where that costs more than a small canvas for the name of the tool and one for the arguments of that
tool, the two are made apart. Everywhere else (blocks that stop early, caps that cost nothing) one
generation is cheaper, and one it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from agentdiff.agent.config import RunConfig
from agentdiff.agent.generating import Ask, predicted
from agentdiff.agent.schemas import Schema
from agentdiff.messages import Json, Message, ToolCall, ToolSpec, system

NONE = "none"
"""Stands for no tool: an answer."""
_BYTES_PER_TOKEN = 4


def wants_two(config: RunConfig[Any], ask: Ask) -> bool:
    """Whether a name first and its arguments then are expected to cost less than both at once.

    `ask` is for both at once. Costs are of full canvases: B tokens need passes in proportion to B,
    each over the prompt and the canvas.
    """
    capabilities = config.backend_of("route").capabilities
    is_canvas = capabilities.quantum > 1 and not capabilities.extends
    if not is_canvas or len(ask.tools) < 2 or any(spec.name == NONE for spec in ask.tools):
        return False
    prompt = sum(len(message.content) for message in ask.messages) // _BYTES_PER_TOKEN

    def cost(ask: Ask) -> float:
        canvas = predicted(config, ask).target
        return canvas * (prompt + canvas)

    arguments = [cost(arguments_ask(ask, spec)) for spec in ask.tools]
    return cost(choice_ask(ask)) + sum(arguments) / len(arguments) < cost(ask)


def choice_ask(ask: Ask) -> Ask:
    """The request for the name of a tool, in place of one for both."""
    tools = "\n".join(f"- {spec.name}: {spec.description}" for spec in ask.tools)
    how = f'Choose the next tool, as JSON: {{"tool": …}}; "{NONE}" answers in words.\n{tools}'
    return _typed(ask, how, choice_schema(ask.tools), tool=None, is_choice=True)


def arguments_ask(ask: Ask, spec: ToolSpec) -> Ask:
    """The request for the arguments of a tool, in place of one for both."""
    how = f"Write the arguments of the tool `{spec.name}`, as JSON. It does: {spec.description}"
    return _typed(ask, how, dict(spec.parameters), tool=spec.name, is_choice=False)


def choice_schema(tools: Sequence[ToolSpec]) -> Schema:
    """The schema of the name of a tool."""
    return {
        "type": "object",
        "properties": {"tool": {"enum": [*(spec.name for spec in tools), NONE]}},
        "required": ["tool"],
        "additionalProperties": False,
    }


def chosen(text: str, tools: Sequence[ToolSpec]) -> str | None:
    """The name that was chosen, or `NONE`; None where the text is no choice."""
    try:
        value: Json = json.loads(text)
        name = value["tool"]
    except (ValueError, TypeError, LookupError):
        return None
    return name if name == NONE or any(spec.name == name for spec in tools) else None


def call_of(name: str, text: str) -> ToolCall:
    """The call that was written: its arguments, or what stands in their place."""
    try:
        arguments: Json = json.loads(text)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return ToolCall(id="", name=name, arguments=cast("dict[str, Json]", arguments))
    return ToolCall(id="", name=name, arguments={}, malformed=text)


def _typed(ask: Ask, how: str, schema: Schema, *, tool: str | None, is_choice: bool) -> Ask:
    said = [message.content for message in ask.messages if message.role == "system"]
    rest: list[Message] = [message for message in ask.messages if message.role != "system"]
    return Ask(
        number=ask.number,
        kind="route" if is_choice else "arguments",
        messages=(system("\n\n".join([*said, how])), *rest),
        schema=schema,
        tool=tool,
        is_choice=is_choice,
    )
