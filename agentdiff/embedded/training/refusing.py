"""Requests that none of the tools on offer can serve: written ones, a neighbour's, another deed on the same thing."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from agentdiff.embedded.training import corpus, values
from agentdiff.embedded.training.asking import ask
from agentdiff.embedded.training.corpus import Phrase, Split, Tool
from agentdiff.embedded.training.inventing import invent_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    Related = Mapping[str, Sequence[str]]


def refused_request(
    rng: Random, source: str, tools: list[Tool], split: Split, related: Related | None
) -> str | None:
    """A request that none of `tools` can serve, or None when that is not certain."""
    if source != "unseen" and rng.random() < _OTHER_DEED:
        return _other_deed(rng, tools, split)
    if source != "unseen" and rng.random() < _GENERAL[source]:
        return _general_refusal(rng, source, tools, split)
    if split == "held" and source == "unseen":
        other = rng.choice(corpus.unseen())
    elif source == "shipped" or rng.random() < 0.7:
        other = _neighbour(rng, tools) if source == "catalog" else rng.choice(corpus.catalog())
    else:
        like = rng.choice(tools) if source == "invented" and rng.random() < 0.4 else None
        other = invent_tool(rng, like=like, related=related)
    if any(_may_serve(tool, other) for tool in tools):
        return None
    return ask(rng, other, "train" if not other.phrases else split)[0]


_OTHER_DEED = 0.3
"""Share of refusals that ask for another deed on the thing of a tool on offer."""
_DEEDS = {
    "delete|remove|erase|get rid of|drop|discard|throw away|wipe": "clear cut take forget clean",
    "cancel|call off": "stop end abort quit close remove delete",
    "rename|edit|correct|rewrite": "change update set move fix modify adjust",
    "sell|give away|lend|donate": "offer trade transfer",
    "print|scan|photocopy": "copy show",
    "share|forward|publish|post": "send mail message tell put release",
    "hide|archive|lock": "close mute protect store",
    "unlock|restore|reopen|undo": "open recover start revert rollback",
    "rate|review|criticise": "score grade comment check",
    "buy|order|pay for": "book reserve request purchase add get",
}
"""Verbs that mean about the same, and further ones whose tools might serve them."""
_WAYS = (
    "{deed} the {thing} {value}",
    "{deed} my {thing} {value}",
    "{deed} {value} from my {thing}s",
    "{deed} the {thing} about {value}",
    "{deed} the {thing} called {value}",
    "{deed} {value}, that {thing} of mine",
    "{deed} all my {thing}s",
    "{deed} the last {thing}",
)


def _other_deed(rng: Random, tools: Sequence[Tool], split: Split) -> str | None:
    """A wish to do with the thing of a tool what no tool does: delete a note where notes are added and found."""
    words = {word for tool in tools for word in _words(f"{tool.name} {tool.description}")}
    verbs = set(corpus.names()["verbs"]) | _READING
    thing = " ".join(
        word for word in _split_name(rng.choice(tools).name) if word.rstrip("s") not in verbs
    )
    deeds = [d.split("|") for d, near in _DEEDS.items() if not words & _words(f"{d} {near}")]
    if not thing or not deeds:
        return None
    if rng.random() < 0.5:
        value = values.words(rng, 1, 3)
    else:
        value = values.draw(rng, rng.choice(["name", "title", "filename", "date"]), split)
    way = rng.choice(_WAYS).replace("{thing}s", thing if thing.endswith("s") else f"{thing}s")
    return way.format(
        deed=rng.choice(rng.choice(deeds)), thing=thing.removesuffix("s"), value=value
    )


_GENERAL = {"shipped": 0.7, "catalog": 0.3, "invented": 0.35}
"""Share of refusals that are written requests of any kind; the others ask for a tool that is not on offer."""
_OPEN_ENDED = ("search", "ask", "web", "news", "define", "find", "look")


def _general_refusal(rng: Random, source: str, tools: list[Tool], split: Split) -> str | None:
    text, needs = rng.choice(corpus.refusals(split))
    offered = " ".join(f"{tool.name} {tool.description}" for tool in tools).lower()
    if source != "shipped" and any(word in offered for word in _OPEN_ENDED):
        return None
    return None if any(need in offered for need in needs if need != "none") else text


def _neighbour(rng: Random, tools: list[Tool]) -> Tool:
    """A tool of the catalog; often one that stands near a tool on offer, so of the same trade."""
    catalog = corpus.catalog()
    places = [_places()[tool.phrases] for tool in tools if tool.phrases in _places()]
    if not places or rng.random() < 0.4:
        return rng.choice(catalog)
    return catalog[(rng.choice(places) + rng.choice([-4, -3, -2, -1, 1, 2, 3, 4])) % len(catalog)]


@cache
def _places() -> dict[tuple[Phrase, ...], int]:
    return {tool.phrases: place for place, tool in enumerate(corpus.catalog())}


_READING = frozenset(
    "get list show search find check track read look lookup view query fetch locate see inspect".split()
)


def _may_serve(tool: Tool, other: Tool) -> bool:
    """Whether a request for `other` could be meant for `tool`: the same deed on the same thing, as far as names say."""
    if tool.name == other.name:
        return True
    verbs = set(corpus.names()["verbs"]) | _READING
    ours, theirs = _words(tool.name), _words(other.name)
    about = _words(f"{tool.name} {tool.description} {tool.domain}") - verbs
    if not (theirs - verbs) & about:
        return False
    deeds, wanted = ours & verbs, theirs & verbs
    return not (deeds and wanted and not deeds & wanted) or bool(
        deeds & _READING and wanted & _READING
    )


def _split_name(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _words(text: str) -> set[str]:
    return {w.lower().rstrip("s") for w in re.findall(r"[A-Za-z][a-z]{2,}", text)}
