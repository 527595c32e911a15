"""What is known of the moment of a step: its input, and what its episode has written so far."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

from agentdiff.length.context import Key, StepContext
from agentdiff.length.histogram import EDGES

FEATURES = 10
"""How many numbers `features_of` gives."""
_HASHED = "episode:"


@dataclass(slots=True, kw_only=True)
class Episode:
    """What one episode has written so far, in tokens."""

    newest: int | None = None
    longest: int = 0
    tool: str | None = None
    """The newest step's tool, or its kind."""
    by_step: dict[str, int] = field(default_factory=dict[str, int])
    """The newest length of each kind and tool."""


def buckets_of(context: StepContext, episode: Episode | None) -> dict[str, Key]:
    """What each expert that counts looks at; those with nothing to see are left out.

    Numbers are told apart by their magnitude only.
    """
    newest_input = _octave(context.last_tokens)
    seen: dict[str, Key] = {}
    if newest_input is not None or episode is not None:
        seen["input"] = (newest_input, episode.tool if episode else None)
    if context.prompt_tokens is not None:
        seen["prompt"] = (_half_octave(context.prompt_tokens),)
    if episode is not None:
        seen["newest"] = (_octave(episode.newest),)
        seen["longest"] = (_half_octave(episode.longest),)
        own = episode.by_step.get(step_name(context))
        if own is not None:
            seen["repeat"] = (_octave(own), newest_input)
    return seen


def features_of(context: StepContext, episode: Episode | None, *, usual: float) -> list[float]:
    """What a trend looks at: logarithms, those of the episode against the usual length.

    `usual` is the mean bin of the excess by the path alone. All are near zero where nothing is
    known.
    """
    own = episode.by_step.get(step_name(context)) if episode else None
    length = math.log2(1 + context.schema_min + EDGES[int(usual)])

    def against(tokens: int | None) -> float:
        return 0.0 if tokens is None else (math.log2(1 + tokens) - length) / 2

    return [
        1.0,
        usual / 20 - 2,
        math.log2(1 + (context.last_tokens or 0)) / 2 - 3,
        math.log2(1 + (context.prompt_tokens or 0)) / 2 - 5,
        math.log2(1 + context.schema_min) / 2 - 1.5,
        against(episode.newest) if episode else 0.0,
        against(episode.longest) if episode else 0.0,
        against(own),
        float(own is not None),
        float(episode is not None),
    ]


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


def _half_octave(tokens: int) -> int:
    return int(2 * math.log2(tokens + 1))
