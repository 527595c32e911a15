"""The written corpus: value lists, tools with their phrasings, refusals; split into training and held-out parts.

The split is by a stable hash of the text itself, so it is the same on every machine and survives new lines: one phrase
in eight and one value in seven are never seen in training. Evaluation sets are made from those alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent / "corpus"
EVALUATION = Path(__file__).parent.parent / "evaluation"

Split = Literal["train", "held"]
Json = Any
"""A JSON value as `json.loads` gives it; narrowed where it is used."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    type: str
    """string, integer, number, boolean or enum."""
    kind: str
    """What a value looks like (`values.draw`); empty for booleans and enums."""
    required: bool
    choices: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON Schema that a user's tool of this parameter would have."""
        if self.type == "enum":
            return {"type": "string", "enum": list(self.choices)}
        return {"type": self.type}


@dataclass(frozen=True, slots=True)
class Phrase:
    """A request with `{parameter}` where values stand, and arguments that the wording fixes."""

    text: str
    constants: tuple[tuple[str, Json], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool as the corpus knows it: what the model sees, how people ask for it, what it returns."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    phrases: tuple[Phrase, ...]
    results: tuple[Json, ...]
    domain: str = ""

    @property
    def spec(self) -> dict[str, Json]:
        """The tool in the shape that chat templates take."""
        schema = {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


def is_held(text: str, one_in: int) -> bool:
    """Whether `text` belongs to the held-out part; the same answer everywhere and for ever."""
    return hashlib.blake2s(text.encode(), digest_size=4).digest()[0] % one_in == 0


def _tool(row: dict[str, Json]) -> Tool:
    parameters = tuple(
        Parameter(
            entry["name"],
            entry["type"],
            entry.get("kind", ""),
            bool(entry.get("required", True)),
            tuple(str(choice) for choice in entry.get("choices", ())),
        )
        for entry in row["parameters"]
    )
    phrases = tuple(
        Phrase(entry) if isinstance(entry, str) else Phrase(entry[0], tuple(entry[1].items()))
        for entry in row["phrases"]
    )
    return Tool(
        row["name"],
        row["description"],
        parameters,
        phrases,
        tuple(row.get("results", ("ok",))),
        row.get("domain", ""),
    )


def _rows(path: Path) -> list[dict[str, Json]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


@cache
def shipped() -> tuple[Tool, ...]:
    """The ten tools that ship with the package."""
    return tuple(_tool(row) for row in _rows(FOLDER / "shipped.jsonl"))


@cache
def catalog() -> tuple[Tool, ...]:
    """Tools of many domains, for training only."""
    return tuple(
        _tool(row) for path in sorted(FOLDER.glob("catalog_*.jsonl")) for row in _rows(path)
    )


@cache
def unseen() -> tuple[Tool, ...]:
    """Tools of other domains, for evaluation only."""
    return tuple(_tool(row) for row in _rows(EVALUATION / "unseen_tools.jsonl"))


@lru_cache(maxsize=4096)
def phrases(tool: Tool, split: Split) -> tuple[Phrase, ...]:
    """The phrases of one split; a tool without held-out phrases gives all of them."""
    chosen = tuple(p for p in tool.phrases if is_held(p.text, 8) == (split == "held"))
    return chosen or tool.phrases


@cache
def values(split: Split) -> dict[str, tuple[str, ...]]:
    """Kind -> the written values of one split."""
    table: dict[str, list[str]] = json.loads((FOLDER / "values.json").read_text("utf-8"))
    table["expression"] = json.loads((FOLDER / "expressions.json").read_text("utf-8"))
    return {
        kind: tuple(v for v in written if is_held(v, 7) == (split == "held")) or tuple(written)
        for kind, written in table.items()
    }


@cache
def unit_groups() -> tuple[tuple[str, ...], ...]:
    """Groups of unit spellings that convert into each other."""
    written: dict[str, list[str]] | list[list[str]] = json.loads(
        (FOLDER / "units.json").read_text("utf-8")
    )
    groups = written.values() if isinstance(written, dict) else written
    return tuple(tuple(group) for group in groups)


@cache
def names() -> dict[str, tuple[str, ...]]:
    """Words for invented tools: `verbs`, `nouns`, `adjectives`."""
    table = json.loads((FOLDER / "names.json").read_text("utf-8"))
    return {key: tuple(words) for key, words in table.items()}


@cache
def joins() -> dict[str, tuple[str, ...]]:
    """Connectors of two requests, references to a result, openers and endings."""
    table = json.loads((FOLDER / "joins.json").read_text("utf-8"))
    return {key: tuple(words) for key, words in table.items()}


@cache
def chains() -> tuple[dict[str, Json], ...]:
    """Two-step requests over the shipped tools in which the second call uses the first result."""
    return tuple(_rows(FOLDER / "shipped_chains.jsonl"))


@cache
def refusals(split: Split) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Requests that need a tool which is seldom there, with what they would need."""
    return tuple(
        (row["text"], tuple(row.get("needs", ())))
        for row in _rows(FOLDER / "refusals.jsonl")
        if is_held(row["text"], 8) == (split == "held")
    )
