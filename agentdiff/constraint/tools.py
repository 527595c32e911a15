"""Tool calls, parallel ones too, beside free text or beside an answer under a schema.

A response schema never hides the tools, nor do the tools hide the answer: both are ways of one
grammar, and the model decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentdiff.constraint.automaton import END, Node, Rule, call, choice, literal
from agentdiff.constraint.matcher import Grammar
from agentdiff.constraint.notation import BareNotation, Style
from agentdiff.constraint.schema import KeyOrder, compile_to_nodes
from agentdiff.constraint.texts import free_text, text_until, text_without
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import ConfigurationError, SchemaError

Piece = str | int
"""Text, or the id of a special token, which stands for itself alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax:
    """How a model family writes tool calls. The default is that of Hermes and Qwen.

    The first piece of all is the trigger: free text does not hold it.
    """

    begin: tuple[Piece, ...] = ()
    """Before the first call."""
    before_name: tuple[Piece, ...] = ("<tool_call>", '\n{"name": "')
    before_arguments: tuple[Piece, ...] = ('", "arguments": ',)
    after_arguments: tuple[Piece, ...] = ("}\n", "</tool_call>")
    between: tuple[Piece, ...] = ("\n",)
    """Between two calls."""
    end: tuple[Piece, ...] = ()
    """After the last call."""
    quote: int | None = None
    r"""The special token around strings of the arguments, where they are written as Gemma does
    (`{city:<|"|>Oslo<|"|>,days:3}`): without escapes, with bare keys in alphabetical order. None for
    arguments in JSON."""

    def __post_init__(self) -> None:
        pieces = (*self.begin, *self.before_name, *self.before_arguments, *self.after_arguments)
        if "" in (*pieces, *self.between, *self.end):
            raise ConfigurationError("a piece of a tool syntax must not be empty")
        if not self.begin and not self.before_name:
            raise ConfigurationError("a tool syntax needs a piece in `begin` or `before_name`")


def compile_tool_calls(
    tools: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    syntax: ToolSyntax | None = None,
    free_text: bool = False,
    response_schema: Any = None,
    parallel: bool = True,
    style: Style = "spaced",
    open_objects: bool = False,
    key_order: KeyOrder = "schema",
    grounding: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> Grammar:
    """Compile what a model with tools may write.

    Without `free_text` and `response_schema` it calls a tool for sure.

    Args:
        tools: Name → JSON Schema of the arguments.
        vocabulary: The model's vocabulary.
        syntax: How calls are written; None for the default of `ToolSyntax`.
        free_text: Whether it may write text, too: instead of calls, or before them.
        response_schema: JSON Schema of an answer that may stand instead of calls.
        parallel: Whether several calls may follow one another.
        style: See `compile_schema`; for what is JSON of the arguments and the answer.
        open_objects: See `compile_schema`.
        key_order: See `compile_schema`.
        grounding: Tool → what binds its arguments, see `compile_schema`.

    Raises:
        SchemaError: A schema cannot be enforced; a note names the tool.
        ConfigurationError: There are no tools, free text and a response schema are both asked for,
            a tool in `grounding` is not known, or a special token is not one.
    """
    if not tools:
        raise ConfigurationError("`tools` must name at least one tool")
    if free_text and response_schema is not None:
        raise ConfigurationError("`free_text` and `response_schema` exclude each other; choose one")
    grounding = grounding or {}
    unknown = next((name for name in grounding if name not in tools), None)
    if unknown is not None:
        raise ConfigurationError(f"`grounding` speaks of {unknown!r}, which is not among the tools")
    syntax = syntax or ToolSyntax()
    bare = None if syntax.quote is None else BareNotation(vocabulary.special(syntax.quote))
    rules: dict[bytes, Rule] = {}
    for name, schema in tools.items():
        try:
            written = json.dumps(name, ensure_ascii=False)[1:-1].encode()
            if bare is not None:
                written = bare.spell_key(name, path="")
            start = compile_to_nodes(
                schema,
                style=bare or style,
                open_objects=open_objects,
                key_order=key_order,
                grounding=grounding.get(name),
            )
        except SchemaError as error:
            error.add_note(f"in the arguments of the tool {name!r}")
            raise
        rules[written] = Rule(start.near)
        rules[written].start = start
    writer = _Calls(rules, syntax, vocabulary, parallel=parallel)
    if free_text:
        return Grammar(writer.beside_text(), vocabulary)
    if response_schema is None:
        return Grammar(writer.start(), vocabulary)
    answer = compile_to_nodes(
        response_schema, style=style, open_objects=open_objects, key_order=key_order
    )
    return Grammar(choice([answer, writer.start()]), vocabulary)


class _Calls:
    """One or more calls, then the end of the text."""

    def __init__(
        self,
        rules: Mapping[bytes, Rule],
        syntax: ToolSyntax,
        vocabulary: Vocabulary,
        *,
        parallel: bool,
    ) -> None:
        self._syntax, self._vocabulary = syntax, vocabulary
        end = self._spelled(syntax.end, END)
        behind = end
        if parallel:
            behind = Node(end.near, lambda node: node.skips.extend([end, further]))
        name_and_rest = choice(
            [
                literal(
                    name,
                    self._spelled(
                        syntax.before_arguments,
                        call(rule, self._spelled(syntax.after_arguments, behind)),
                    ),
                )
                for name, rule in rules.items()
            ]
        )
        further = self._spelled((*syntax.between, *syntax.before_name), name_and_rest)
        self._name_and_rest = name_and_rest

    def start(self) -> Node:
        """The node before the first call."""
        syntax = self._syntax
        return self._spelled((*syntax.begin, *syntax.before_name), self._name_and_rest)

    def beside_text(self) -> Node:
        """The node before free text, calls, or text and then calls."""
        syntax = self._syntax
        trigger, *rest = (*syntax.begin, *syntax.before_name)
        behind = self._spelled(rest, self._name_and_rest)
        if isinstance(trigger, int):
            return free_text(choice([END, self._spelled([trigger], behind)]))
        return choice([text_without(trigger, END), text_until(trigger, behind)])

    def _spelled(self, pieces: Sequence[Piece], after: Node) -> Node:
        for piece in reversed(pieces):
            if isinstance(piece, str):
                after = literal(piece.encode(), after)
            else:
                after = literal(self._vocabulary.special(piece), after)
        return after
