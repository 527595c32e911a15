"""Training examples: a conversation, the tools on offer, and the one reply that is right.

A reply is one action: call a tool, answer from the results, or say that no tool fits. Everything is drawn from a seeded
generator, so an example is a function of the seed alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, cast

from agentdiff.embedded.training import corpus, values
from agentdiff.embedded.training.asking import ask, ask_invented, draw_arguments
from agentdiff.embedded.training.corpus import Json, Split, Tool
from agentdiff.embedded.training.inventing import disguise, invent_tool
from agentdiff.embedded.training.refusing import refused_request
from agentdiff.embedded.training.replies import (
    REFUSAL,
    Call,
    Digits,
    Example,
    answer_reply,
    result_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    Related = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class _Draft:
    """A request under construction: its text and the calls that it asks for."""

    text: str
    calls: list[Call] = field(default_factory=list)


_ERRORS = ("not found:", "no such", "permission denied for", "time out of", "invalid")


def run(rng: Random, tool: Tool, arguments: dict[str, Json], split: Split) -> Call:
    """The call with a result as the tool could give."""
    if rng.random() < 0.04:
        return Call(
            tool,
            arguments,
            f"error: {rng.choice(_ERRORS)} {values.word(rng)}",
        )
    return Call(tool, arguments, _fill(rng, rng.choice(tool.results), arguments, split))


def _fill(rng: Random, template: Json, arguments: dict[str, Json], split: Split) -> Json:
    if isinstance(template, dict):
        pairs = cast("dict[str, Json]", template).items()
        return {key: _fill(rng, value, arguments, split) for key, value in pairs}
    if isinstance(template, list):
        return [_fill(rng, value, arguments, split) for value in cast("list[Json]", template)]
    if not isinstance(template, str):
        return template
    template = re.sub(
        r" (at|on|for|in) \{(\w+)\}", lambda m: m[0] if m[2] in arguments else "", template
    )

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name == "#words":
            return values.words(rng, 1, 4)
        if name.startswith("#"):
            return values.draw(rng, name[1:], split)
        return str(arguments.get(name, "today"))

    filled = re.sub(r"\{(#?\w+)\}", replace, template)
    if re.fullmatch(r"\{#(int|small_int|decimal|percent|year|minutes)\}", template):
        return Digits(filled)
    return filled


# --- examples ---------------------------------------------------------------------------------------------------------


@cache
def _shipped() -> dict[str, Tool]:
    return {tool.name: tool for tool in corpus.shipped()}


def _pool(
    rng: Random, source: str, split: Split, related: Related | None
) -> tuple[list[Tool], list[Tool]]:
    """(tools on offer, those of them that may be asked for)."""
    if source == "shipped":
        tools = list(corpus.shipped())
        if rng.random() < 0.35:
            tools = rng.sample(tools, rng.randint(2, 9))
        return tools, tools
    size = rng.choice([2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 8])
    if source == "catalog":
        catalog = corpus.catalog()
        at = rng.randrange(len(catalog))
        near = [catalog[i % len(catalog)] for i in range(at - 6, at + 7)]
        tools = (
            rng.sample(near, min(size, len(near)))
            if rng.random() < 0.55
            else rng.sample(catalog, size)
        )
        tools = [disguise(rng, tool) if rng.random() < 0.5 else tool for tool in tools]
        if rng.random() < 0.15:
            tools = tools[: max(2, size // 2)] + rng.sample(corpus.shipped(), rng.randint(1, 3))
    elif source == "unseen":
        everything = corpus.unseen()
        domain = rng.choice(sorted({tool.domain for tool in everything}))
        same = [tool for tool in everything if tool.domain == domain]
        tools = rng.sample(same, min(len(same), size))
    else:
        tools = [invent_tool(rng, related=related) for _ in range(size)]
        if rng.random() < 0.5:
            tools.append(invent_tool(rng, like=rng.choice(tools), related=related))
        if rng.random() < 0.1:
            tools.append(rng.choice(corpus.catalog()))
    unique = {tool.name: tool for tool in tools}
    tools = list(unique.values())
    rng.shuffle(tools)
    return tools, tools


def _dress(rng: Random, text: str) -> str:
    """Manners around a request; sometimes a capital letter."""
    joins = corpus.joins()
    if rng.random() < 0.22:
        text = rng.choice(joins["polite_before"]) + text
    if rng.random() < 0.22:
        text = text.rstrip("?.! ") + rng.choice(joins["after"])
    if rng.random() < 0.3:
        text = text[:1].upper() + text[1:]
    return text


def _as_written(request: str, tool: Tool, arguments: dict[str, Json]) -> dict[str, Json]:
    """The arguments as they stand in the request: a value that opens it may have become capitalised."""
    free = {p.name for p in tool.parameters if p.type == "string"}
    written = dict(arguments)
    for name, value in arguments.items():
        if name in free and isinstance(value, str) and value not in request:
            capitalised = value[:1].upper() + value[1:]
            if request.startswith(capitalised):
                written[name] = capitalised
    return written


def _reuse(rng: Random, first: Call, tool: Tool) -> tuple[str, Json] | None:
    """(parameter, value) by which `tool` can take up the result of `first`."""
    result = first.result
    parameters = [
        p for p in tool.parameters if p.type in ("string", "integer", "number") and p.kind != "unit"
    ]
    rng.shuffle(parameters)
    for parameter in parameters:
        numeric = parameter.type != "string"
        if isinstance(result, dict):
            fields = cast("dict[str, Json]", result)
            named = [v for k, v in fields.items() if k == parameter.name] or list(fields.values())
            fitting = [
                v for v in named if isinstance(v, str) and (not numeric or isinstance(v, Digits))
            ]
            if fitting:
                return parameter.name, fitting[0] if numeric else str(fitting[0])
        elif isinstance(result, str):
            numbers = re.findall(r"\d+(?:\.\d+)?", result)
            if numeric and numbers:
                value = numbers[-1] if "=" in result else numbers[0]
                if parameter.type == "integer":
                    value = value.split(".")[0]
                return parameter.name, Digits(value.lstrip("0") or "0") if not value.startswith(
                    "0."
                ) else Digits(value)
            if not numeric and "\n" not in result and not result.startswith("error"):
                return parameter.name, str(result)
    return None


def _second(rng: Random, first: Call, tool: Tool, split: Split) -> tuple[str, dict[str, Json]]:
    """A follow-up request for `tool`, often using the first result."""
    taken = _reuse(rng, first, tool) if rng.random() < 0.55 else None
    if taken is None:
        return ask(rng, tool, split)
    name, value = taken
    stand_in = rng.choice(corpus.joins()["with_result"])
    drawn = draw_arguments(rng, tool, split)
    drawn[name] = (stand_in, value)
    if not tool.phrases:
        text, arguments = ask_invented(rng, tool, drawn)
        return (text, arguments) if name in arguments else ask(rng, tool, split)
    usable = [p for p in corpus.phrases(tool, split) if "{" + name + "}" in p.text]
    if not usable:
        return ask(rng, tool, split)
    phrase = rng.choice(usable)
    text, arguments = phrase.text, dict(phrase.constants)
    for parameter, (shown, given) in drawn.items():
        if "{" + parameter + "}" in text:
            text = text.replace("{" + parameter + "}", shown)
            arguments[parameter] = given
    return text, arguments


def _written_chain(rng: Random, split: Split) -> _Draft:
    """A hand-written two-step request over the shipped tools."""
    row = rng.choice(corpus.chains())
    first_tool, second_tool = (_shipped()[step["tool"]] for step in row["steps"])
    text: str = row["text"]
    calls: list[Call] = []
    for number, (step, tool) in enumerate(
        zip(row["steps"], (first_tool, second_tool), strict=True)
    ):
        arguments: dict[str, Json] = {}
        for name, (shown, value) in draw_arguments(rng, tool, split).items():
            placeholder = f"{{{number}.{name}}}"
            if placeholder in text:
                text = text.replace(placeholder, shown)
                arguments[name] = value
        for name, value in step.get("args", {}).items():
            arguments[name] = (
                _taken(rng, calls[0], value)
                if isinstance(value, str) and value.startswith("$")
                else value
            )
            if isinstance(arguments[name], int | float) and not isinstance(arguments[name], bool):
                arguments[name] = Digits(f"{arguments[name]:g}")
        calls.append(run(rng, tool, arguments, split))
        if number == 0 and tool.name == "search_files":
            files = ", ".join(values.draw(rng, "filename", split) for _ in range(rng.randint(1, 3)))
            calls[0] = Call(
                tool,
                arguments,
                f"{files.count(',') + 1} file{'s' if ',' in files else ''}: {files}",
            )
    return _Draft(text, calls)


def _taken(rng: Random, first: Call, reference: str) -> Json:
    result = result_text(first.result)
    if reference == "$file":
        listed = result.split(": ", 1)[-1]
        return listed.split(", ")[0]
    if reference == "$value":
        numbers = re.findall(r"\d+(?:\.\d+)?", result.split("=", 1)[-1])
        return Digits(numbers[0]) if numbers else Digits(str(rng.randint(1, 99)))
    return result


def sample(
    rng: Random,
    *,
    split: Split = "train",
    source: str | None = None,
    kind: str | None = None,
    few: float = 0.0,
    related: Related | None = None,
) -> Example:
    """One example.

    Args:
        rng: The only source of chance.
        split: Which phrases and values to draw from.
        source: shipped, catalog, invented or unseen; by default a mixture of the first three.
        kind: call, none, or chain (two calls, stopped at any point); by default a mixture.
        few: Share of examples with two to five tools only: short prompts, cheap to learn on.
        related: Words of near meaning, for requests that call an invented tool's thing by another name.
    """
    source = source or rng.choices(["shipped", "catalog", "invented"], [0.27, 0.5, 0.23])[0]
    kind = kind or rng.choices(["call", "none", "chain"], [0.53, 0.21, 0.26])[0]
    tools, askable = _pool(rng, source, split, related)
    if few and rng.random() < few and len(tools) > 2:
        tools = askable = rng.sample(tools, min(len(tools), rng.randint(2, 5)))
    if kind == "none":
        for _ in range(20):
            text = refused_request(rng, source, tools, split, related)
            if text is not None:
                return Example("none", tuple(tools), _dress(rng, text), REFUSAL)
            tools, askable = _pool(rng, source, split, related)
        kind = "call"
    if kind == "chain":
        return _chain_example(rng, source, tools, askable, split)
    tool = rng.choice(askable)
    text, arguments = ask(rng, tool, split)
    text = _dress(rng, text)
    arguments = _as_written(text, tool, arguments)
    call = Call(tool, arguments)
    if rng.random() < 0.82 or split == "held":
        return Example("call", tuple(tools), text, call.reply, expected=call)
    done = run(rng, tool, arguments, split)
    return Example("answer", tuple(tools), text, answer_reply([done]), (done,))


def _chain_example(
    rng: Random, source: str, tools: list[Tool], askable: list[Tool], split: Split
) -> Example:
    if source == "shipped" and rng.random() < 0.45:
        draft = _written_chain(rng, split)
        offered = {tool.name: tool for tool in tools} | {
            call.tool.name: call.tool for call in draft.calls
        }
        tools = [tool for tool in corpus.shipped() if tool.name in offered]
    else:
        first_tool, second_tool = rng.choice(askable), rng.choice(askable)
        text, arguments = ask(rng, first_tool, split)
        first = run(rng, first_tool, arguments, split)
        second_text, second_arguments = _second(rng, first, second_tool, split)
        text = text.rstrip("?.! ") + rng.choice(corpus.joins()["then"]) + second_text
        draft = _Draft(text, [first, run(rng, second_tool, second_arguments, split)])
    request = _dress(rng, draft.text)
    first = draft.calls[0]
    draft.calls[0] = Call(
        first.tool, _as_written(request, first.tool, first.arguments), first.result
    )
    place = rng.choices([0, 1, 2], [0.3, 0.45, 0.25])[0]
    if place == 2:
        return Example(
            "answer", tuple(tools), request, answer_reply(draft.calls), tuple(draft.calls)
        )
    expected = draft.calls[place]
    return Example(
        f"chain{place + 1}",
        tuple(tools),
        request,
        expected.reply,
        tuple(draft.calls[:place]),
        expected,
    )
