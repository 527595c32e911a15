"""What an engine takes and gives, as data.

A profile is about the wire; what a backend promises its callers is `Capabilities`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentdiff.generation import Effort

SamplingField = Literal["temperature", "top_p", "seed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """How one engine's dialect of chat completions differs from the common one."""

    name: str
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The field that caps the output."""
    sampling_fields: frozenset[SamplingField] = frozenset({"temperature", "top_p", "seed"})
    """Fields the engine takes. Others are left out, with a warning in the result."""
    temperature_range: tuple[float, float] | None = None
    """Temperatures the engine really uses; others are moved to the nearer end, with a warning."""
    efforts: Mapping[Effort, str] = field(default_factory=dict[Effort, str])
    """Our efforts → `reasoning_effort`; one that is absent leaves the engine's default."""
    reasoning_room: Mapping[Effort, int] = field(default_factory=dict[Effort, int])
    """Tokens added to the cap where hidden reasoning counts as output; room, not expected use."""
    stream_usage: bool = True
    """Whether `stream_options.include_usage` is understood."""
    diffusing: bool = False
    """Ask for drafts; each frame of the stream then holds the whole text so far."""
    key_env: str = "AGENTDIFF_API_KEY"
    """The environment variable that holds the key."""


GENERIC = EngineProfile(name="generic")
"""Any server that speaks OpenAI's chat completions: SGLang, vLLM, LMDeploy, llama.cpp, …"""

OPENAI = EngineProfile(
    name="openai", length_field="max_completion_tokens", key_env="OPENAI_API_KEY"
)

MERCURY = EngineProfile(
    name="mercury",
    length_field="max_completion_tokens",
    sampling_fields=frozenset({"temperature"}),
    # The server silently replaces what lies outside.
    temperature_range=(0.5, 1.0),
    # `medium` is the server's default, so "balanced" sends nothing.
    efforts={"speed": "instant", "quality": "high"},
    reasoning_room={"balanced": 2048, "quality": 8192},
    key_env="INCEPTION_API_KEY",
)
