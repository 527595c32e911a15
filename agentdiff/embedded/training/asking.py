"""Requests in words: a phrasing of a tool with values in it, or one put together for an invented tool."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentdiff.embedded.training import corpus, values
from agentdiff.embedded.training.corpus import Json, Parameter, Split, Tool
from agentdiff.embedded.training.replies import Digits

if TYPE_CHECKING:
    from random import Random


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
        if split == "train" and text.isdigit() and int(text) <= 100 and rng.random() < 0.06:
            shown = values.in_words(int(text))
        return shown, Digits(text)
    return text, text


def draw_arguments(rng: Random, tool: Tool, split: Split) -> dict[str, tuple[str, Json]]:
    """A value for every parameter: what stands in the request, and what stands in the call."""
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


_OTHER_UNIT = 0.2
"""Share of the requests with a number of minutes that give it as hours, seconds or in words."""
_MINUTES = re.compile(r"\{(\w+)\}[ -](?:minutes|minute|mins|min)\b")


def _in_other_units(rng: Random, tool: Tool, text: str, drawn: dict[str, tuple[str, Json]]) -> str:
    """The phrasing with a time span where it says `{minutes} minutes`; its value in minutes is put into `drawn`."""
    spot = _MINUTES.search(text)
    kinds = {p.name: p.kind for p in tool.parameters}
    if spot is None or kinds.get(spot[1]) != "minutes":
        return text
    shown, minutes = values.time_span(rng, is_whole=_type_of(tool, spot[1]) == "integer")
    drawn[spot[1]] = (shown, Digits(f"{minutes:g}"))
    return text[: spot.start()] + "{" + spot[1] + "}" + text[spot.end() :]


def _type_of(tool: Tool, name: str) -> str:
    return next(p.type for p in tool.parameters if p.name == name)


def ask(rng: Random, tool: Tool, split: Split) -> tuple[str, dict[str, Json]]:
    """A request for `tool` in words, and the arguments that it gives."""
    drawn = draw_arguments(rng, tool, split)
    if not tool.phrases:
        return ask_invented(rng, tool, drawn)
    phrase = rng.choice(corpus.phrases(tool, split))
    text = _typo(rng, phrase.text) if split == "train" and rng.random() < 0.04 else phrase.text
    if split == "train" and rng.random() < _OTHER_UNIT:
        text = _in_other_units(rng, tool, text, drawn)
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


def ask_invented(
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
