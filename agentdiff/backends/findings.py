"""What the doctor's questions have in common: the findings, the requests, and one unlikely schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from agentdiff.backends.validation import validator
from agentdiff.errors import BackendError, Rejected
from agentdiff.generation import Budget, Request, Sampling
from agentdiff.messages import Json, Message, user

Verdict = Literal["holds", "differs", "more", "open"]
"""`more`: it does what was not promised. `open`: the answer does not tell."""

SEED: Final = 11
DEADLINE_S: Final = 60.0
SEA: Final = user("Write one short sentence about the sea.")
RANDOM: Final = user("Write five random words.")
UNLIKELY: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {
        "kq7": {"type": "string", "enum": ["vz3-mauve", "vz9-ochre"]},
        "w0": {"type": "boolean"},
    },
    "required": ["kq7", "w0"],
    "additionalProperties": False,
}
"""A schema that nobody satisfies who has not decoded by it: the prompt does not mention it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question."""

    question: str
    said: str
    """What the profile, or `capabilities`, says."""
    found: str
    verdict: Verdict


def asks(*messages: Message, schema: Mapping[str, Json] | None = None) -> Request:
    """A small request."""
    return Request(
        messages=messages,
        schema=schema,
        budget=Budget(target=48, ceiling=96, source="doctor"),
        sampling=Sampling(effort="speed"),
        deadline_s=DEADLINE_S,
    )


def twice(is_same: bool, said: str, *, is_promised: bool) -> Finding:
    """What two calls with one seed came to."""
    verdict: Verdict = "holds" if is_same or not is_promised else "differs"
    found = "the same output" if is_same else "two outputs"
    return Finding(question="seed, twice", said=said, found=found, verdict=verdict)


def failure(error: BackendError) -> str:
    """A request that failed, in words."""
    how = "refused" if isinstance(error, Rejected) else "breaks on it"
    return f"{how} ({error.status or type(error).__name__})"


def is_unlikely(text: str) -> bool:
    """Whether a text satisfies `UNLIKELY`."""
    try:
        return validator(UNLIKELY).is_valid(json.loads(text))
    except ValueError:
        return False
