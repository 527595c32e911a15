"""What is known of the moment of a step: its input, and what its episode has written so far."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import lru_cache

from agentdiff.length.context import Key, StepContext
from agentdiff.length.histogram import EDGES

FEATURES = 7
"""How many numbers `features_of` gives."""
_HASHED = "episode:"


@dataclass(slots=True, kw_only=True)
class Episode:
    """What one episode has written so far, in tokens."""

    longest: int = 0
    tool: str | None = None
    """The newest step's tool, or its kind."""
    by_step: dict[str, int] = field(default_factory=dict[str, int])
    """The newest length of each kind and tool."""


def buckets_of(context: StepContext, episode: Episode | None) -> dict[str, Key]:
    """What each expert that counts looks at; those with nothing to see are left out.

    Numbers are told apart by their magnitude only.
    """
    seen: dict[str, Key] = {}
    if episode is not None:
        seen["input"] = (_octave(context.last_tokens), episode.tool)
        seen["longest"] = (int(2 * math.log2(episode.longest + 1)),)
    elif context.last_tokens is not None:
        seen["input"] = (_octave(context.last_tokens), None)
    return seen


def features_of(context: StepContext, episode: Episode | None, *, usual: float) -> list[float]:
    """What a trend looks at: logarithms, those of the episode against the usual length.

    `usual` is the mean bin of the excess by the path alone. All but the first are near zero where
    nothing is known.
    """
    longest = own = 0.0
    if episode is not None:
        length = math.log2(1 + context.schema_min + EDGES[int(usual)])
        longest = (math.log2(1 + episode.longest) - length) / 2
        if (newest := episode.by_step.get(step_name(context))) is not None:
            own = (math.log2(1 + newest) - length) / 2
    return [
        1.0,
        math.log2(1 + (context.last_tokens or 0)) / 2 - 3,
        math.log2(1 + (context.prompt_tokens or 0)) / 2 - 5,
        math.log2(1 + context.schema_min) / 2 - 1.5,
        longest,
        own,
        float(episode is not None),
    ]


@lru_cache(maxsize=128)
def episode_key(episode: str) -> str:
    """What is kept of an episode's name, which may hold anything: a hash. Of a hash, itself."""
    if episode.startswith(_HASHED) and len(episode) == len(_HASHED) + 16:
        return episode
    digest = hashlib.blake2b(episode.encode(errors="replace"), digest_size=8)
    return _HASHED + digest.hexdigest()


def input_key(context: StepContext) -> str | None:
    """What tells this very input from others: a hash of its counts; None where there are none."""
    if context.prompt_tokens is None or context.last_tokens is None:
        return None
    facts = (
        context.kind,
        context.agent,
        context.tool,
        context.schema_min,
        context.last_tokens,
        context.prompt_tokens,
    )
    return hashlib.blake2b(repr(facts).encode(errors="replace"), digest_size=8).hexdigest()


def step_name(context: StepContext) -> str:
    """What an episode tells its steps apart by."""
    return f"{context.kind}/{context.tool or context.agent}"


def _octave(tokens: int | None) -> int | None:
    return None if tokens is None else int(math.log2(tokens + 1))
