"""A checkpoint's own chat template: conversations as its model has read them, and how it was taught to call tools.

How calls are written is read off the template: it is made to write conversations with calls in them, and what stands
around the names and the arguments is the syntax. So what a model is shown and what it is held to have one source, and
no table of models goes out of date. Arguments are a JSON object, or what Gemma's models write: bare keys, and strings
between two special tokens. A template that shows no tools, or writes calls in another way, has no syntax; its model is
told of the tools in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, cast

from agentdiff.constraint import ToolSyntax
from agentdiff.errors import ConfigurationError
from agentdiff.messages import Json, ToolSpec

if TYPE_CHECKING:
    from agentdiff.constraint import Style

Rows = Sequence[Mapping[str, Json]]
Piece = str | int


class Tokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    @property
    def chat_template(self) -> Any:
        """Jinja source, sources by name, or None."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Token id → a token that was added to the vocabulary, special or not."""
        ...

    @property
    def apply_chat_template(self) -> Any:
        """Renders a conversation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How a model writes calls."""

    syntax: ToolSyntax
    style: Style
    """Separators of the JSON that it writes, in arguments and in an answer under a schema."""
    is_parallel: bool
    """Whether several calls may stand in one reply."""
    tags: Mapping[int, str]
    """Token → text, of the tags in `syntax` that are one token."""


class ChatTemplate:
    """Renders conversations; a checkpoint without a template gets `role: text` lines."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the template of a tokenizer."""
        self._tokenizer = tokenizer

    @cached_property
    def calls(self) -> CallSyntax | None:
        """How calls are written; None where tools have to be told in words."""
        return read_syntax(self, self._tokenizer) if self.exists else None

    @property
    def exists(self) -> bool:
        """Whether the checkpoint has a template."""
        return self._tokenizer.chat_template is not None

    def render(self, rows: Rows, tools: Sequence[Json]) -> str:
        """The prompt, up to where the reply begins. Templates with a switch for thinking have it off.

        Raises:
            ConfigurationError: The template refuses the conversation.
        """
        if not self.exists:
            return "".join(f"{row['role']}: {row['content']}\n" for row in rows) + "assistant: "
        return self.apply(rows, tools, is_open=True, switch={"enable_thinking": False})

    def apply(
        self, rows: Rows, tools: Sequence[Json], *, is_open: bool, switch: Mapping[str, bool]
    ) -> str:
        """What the template makes of rows; `is_open` adds what begins a reply.

        Raises:
            ConfigurationError: The template refuses them.
        """
        from jinja2 import TemplateError

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(rows),
                    tools=tools or None,
                    add_generation_prompt=is_open,
                    tokenize=False,
                    **switch,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"the checkpoint's chat template cannot write this conversation ({type(error).__name__})"
            ) from error


