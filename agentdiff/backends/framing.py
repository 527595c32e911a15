"""How a request is put to a local model: what it is shown, what it may write, and what its reply means.

Three ways, by what the checkpoint was trained on:

    actions   it was trained on JSON actions (the embedded model): see `actions`
    calls     its chat template shows tools and says how calls are written: text, calls, or an answer under a schema
    words     its chat template knows no tools: they are told in words and called by JSON actions

What may be written goes to the constraint engine, so that a reply can always be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentdiff.backends.actions import (
    Reply,
    ReplyFormat,
    argument_grounding,
    chat_messages,
    grounding,
    parse_reply,
    reply_schema,
)
from agentdiff.backends.bare_arguments import read_bare
from agentdiff.backends.chat_template import CallSyntax, as_functions
from agentdiff.backends.detokenizer import mark
from agentdiff.backends.tools_in_words import in_words, plain
from agentdiff.backends.wire import schema_in_words
from agentdiff.constraint import Grammar, Vocabulary, compile_schema, compile_tool_calls
from agentdiff.errors import ConfigurationError
from agentdiff.messages import Json, Message, ToolCall, system

if TYPE_CHECKING:
    from agentdiff.constraint import Style
    from agentdiff.generation import Request

NO_ARGUMENTS: Mapping[str, Json] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """A request as the model meets it."""

    rows: Sequence[Mapping[str, Json]]
    """The conversation, for the chat template."""
    tools: Sequence[Json] = ()
    """Tools that the template shows."""
    language: Language | None = None
    """What may be written; None for free text."""
    read: Callable[[str], Reply]
    """What a complete reply means: its text, with a `mark` for every tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What may be written: a value of a schema, or tool calls beside text or beside a value of a schema."""

    schema: Mapping[str, Json] | None = None
    tools: Mapping[str, Mapping[str, Json]] | None = None
    """Tool → schema of its arguments; None where there are no calls."""
    calls: CallSyntax | None = None
    has_text: bool = False
    """Whether free text may stand instead of calls, or before them."""
    grounding: Mapping[str, Json]
    """Of the schema, or tool → of its arguments."""
    style: Style

    @property
    def key(self) -> str:
        """All that the grammar depends on, for one vocabulary and one syntax."""
        return json.dumps(
            [self.schema, self.tools, self.has_text, self.grounding, self.style], default=dict
        )

    def compile(self, vocabulary: Vocabulary) -> Grammar:
        """The grammar.

        Raises:
            SchemaError: A schema cannot be enforced.
        """
        if self.tools is None or self.calls is None:
            return compile_schema(
                self.schema, vocabulary, style=self.style, grounding=dict(self.grounding) or None
            )
        return compile_tool_calls(
            self.tools,
            vocabulary,
            syntax=self.calls.syntax,
            parallel=self.calls.is_parallel,
            free_text=self.has_text,
            response_schema=self.schema,
            style=self.style,
            grounding=dict(self.grounding) or None,
        )


def frame(
    request: Request, format: ReplyFormat, calls: CallSyntax | None, *, call_id: str
) -> Framing:
    """Put a request the way that a checkpoint was trained for. Calls in the reply are named after `call_id`.

    Raises:
        ConfigurationError: A call is required, and there are no tools.
    """
    if format.refuses:
        return _as_actions(request, format, call_id)
    may_call = bool(request.tools) and request.tool_choice != "none"
    if request.tool_choice == "required" and not may_call:
        raise ConfigurationError("`tool_choice` is 'required', but the request has no tools")
    if not may_call:
        return _without_tools(request, format, calls)
    if calls is None:
        return _in_words(request, format, call_id)
    return _with_calls(request, format, calls, call_id)


def _as_actions(request: Request, format: ReplyFormat, call_id: str) -> Framing:
    schema = reply_schema(request, format)
    return Framing(
        rows=chat_messages(request.messages, format),
        tools=as_functions(request.tools),
        language=Language(
            schema=schema, grounding=grounding(request, format), style=_style(format)
        ),
        read=partial(parse_reply, request=request, format=format, call_id=call_id),
    )


def _in_words(request: Request, format: ReplyFormat, call_id: str) -> Framing:
    told = in_words(request)
    assert told.schema is not None
    return Framing(
        rows=_rows(told.messages, format),
        language=Language(
            schema=told.schema, grounding=grounding(request, format), style=_style(format)
        ),
        read=partial(parse_reply, request=request, format=format, call_id=call_id),
    )


def _without_tools(request: Request, format: ReplyFormat, calls: CallSyntax | None) -> Framing:
    """No tool can be called, so none is shown."""
    messages = _with_schema(request)
    if calls is None:
        messages = [plain(message) for message in messages]
    language: Language | None = None
    if request.schema is not None:
        style = _style(format) if calls is None else calls.style
        language = Language(schema=request.schema, grounding={}, style=style)
    return Framing(
        rows=_rows(messages, format),
        language=language,
        read=partial(Reply, "stop"),
    )


def _with_calls(request: Request, format: ReplyFormat, calls: CallSyntax, call_id: str) -> Framing:
    tools = {tool.name: tool.parameters or NO_ARGUMENTS for tool in request.tools}
    is_optional = request.tool_choice == "auto"
    language = Language(
        schema=request.schema if is_optional else None,
        tools=tools,
        calls=calls,
        has_text=is_optional and request.schema is None,
        grounding=argument_grounding(request, format),
        style=calls.style,
    )
    return Framing(
        rows=_rows(_with_schema(request), format),
        tools=as_functions(request.tools),
        language=language,
        read=partial(
            read_calls,
            calls=calls,
            names=list(tools),
            has_text=language.has_text,
            call_id=call_id,
        ),
    )


def read_calls(
    text: str, *, calls: CallSyntax, names: Sequence[str], has_text: bool, call_id: str
) -> Reply:
    """The calls in a marked text that the grammar of `compile_tool_calls` allows, and the text before them."""
    marks = {token: mark(number) for number, token in enumerate(calls.tags)}

    def spelled(pieces: Sequence[str | int]) -> str:
        return "".join(piece if isinstance(piece, str) else marks[piece] for piece in pieces)

    syntax = calls.syntax
    opening = spelled((*syntax.begin, *syntax.before_name))
    start = text.find(opening) if has_text else 0
    if start < 0 or not text.startswith(opening, start):
        return Reply("stop", text)
    to_arguments, behind = spelled(syntax.before_arguments), spelled(syntax.after_arguments)
    further = spelled((*syntax.between, *syntax.before_name))
    bare = None if syntax.quote is None else marks[syntax.quote]
    written = {(name if bare else _in_json(name)) + to_arguments: name for name in names}
    heads = sorted(written, key=len, reverse=True)  # bare, one name may begin another
    found: list[ToolCall] = []
    at = start + len(opening)
    while True:
        head = next(head for head in heads if text.startswith(head, at))
        at += len(head)
        if bare is None:
            arguments, at = json.JSONDecoder().raw_decode(text, at)
        else:
            arguments, at = read_bare(text, at, quote=bare)
        own_id = call_id if not found else f"{call_id}_{len(found)}"
        found.append(ToolCall(id=own_id, name=written[head], arguments=arguments))
        at += len(behind)
        if not text.startswith(further, at):
            return Reply("tool_calls", text[:start].rstrip(), tuple(found))
        at += len(further)


def _in_json(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _with_schema(request: Request) -> Sequence[Message]:
    """The conversation, with a word on the schema of the answer."""
    if request.schema is None:
        return request.messages
    told, messages = schema_in_words(request.schema), list(request.messages)
    if request.tools and request.tool_choice != "none":
        told = f"Call a tool, or answer. When you answer: {told}"
    if messages[0].role == "system":
        messages[0] = system(f"{messages[0].content}\n\n{told}")
    else:
        messages.insert(0, system(told))
    return messages


def _rows(messages: Sequence[Message], format: ReplyFormat) -> list[dict[str, Json]]:
    """Rows whose calls have their arguments as objects, as transformers asks of templates."""
    rows = chat_messages(messages, format)
    for row, message in zip(rows, (m for m in messages if _is_read(m, format)), strict=True):
        for written, call in zip(row.get("tool_calls", ()), message.tool_calls, strict=True):
            written["function"]["arguments"] = dict(call.arguments)
    return rows


def _is_read(message: Message, format: ReplyFormat) -> bool:
    return format.reads_instructions or message.role != "system"


def _style(format: ReplyFormat) -> Style:
    return "compact" if format.style == "compact" else "spaced"
