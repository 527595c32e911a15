"""Training examples: a conversation, the tools on offer, and the one reply that is right.

A reply is one action: call a tool, answer from the results, or say that no tool fits. Everything is drawn from a seeded
generator, so an example is a function of the seed alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, cast

from agentdiff.embedded.training import corpus, values
from agentdiff.embedded.training.corpus import Json, Parameter, Phrase, Split, Tool

if TYPE_CHECKING:
    from random import Random

REFUSAL = '{"none":true}'
MAX_ANSWER_CHARS = 160


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


@dataclass(slots=True)
class _Draft:
    """A request under construction: its text and the calls that it asks for."""

    text: str
    calls: list[Call] = field(default_factory=list)


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


def spoken(result: Json) -> str:
    """A result as an answer says it: the first line of a text, `key: value` pairs, comma-separated items."""
    if isinstance(result, dict):
        pairs = cast("dict[str, Json]", result).items()
        text = ", ".join(f"{key}: {spoken(value)}" for key, value in pairs)
    elif isinstance(result, list):
        text = ", ".join(spoken(item) for item in cast("list[Json]", result))
    else:
        text = result_text(result)
    text = text.split("\n", 1)[0]
    if len(text) > MAX_ANSWER_CHARS:
        text = text[:MAX_ANSWER_CHARS].rsplit(" ", 1)[0]
    return text


def answer_reply(calls: list[Call]) -> str:
    """The action that answers with the results of all calls."""
    text = "; ".join(spoken(call.result) for call in calls)
    return f'{{"answer":{json.dumps(text, ensure_ascii=False)}}}'


# --- values and requests ----------------------------------------------------------------------------------------------


def _argument(rng: Random, parameter: Parameter, split: Split) -> tuple[str, Json]:
    """(what stands in the request, what stands in the call)."""
    if parameter.type == "enum":
        choice = rng.choice(parameter.choices)
        return choice.replace("_", " ") if rng.random() < 0.5 else choice, choice
    if parameter.type == "boolean":
        choice = rng.random() < 0.5
        return str(choice).lower(), choice
    text = values.draw(rng, parameter.kind or "word", split)
    if parameter.type in ("integer", "number"):
        text = re.sub(r"[^0-9.]", "", text) or str(rng.randint(1, 99))
        if parameter.type == "integer":
            text = text.split(".")[0] or "1"
        text = text.lstrip("0") if text.lstrip("0")[:1].isdigit() else f"0{text.lstrip('0')}"
        shown = (
            f"{int(text):,}" if text.isdigit() and len(text) > 3 and rng.random() < 0.15 else text
        )
        return shown, Digits(text)
    return text, text


def _arguments(rng: Random, tool: Tool, split: Split) -> dict[str, tuple[str, Json]]:
    drawn = {p.name: _argument(rng, p, split) for p in tool.parameters}
    if {"from_unit", "to_unit"} <= drawn.keys():
        first, second = values.unit_pair(rng)
        drawn["from_unit"], drawn["to_unit"] = (first, first), (second, second)
    return drawn


def _typo(rng: Random, text: str) -> str:
    """One slip of the finger in a word of the phrasing (never inside a placeholder)."""
    spots = [
        m
        for m in re.finditer(r"[a-z]{4,}", text)
        if "{" not in text[max(0, m.start() - 1) : m.start()]
    ]
    spots = [m for m in spots if text[: m.start()].count("{") == text[: m.start()].count("}")]
    if not spots:
        return text
    spot = rng.choice(spots)
    at = rng.randrange(spot.start() + 1, spot.end() - 1)
    match rng.randrange(3):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + text[at] + text[at:]
        case _:
            return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def ask(rng: Random, tool: Tool, split: Split) -> tuple[str, dict[str, Json]]:
    """A request for `tool` in words, and the arguments that it gives."""
    drawn = _arguments(rng, tool, split)
    if not tool.phrases:
        return _ask_invented(rng, tool, drawn)
    phrase = rng.choice(corpus.phrases(tool, split))
    text = _typo(rng, phrase.text) if split == "train" and rng.random() < 0.04 else phrase.text
    arguments = dict(phrase.constants)
    for name, (shown, value) in drawn.items():
        placeholder = "{" + name + "}"
        if placeholder in text:
            text = text.replace(placeholder, shown)
            arguments[name] = value
    return text, arguments


_LEADS: dict[str, tuple[str, ...]] = {
    "person": ("for {}", "with {}", "of {}", "to {}", "from {}"),
    "city": ("in {}", "for {}", "at {}", "from {}", "to {}"),
    "place": ("at {}", "in {}", "near {}"),
    "date": ("on {}", "for {}", "by {}", "{}"),
    "time": ("at {}", "from {}", "by {}"),
    "email": ("to {}", "for {}", "from {}"),
    "query": ("about {}", "matching {}", "for {}", "containing {}"),
    "topic": ("about {}", "on {}", "regarding {}"),
    "title": ("called {}", "titled {}", "named {}"),
    "message": ("saying {}", "with the text {}", "that says {}", ": {}"),
    "filename": ("from {}", "in {}", "to {}", "in file {}"),
    "path": ("at {}", "in {}", "under {}"),
    "folder": ("in {}", "into {}", "from {}"),
    "language": ("in {}", "to {}", "into {}"),
    "unit": ("in {}",),
    "int": ("with {}", "of {}", "for {}"),
    "minutes": ("for {} minutes", "after {} minutes"),
    "id": ("with id {}", "number {}", "{}", "no {}"),
    "code": ("with code {}", "{}", "code {}"),
    "money": ("for {}", "of {}", "worth {}"),
    "percent": ("at {} percent", "of {}%"),
}
_BY_NAME = (
    "with {name} {}",
    "{name} {}",
    "{name}: {}",
    "{name}={}",
    "using {} as {name}",
    "set {name} to {}",
    "where {name} is {}",
    "{name} should be {}",
)
_SAY: dict[str, tuple[str, ...]] = {
    "get": ("get", "show", "give me", "fetch", "what is", "i need", "look up"),
    "list": ("list", "show all", "what are the", "which", "show me the"),
    "create": ("create", "make", "add", "set up", "new", "start"),
    "delete": ("delete", "remove", "get rid of", "erase", "drop"),
    "update": ("update", "change", "edit", "modify"),
    "search": ("search", "find", "look for", "look up"),
    "find": ("find", "search for", "locate", "where is"),
    "send": ("send", "forward", "deliver"),
    "start": ("start", "launch", "begin", "run", "kick off"),
    "stop": ("stop", "end", "halt", "shut down"),
    "check": ("check", "look at", "how is", "is there a"),
    "book": ("book", "reserve", "get me"),
    "cancel": ("cancel", "call off", "drop"),
}


def _ask_invented(
    rng: Random, tool: Tool, drawn: dict[str, tuple[str, Json]]
) -> tuple[str, dict[str, Json]]:
    """A request for an invented tool: the verb and noun of its name, and a clause for each argument."""
    verb, *noun_words = re.split(r"[_.]", tool.domain)
    noun = " ".join(noun_words)
    said = rng.choice(_SAY.get(verb, (verb,))) if rng.random() < 0.6 else verb
    chosen = [p for p in tool.parameters if p.required or rng.random() < 0.6]
    rng.shuffle(chosen)
    article = rng.choice(["the ", "", "a ", "my ", "that "])
    plural = "s" if rng.random() < 0.12 and not noun.endswith("s") else ""
    head = f"{said} {article}{noun}{plural}"
    clauses: list[str] = []
    used: set[str] = set()
    arguments: dict[str, Json] = {}
    for place, parameter in enumerate(chosen):
        shown, value = drawn[parameter.name]
        name = parameter.name.replace("_", " ")
        arguments[parameter.name] = value
        if parameter.type == "boolean":
            clauses.append(
                rng.choice(
                    [
                        f"{name} {shown}",
                        f"with {name} {'on' if value else 'off'}",
                        f"with {name}" if value else f"without {name}",
                    ]
                )
            )
            continue
        if parameter.type == "string" and rng.random() < 0.12:
            quote = rng.choice(["'{}'", '"{}"', "“{}”"])
            shown = quote.format(shown)
        leads = [
            lead
            for lead in _LEADS.get(parameter.kind, ("for {}", "of {}", "with {}"))
            if lead not in used
        ]
        if place == 0 and rng.random() < 0.15:
            head = f"{said} {noun} {shown}"
            continue
        if leads and rng.random() < 0.6:
            lead = rng.choice(leads)
            used.add(lead)
            clauses.append(lead.format(shown))
        else:
            clauses.append(rng.choice(_BY_NAME).replace("{name}", name).format(shown))
    joiner = rng.choice([" ", " ", " ", ", ", " and "])
    if clauses and rng.random() < 0.08:
        return f"{clauses[0].lstrip(': ')}{joiner if joiner != ' and ' else ', '}{head}" + "".join(
            joiner + c for c in clauses[1:]
        ), arguments
    text = head + "".join(
        (" " if c.startswith(":") or n == 0 else joiner) + c for n, c in enumerate(clauses)
    )
    return text.replace(" : ", ": "), arguments


_KINDS = (
    "person city place company product item topic title message query date time email id "
    "code filename path folder language int decimal money percent minutes word tag color "
    "url username animal food"
).split()
_NAMES: dict[str, tuple[str, ...]] = {
    "person": ("person", "name", "user", "assignee", "owner", "contact", "recipient"),
    "city": ("city", "location", "destination", "place", "region"),
    "place": ("place", "venue", "location", "site"),
    "company": ("company", "vendor", "client", "brand"),
    "product": ("product", "model", "sku_name"),
    "item": ("item", "thing", "object"),
    "topic": ("topic", "subject", "theme", "category"),
    "title": ("title", "label", "headline", "name"),
    "message": ("message", "text", "body", "content", "comment", "note"),
    "query": ("query", "keyword", "search", "term", "pattern"),
    "date": ("date", "day", "due", "when", "start_date"),
    "time": ("time", "at", "hour"),
    "email": ("email", "to", "address", "recipient"),
    "id": ("id", "ref", "number", "ticket", "order_id", "code"),
    "code": ("code", "key", "serial"),
    "filename": ("file", "filename", "path", "source"),
    "path": ("path", "target"),
    "folder": ("folder", "directory", "dir"),
    "language": ("language", "lang"),
    "int": ("count", "limit", "quantity", "amount", "size", "n"),
    "decimal": ("value", "amount", "weight", "level"),
    "money": ("price", "amount", "budget", "cost"),
    "percent": ("percent", "discount", "rate"),
    "minutes": ("minutes", "duration"),
    "word": ("word", "tag", "type", "name"),
}


def invent_tool(rng: Random, *, like: Tool | None = None) -> Tool:
    """A tool that exists nowhere; with `like`, one that shares its verb or its noun (a hard negative)."""
    table = corpus.names()
    verb = rng.choice(table["verbs"])
    noun = [values.pseudo_word(rng) if rng.random() < 0.15 else rng.choice(table["nouns"])]
    if rng.random() < 0.25:
        noun.insert(0, rng.choice(table["adjectives"] if rng.random() < 0.4 else table["nouns"]))
    if like is not None:
        old_verb, *old_noun = re.split(r"[_.]", like.domain)
        if rng.random() < 0.5:
            verb = old_verb
        else:
            noun = old_noun
    parts = [verb, *noun]
    style = rng.random()
    name = "_".join(parts)
    if style < 0.08:
        name = parts[0] + "".join(part.capitalize() for part in parts[1:])
    elif style < 0.14:
        name = f"{'_'.join(noun)}.{verb}"
    elif style < 0.2:
        name = f"{'_'.join(noun)}_{verb}"
    parameters: list[Parameter] = []
    taken: set[str] = set()
    for kind in rng.sample(_KINDS, rng.choice([0, 1, 1, 1, 2, 2, 2, 3, 3])):
        parameter_name = rng.choice(_NAMES.get(kind, (kind,)))
        if parameter_name in taken:
            continue
        taken.add(parameter_name)
        numeric = kind in ("int", "decimal", "money", "percent", "minutes")
        parameters.append(
            Parameter(
                parameter_name,
                ("integer" if kind in ("int", "minutes") else "number") if numeric else "string",
                kind,
                rng.random() < 0.8,
            )
        )
    if rng.random() < 0.12:
        parameters.append(
            Parameter(
                rng.choice(["mode", "level", "kind", "format", "status", "size"]),
                "enum",
                "",
                rng.random() < 0.6,
                tuple(rng.choice(_CHOICES)),
            )
        )
    if rng.random() < 0.04:
        parameters.append(
            Parameter(rng.choice(["force", "urgent", "public", "recursive"]), "boolean", "", False)
        )
    noun_text = " ".join(noun)
    description = rng.choice(
        [
            f"{verb.capitalize()} the {noun_text}",
            f"{verb.capitalize()} a {noun_text}",
            f"{verb.capitalize()} {noun_text}",
            f"{verb.capitalize()}s {noun_text}s",
            f"Use it to {verb} a {noun_text}",
            f"{noun_text.capitalize()}: {verb}",
            "",
        ]
    )
    results = rng.choice(
        [
            ("{#int}",),
            ("{#words}",),
            ("ok",),
            ({"status": "{#word}", "id": "{#id}"},),
            ({"value": "{#decimal}"},),
            ("{#title}",),
            (f"{noun_text} {verb} done",),
            (["{#word}", "{#word}"],),
            ("{#id}",),
            ("{#filename}",),
        ]
    )
    return Tool(name, description, tuple(parameters), (), results, domain="_".join(parts))


_VERBS: dict[str, tuple[str, ...]] = {
    "get": ("fetch", "show", "read", "lookup"),
    "list": ("show", "all", "get"),
    "create": ("add", "make", "new"),
    "add": ("create", "new", "put"),
    "delete": ("remove", "drop"),
    "remove": ("delete", "drop"),
    "update": ("change", "edit", "set"),
    "set": ("change", "update"),
    "search": ("find", "lookup", "query"),
    "find": ("search", "locate", "lookup"),
    "send": ("post", "deliver"),
    "book": ("reserve",),
    "check": ("get", "inspect"),
    "start": ("begin", "launch", "run"),
    "stop": ("end", "halt"),
}


def disguise(rng: Random, tool: Tool) -> Tool:
    """The same tool under another signature, so that signatures must be read and cannot be known by heart.

    Its name may change style and verb, its parameters their names and order, and its description may be missing. The
    phrasings stay.
    """
    words = [w.lower() for w in re.findall(r"[A-Z]?[a-z0-9]+", tool.name)]
    if rng.random() < 0.35:
        words = [
            rng.choice(_VERBS.get(word, (word,))) if n == 0 else word
            for n, word in enumerate(words)
        ]
    style = rng.random()
    if style < 0.7:
        name = "_".join(words)
    elif style < 0.82:
        name = words[0] + "".join(word.capitalize() for word in words[1:])
    elif style < 0.9:
        name = "-".join(words)
    else:
        name = "_".join([*words[1:], words[0]])
    renamed = {p.name: p.name for p in tool.parameters}
    for parameter in tool.parameters:
        other = rng.choice(_NAMES.get(parameter.kind, (parameter.name,)))
        if rng.random() < 0.35 and other not in renamed.values():
            renamed[parameter.name] = other

    def rewritten(template: Json) -> Json:
        if isinstance(template, dict):
            pairs = cast("dict[str, Json]", template).items()
            return {key: rewritten(value) for key, value in pairs}
        if isinstance(template, list):
            return [rewritten(value) for value in cast("list[Json]", template)]
        if not isinstance(template, str):
            return template
        return re.sub(r"\{(\w+)\}", lambda m: "{" + renamed.get(m[1], m[1]) + "}", template)

    parameters = [replace(p, name=renamed[p.name]) for p in tool.parameters]
    if rng.random() < 0.3:
        rng.shuffle(parameters)
    return replace(
        tool,
        name=name,
        description="" if rng.random() < 0.12 else tool.description,
        parameters=tuple(parameters),
        phrases=tuple(
            Phrase(rewritten(p.text), tuple((renamed[name], value) for name, value in p.constants))
            for p in tool.phrases
        ),
        results=tuple(rewritten(result) for result in tool.results),
    )


_CHOICES = (
    ("low", "medium", "high"),
    ("small", "medium", "large"),
    ("json", "csv", "pdf"),
    ("open", "closed"),
    ("on", "off"),
    ("fast", "slow"),
    ("red", "green", "blue"),
    ("daily", "weekly", "monthly"),
    ("public", "private"),
    ("asc", "desc"),
    ("draft", "final"),
    ("left", "right"),
    ("hot", "cold", "warm"),
    ("basic", "pro", "premium"),
)


# --- results ----------------------------------------------------------------------------------------------------------


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


def _pool(rng: Random, source: str, split: Split) -> tuple[list[Tool], list[Tool]]:
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
        tools = [invent_tool(rng) for _ in range(size)]
        if rng.random() < 0.5:
            tools.append(invent_tool(rng, like=rng.choice(tools)))
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
    drawn = _arguments(rng, tool, split)
    drawn[name] = (stand_in, value)
    if not tool.phrases:
        text, arguments = _ask_invented(rng, tool, drawn)
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
        for name, (shown, value) in _arguments(rng, tool, split).items():
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


def _refusal(rng: Random, source: str, tools: list[Tool], split: Split) -> str | None:
    """A request that none of `tools` can serve, or None when that is not certain."""
    offered = " ".join(f"{tool.name} {tool.description}" for tool in tools).lower()
    pick = rng.random()
    if source in ("shipped", "invented") and pick < (0.7 if source == "shipped" else 0.35):
        text, needs = rng.choice(corpus.refusals(split))
        open_ended = (
            any(w in offered for w in ("search", "ask", "web", "news", "define", "find", "look"))
            and source != "shipped"
        )
        if open_ended or any(need in offered for need in needs if need != "none"):
            return None
        return text
    names = {tool.name for tool in tools}
    nouns = {
        part
        for tool in tools
        for part in re.findall(
            r"[a-z]{3,}", f"{tool.name} {tool.description} {tool.domain}".lower()
        )
    }
    other = (
        rng.choice(corpus.catalog())
        if rng.random() < 0.55
        else invent_tool(
            rng, like=rng.choice(tools) if source == "invented" and rng.random() < 0.4 else None
        )
    )
    if split == "held" and source == "unseen":
        other = rng.choice(corpus.unseen())
    own = set(re.findall(r"[a-z]{3,}", f"{other.name} {other.domain}".lower()))
    verbs = set(corpus.names()["verbs"])
    if other.name in names or (own - verbs) & nouns:
        return None
    return ask(rng, other, "train" if not other.phrases else split)[0]


def sample(
    rng: Random,
    *,
    split: Split = "train",
    source: str | None = None,
    kind: str | None = None,
    few: float = 0.0,
) -> Example:
    """One example.

    Args:
        rng: The only source of chance.
        split: Which phrases and values to draw from.
        source: shipped, catalog, invented or unseen; by default a mixture of the first three.
        kind: call, none, or chain (two calls, stopped at any point); by default a mixture.
        few: Share of examples with two to five tools only: short prompts, cheap to learn on.
    """
    source = source or rng.choices(["shipped", "catalog", "invented"], [0.4, 0.32, 0.28])[0]
    kind = kind or rng.choices(["call", "none", "chain"], [0.55, 0.17, 0.28])[0]
    tools, askable = _pool(rng, source, split)
    if few and rng.random() < few and len(tools) > 2:
        tools = askable = rng.sample(tools, min(len(tools), rng.randint(2, 5)))
    if kind == "none":
        for _ in range(20):
            text = _refusal(rng, source, tools, split)
            if text is not None:
                return Example("none", tuple(tools), _dress(rng, text), REFUSAL)
            tools, askable = _pool(rng, source, split)
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
