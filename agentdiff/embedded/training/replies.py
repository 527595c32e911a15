"""What the model is shown and what it should write: calls, examples, and the text of a reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import cast

from agentdiff.backends.actions import spoken
from agentdiff.embedded.training.corpus import Json, Tool

REFUSAL = '{"none":true}'


class Digits(str):
    """A number as it is written: copied digit for digit, bare in JSON."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A tool with its arguments and what it returned."""

    tool: Tool
    arguments: dict[str, Json]
    result: Json = None

    @property
    def arguments_json(self) -> str:
        """The arguments as compact JSON, in the order of the tool's parameters."""
        ordered = [p.name for p in self.tool.parameters if p.name in self.arguments]
        inside = ",".join(f'"{name}":{to_json(self.arguments[name])}' for name in ordered)
        return "{" + inside + "}"

    @property
    def reply(self) -> str:
        """The action that makes this call."""
        return f'{{"tool":"{self.tool.name}","args":{self.arguments_json}}}'


@dataclass(frozen=True, slots=True)
class Example:
    """What the model is shown and what it should write."""

    kind: str
    """call, chain1, chain2, answer, none: what the reply does and where it stands."""
    tools: tuple[Tool, ...]
    request: str
    target: str
    done: tuple[Call, ...] = ()
    expected: Call | None = None

    @property
    def messages(self) -> list[dict[str, Json]]:
        """The conversation in the shape that chat templates take."""
        messages: list[dict[str, Json]] = [{"role": "user", "content": self.request}]
        for call in self.done:
            function = {"name": call.tool.name, "arguments": call.arguments_json}
            messages.append(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"type": "function", "function": function}],
                }
            )
            messages.append({"role": "tool", "content": result_text(call.result)})
        return messages


def to_json(value: Json) -> str:
    """Compact JSON; written numbers stay as written."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(
                f"{json.dumps(k, ensure_ascii=False)}:{to_json(v)}"
                for k, v in cast("dict[str, Json]", value).items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(to_json(v) for v in cast("list[Json]", value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def result_text(result: Json) -> str:
    """A tool's result as the conversation shows it: text as it is, anything else as compact JSON."""
    return result if isinstance(result, str) and not isinstance(result, Digits) else to_json(result)


def answer_reply(calls: list[Call]) -> str:
    """The action that answers with the results of all calls."""
    text = "; ".join(spoken(result_text(call.result)) for call in calls)
    return f'{{"answer":{json.dumps(text, ensure_ascii=False)}}}'
