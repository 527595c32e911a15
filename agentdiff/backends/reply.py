"""Chunks of a chat completion become a reply: one fold, which knows no HTTP.

Read with tolerance: nearly every field may be missing or null, and a whole completion is one chunk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast
from uuid import uuid4

from agentdiff.backends.loose import a_count, a_list, a_string, an_object
from agentdiff.backends.validation import parse_json
from agentdiff.errors import ProtocolError, Rejected, Unavailable
from agentdiff.generation import FinishReason
from agentdiff.messages import Json, ToolCall, Usage

_STOPPED = {"stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"}
_CUT = {"length", "max_tokens", "model_context_window_exceeded"}
_FILTERED = {"content_filter", "sensitive"}
_FAILED = {"error", "abort", "network_error", "insufficient_system_resource"}
_LONGEST_WARNING = 200


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
    has_reasoned: bool = False
    """Whether reasoning was shown; it never becomes part of the text."""
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
        self.model = self.model or a_string(chunk.get("model"))
        if warning := a_string(chunk.get("warning")):
            self.warnings.append(warning[:_LONGEST_WARNING])
        if usage := an_object(chunk.get("usage")):
            self.usage = _usage(usage)  # the last one counts; some engines send running totals
        texts: list[str] = []
        for choice in map(an_object, cast("list[Json]", choices)):
            if choice.get("index") not in (None, 0):
                continue
            self.has_choice = True
            self.finish_reason = a_string(choice.get("finish_reason")) or self.finish_reason
            if "message" in choice and choice["message"] is None:
                raise ProtocolError("a choice has no message", backend=self.backend)
            said = an_object(choice.get("delta")) or an_object(choice.get("message"))
            if said.get("reasoning") or said.get("reasoning_content"):
                self.has_reasoned = True
            text = _content(said.get("content")) or a_string(said.get("refusal"))
            texts.append(text or a_string(choice.get("text")))  # endpoints for code
            is_whole = not an_object(choice.get("delta"))
            for place, fragment in enumerate(map(an_object, a_list(said.get("tool_calls")))):
                # In a whole message every entry is a call, whatever its id.
                self._add_fragment({"index": place, **fragment} if is_whole else fragment)
        return "".join(texts)

    def _add_fragment(self, fragment: Mapping[str, Json]) -> None:
        """Append to the call that the fragment belongs to, or begin a new one.

        Engines disagree on `index` and `id`: either may be missing, repeated or fresh in every
        fragment. The index counts first; the same index with another id begins a call only where a
        name comes with it.
        """
        function = an_object(fragment.get("function"))
        name, call_id = a_string(function.get("name")), a_string(fragment.get("id"))
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
            json.dumps(arguments) if isinstance(arguments, Mapping) else a_string(arguments)
        )

    @property
    def has_calls(self) -> bool:
        """Whether the reply asks for tools."""
        return bool(self._calls)

    def was_spent_on_reasoning(self, cap: int | None) -> bool:
        """Whether a reply without a text had its budget used up by hidden reasoning."""
        if self._calls or self.finish_reason not in ("length", "stop", None):
            return False
        hidden = self.usage.reasoning_tokens
        if hidden is None:
            return self.has_reasoned and self.finish_reason == "length"
        room = self.usage.output_tokens if cap is None else cap
        return hidden > 0 and room is not None and hidden >= 0.9 * room

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

        Arguments that are no JSON object are kept as they came, in `malformed`, and told in a
        warning: whoever makes the calls can show the model what it wrote.

        Raises:
            ProtocolError: A call has no name.
        """
        return tuple(self._read_calls())

    def _read_calls(self) -> Iterator[ToolCall]:
        seen: set[str] = set()
        for call in self._calls:
            if not call.name:
                raise ProtocolError("a tool call has no name", backend=self.backend)
            call_id = call.id if call.id and call.id not in seen else f"call_{uuid4().hex[:12]}"
            seen.add(call_id)
            arguments, fault = _arguments(call.arguments)
            if fault is None:
                yield ToolCall(id=call_id, name=call.name, arguments=arguments)
                continue
            self.warnings.append(f"the arguments of the call to {call.name[:64]!r} {fault}")
            yield ToolCall(id=call_id, name=call.name, arguments={}, malformed=call.arguments)


def _arguments(written: str) -> tuple[dict[str, Json], str | None]:
    """The arguments, and what is wrong with them."""
    try:
        arguments = parse_json(written.strip() or "{}")
    except ValueError:
        return {}, "are not JSON"
    if arguments is None:
        return {}, None
    if not isinstance(arguments, dict):
        return {}, f"are {type(arguments).__name__}, not an object"
    return cast("dict[str, Json]", arguments), None


def _usage(usage: Mapping[str, Json]) -> Usage:
    details = an_object(usage.get("completion_tokens_details"))
    reasoning = a_count(details.get("reasoning_tokens"))
    return Usage(
        input_tokens=a_count(usage.get("prompt_tokens")),
        output_tokens=a_count(usage.get("completion_tokens")),
        reasoning_tokens=a_count(usage.get("reasoning_tokens")) if reasoning is None else reasoning,
    )


def _content(value: Json) -> str:
    if isinstance(value, list):  # parts, as some gateways send them
        parts = map(an_object, a_list(value))
        return "".join(a_string(part.get("text")) for part in parts)
    return a_string(value)
