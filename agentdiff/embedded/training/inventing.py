"""Tools that exist nowhere, and known tools under another signature."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from agentdiff.embedded.training import corpus, values
from agentdiff.embedded.training.corpus import Json, Parameter, Phrase, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

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


def invent_tool(
    rng: Random, *, like: Tool | None = None, related: Mapping[str, Sequence[str]] | None = None
) -> Tool:
    """A tool that exists nowhere; with `like`, one that shares its verb or its noun (a hard negative).

    With `related`, its noun is often one of those words, and requests call it by another one that means something near.
    """
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
    said = list(noun)
    if related and noun and rng.random() < 0.6:
        noun[-1] = rng.choice(list(related)) if like is None else noun[-1]
        said = [rng.choice(related.get(word, (word,))) for word in noun]
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
    return Tool(name, description, tuple(parameters), (), results, domain="_".join([verb, *said]))


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