def as_functions(tools: Sequence[ToolSpec]) -> list[Json]:
    """Tools in the shape that templates take."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


_SHOWN = "shown_probe"
_NAME = "called_probe"
_SAID = "said_probe"
_ID = "idprobe00"
_ARGUMENTS = {"second": "two", "first": "one"}
_SPELLINGS: tuple[tuple[Style, str], ...] = (
    ("spaced", json.dumps(_ARGUMENTS)),
    ("spaced", json.dumps(_ARGUMENTS, sort_keys=True)),
    ("compact", json.dumps(_ARGUMENTS, separators=(",", ":"))),
    ("compact", json.dumps(_ARGUMENTS, separators=(",", ":"), sort_keys=True)),
)
_BARE = "{{first:{0}one{0},second:{0}two{0}}}"
"""The same as Gemma writes it, around a token that stands for a quote."""
_SWITCHES: tuple[Mapping[str, bool], ...] = ({}, {"enable_thinking": True})
"""Some templates begin a reply with the end of an empty thought, unless there may be one."""
_ASKED = {"role": "user", "content": "asked_probe"}
_TAG = re.compile(r"<\S+>|\[\S+\]")
_TRIGGER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|[^\s{]+")


def read_syntax(template: ChatTemplate, tokenizer: Tokenizer) -> CallSyntax | None:
    """How calls are written, by what the template makes of conversations with one and two of them."""
    contents = {str(token.content): token_id for token_id, token in _added(tokenizer)}
    # Some vocabularies add line breaks and words too; those stay text.
    added = {token: token_id for token, token_id in contents.items() if _TAG.fullmatch(token)}
    try:
        one = _turn(template, calls=1, added=added)
    except ConfigurationError:
        return None
    if one is None:
        return None
    try:
        two = _turn(template, calls=2, added=added)
    except ConfigurationError:
        two = None
    (style, quote), before, (to_arguments, *_), after = one
    begin, before_name, after_arguments, between, end = "", before, after, "", ""
    is_parallel = two is not None and two[1] == before and two[3] == after
    if is_parallel and two is not None:
        inner = two[2][1]
        before_name = _common_suffix(before, inner)
        inner = inner.removesuffix(before_name)
        after_arguments = _common_prefix(inner, after)
        between = inner.removeprefix(after_arguments)
        begin, end = before.removesuffix(before_name), after.removeprefix(after_arguments)
        is_parallel = bool(before_name) and bool(after_arguments)
    if not is_parallel:
        begin, before_name, after_arguments, between, end = "", before, after, "", ""
    tags: dict[int, str] = {}

    def pieces(text: str) -> tuple[Piece, ...]:
        found: list[Piece] = []
        for part in _split(text, added):
            token = added.get(part)
            if token is not None:
                tags[token] = part
            found.append(part if token is None else token)
        return tuple(found)

    if quote is not None:
        tags[added[quote]] = quote
    opening = pieces(begin) or pieces(before_name)
    first = opening[0] if opening else ""
    if isinstance(
        first, str
    ):  # the trigger is the tag alone, so that text cannot hold a part of it
        found = _TRIGGER.match(first)
        if found is None:
            return None
        rest = first[found.end() :]
        opening = (found[0], *([rest] if rest else []), *opening[1:])
    return CallSyntax(
        syntax=ToolSyntax(
            begin=opening if begin else (),
            before_name=pieces(before_name) if begin else opening,
            before_arguments=pieces(to_arguments),
            after_arguments=pieces(after_arguments),
            between=pieces(between),
            end=pieces(end),
            quote=None if quote is None else added[quote],
        ),
        style=style,
        is_parallel=is_parallel,
        tags=tags,
    )


_Turn = tuple[tuple["Style", str | None], str, list[str], str]
"""(style, quote token of bare arguments); before the first name; between name, arguments, next name and so on; behind
the last arguments."""


def _turn(template: ChatTemplate, *, calls: int, added: Mapping[str, int]) -> _Turn | None:
    """The parts of a turn with calls; None where they are not names and arguments, or the tools are not shown."""
    for switch in _SWITCHES:
        turn = _written(template, calls, added, switch)
        if turn is None:
            continue
        quoted = [token for token in added if token in turn]
        spellings: list[tuple[tuple[Style, str | None], str]] = [
            *(((style, None), arguments) for style, arguments in _SPELLINGS),
            *((("spaced", token), _BARE.format(token)) for token in quoted),
        ]
        for spelling, arguments in spellings:
            parts = re.split(f"{_NAME}|{re.escape(arguments)}", turn)
            if len(parts) == 2 * calls + 1 and _ID not in turn and _SAID not in turn:
                return spelling, parts[0].lstrip(), parts[1:-1], parts[-1].rstrip()
    return None


def _written(
    template: ChatTemplate, calls: int, added: Mapping[str, int], switch: Mapping[str, bool]
) -> str | None:
    """A turn with calls, from where the reply begins to where it ends."""
    tools = as_functions([ToolSpec(name=_SHOWN, description="d", parameters={"type": "object"})])
    results = [
        {"role": "tool", "content": _SAID, "tool_call_id": f"{_ID}{number}", "name": _NAME}
        for number in range(calls)
    ]
    opening = template.apply([_ASKED], tools, is_open=True, switch=switch)
    rows = [_ASKED, _said(calls), *results, _ASKED]
    whole = template.apply(rows, tools, is_open=False, switch=switch)
    if _SHOWN not in opening or not whole.startswith(opening):
        return None
    ending = _turn_end(template, tools, opening, added, switch)
    if ending is None:
        return None
    turn = whole[len(opening) :].partition(ending)[0]
    if _SAID in turn:  # the results stand in the same turn, behind a token that asks for them
        whole = template.apply([_ASKED, _said(2)], tools, is_open=False, switch=switch)
        pending = whole[len(opening) :].rstrip()
        asks = next((token for token in _longest_first(added) if pending.endswith(token)), None)
        if asks is None or pending.count(asks) != 1:
            return None
        turn = turn.partition(asks)[0]
    return turn


def _said(calls: int) -> dict[str, Json]:
    """A turn with calls."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "id": f"{_ID}{number}",
                "function": {"name": _NAME, "arguments": _ARGUMENTS},
            }
            for number in range(calls)
        ],
    }


def _turn_end(
    template: ChatTemplate,
    tools: Sequence[Json],
    opening: str,
    added: Mapping[str, int],
    switch: Mapping[str, bool],
) -> str | None:
    """The token that ends a turn."""
    said = {"role": "assistant", "content": _SAID}
    whole = template.apply([_ASKED, said, _ASKED], tools, is_open=False, switch=switch)
    behind = whole[len(opening) :].partition(_SAID)[2].lstrip()
    return next((token for token in _longest_first(added) if behind.startswith(token)), None)


def _added(tokenizer: Tokenizer) -> list[tuple[int, Any]]:
    return list(tokenizer.added_tokens_decoder.items())


def _longest_first(added: Mapping[str, int]) -> list[str]:
    return sorted(added, key=len, reverse=True)


def _split(text: str, added: Mapping[str, int]) -> list[str]:
    """A text at its added tokens, which are parts of their own."""
    tokens = _longest_first(added)
    if not tokens:
        return [text] if text else []
    pattern = "(" + "|".join(map(re.escape, tokens)) + ")"
    return [part for part in cast("list[str]", re.split(pattern, text)) if part]


def _common_suffix(one: str, other: str) -> str:
    return _common_prefix(one[::-1], other[::-1])[::-1]


def _common_prefix(one: str, other: str) -> str:
    pairs = zip(one, other, strict=False)
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]
