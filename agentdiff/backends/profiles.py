"""What an engine takes and gives, as data: one table, by name.

A profile is about the wire; what a backend promises its callers is `Capabilities`. What is stated
here was read in the engines' code and documentation; `VERSION` says when. `guess` names a profile
only where an answer of the server leaves no doubt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from agentdiff.backends.loose import a_list, an_object
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Effort, Enforcement
from agentdiff.messages import Json

VERSION: Final = "2026-11-30"
"""When the table was last held against what the engines do."""

SamplingField = Literal["temperature", "top_p", "seed"]
LengthField = Literal["max_tokens", "max_completion_tokens"]
CallContent = Literal["empty", "null", "absent"]

_ALL: Final[frozenset[SamplingField]] = frozenset({"temperature", "top_p", "seed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """How one engine's dialect of chat completions differs from the common one."""

    name: str
    length_field: LengthField = "max_tokens"
    """The field that caps the output. A server that names the other one is believed, once."""
    structured: Literal["response_format", "pinned_canvas", "prompt"] = "response_format"
    """How a schema travels: in its own field, as the pinned part of a canvas, or in words alone."""
    enforcement: Enforcement = "validated"
    """What a schema gets where the output is valid: `native` only where the engine decodes by it.

    A schema that the engine does not decode by is told to the model in words too.
    """
    sampling_fields: frozenset[SamplingField] = _ALL
    """Fields that the engine takes and heeds. Others are left out, with a warning in the result."""
    temperature_range: tuple[float, float] | None = None
    """Temperatures the engine really uses; others are moved to the nearer end, with a warning."""
    efforts: Mapping[Effort, str] = field(default_factory=dict[Effort, str])
    """Our efforts → `reasoning_effort`; one that is absent leaves the engine's default."""
    reasoning_room: Mapping[Effort, int] = field(default_factory=dict[Effort, int])
    """Tokens added to the cap where hidden reasoning counts as output; room, not expected use."""
    stream_usage: bool = True
    """Whether `stream_options.include_usage` is understood."""
    stream_unit: Literal["token", "block", "canvas", "draft"] = "token"
    """What one chunk holds: new text of that size, or, for `draft`, the whole text so far."""
    tools: Literal["field", "words"] = "field"
    """How tools travel. A server without them leaves the field out of the prompt, with status 200."""
    call_content: CallContent = "empty"
    """The content of an assistant message that only calls tools; several engines reject null."""
    continue_fields: Mapping[str, Json] | None = None
    """Fields that make the engine write on from an assistant message that ends the conversation; empty
    where it does so by itself, None where it does not or does not say."""
    error_shape: Literal["nested", "flat", "detail"] = "nested"
    """How errors come: `{"error": {…}}`, `{"object": "error", …}`, FastAPI's. All are read, always."""
    decisions: Literal["", "/decisions", "/systemone"] = ""
    """Where typed decisions are asked for; empty where there is no such place."""
    decision_wire: Literal["questions", "state"] = "questions"
    """OpenAI's list of questions about an `input`, or System One's map of questions about a `state`."""
    decision_model: str = ""
    """The model that decides, where it is another than the one that writes."""
    logprobs: bool = False
    """Whether the probabilities of the first token can be had with a chat completion."""
    canvas_tokens: int = 0
    """The canvas that the engine serves; a request may use fewer positions."""
    concurrency: int = 100
    """Requests at once; what is beyond waits here, in order, and not in the server's queue."""
    key_env: str = "AGENTDIFF_API_KEY"
    """The environment variable that holds the key."""
    key_header: str = "Authorization"
    """The header that holds the key, as a bearer token where it is `Authorization`."""

    @property
    def diffusing(self) -> bool:
        """Whether chunks replace each other."""
        return self.stream_unit == "draft"


# Both flags at once are a 400.
_VLLM_CONTINUES: Final = {"continue_final_message": True, "add_generation_prompt": False}
# Without it, a last message of the assistant is shown to the model as the user's.
_SGLANG_CONTINUES: Final = {"continue_final_message": True}

_TABLE = (
    # Any server that speaks OpenAI's chat completions: it may ignore a schema, with status 200.
    EngineProfile(name="generic"),
    EngineProfile(
        name="openai",
        length_field="max_completion_tokens",
        enforcement="native",
        decisions="/decisions",
        logprobs=True,
        key_env="OPENAI_API_KEY",
    ),
    EngineProfile(
        name="azure",
        length_field="max_completion_tokens",
        enforcement="native",
        logprobs=True,
        key_env="AZURE_OPENAI_API_KEY",
        key_header="api-key",
    ),
    # It passes the schema on to whichever provider it picks.
    EngineProfile(name="openrouter", key_env="OPENROUTER_API_KEY"),
    EngineProfile(
        name="mercury",
        length_field="max_completion_tokens",
        enforcement="native",
        sampling_fields=frozenset({"temperature"}),
        # The server silently replaces what lies outside.
        temperature_range=(0.5, 1.0),
        # `medium` is the server's default, so "balanced" sends nothing.
        efforts={"speed": "instant", "quality": "high"},
        reasoning_room={"balanced": 2048, "quality": 8192},
        decisions="/decisions",
        decision_wire="state",
        decision_model="mercury-decide",
        key_env="INCEPTION_API_KEY",
    ),
    # Autoregressive models on the two engines; their diffusion models have profiles of their own.
    EngineProfile(
        name="vllm",
        enforcement="native",
        logprobs=True,
        decisions="/decisions",
        continue_fields=_VLLM_CONTINUES,
    ),
    EngineProfile(
        name="sglang",
        enforcement="native",
        error_shape="flat",
        logprobs=True,
        continue_fields=_SGLANG_CONTINUES,
    ),
    # Any temperature but 1, a seed or a grammar is a 400; penalties are ignored.
    EngineProfile(
        name="vllm-diffusiongemma",
        structured="pinned_canvas",
        enforcement="pinned_canvas",
        sampling_fields=frozenset({"top_p"}),
        stream_unit="canvas",
        decisions="/decisions",
        continue_fields=_VLLM_CONTINUES,
        canvas_tokens=256,
        concurrency=8,
    ),
    # A grammar is compiled and never read; decoding is greedy, whatever the sampling fields say.
    EngineProfile(
        name="sglang-dllm",
        structured="prompt",
        sampling_fields=frozenset(),
        stream_unit="block",
        error_shape="flat",
        continue_fields=_SGLANG_CONTINUES,
        concurrency=1,
    ),
    # A grammar is a 400; the renoising schedule governs the sampling.
    EngineProfile(
        name="sglang-diffusiongemma",
        structured="prompt",
        sampling_fields=frozenset(),
        stream_unit="canvas",
        error_shape="flat",
        continue_fields=_SGLANG_CONTINUES,
        concurrency=1,
    ),
    # SGLang with Mosaic's algorithm: an automaton of nine keywords, others ignored.
    EngineProfile(
        name="sglang-mosaic",
        enforcement="native",
        sampling_fields=frozenset(),
        stream_unit="block",
        error_shape="flat",
        continue_fields=_SGLANG_CONTINUES,
        concurrency=1,
    ),
    # A grammar is an IndexError in the engine's loop.
    EngineProfile(
        name="lmdeploy-sdar",
        structured="prompt",
        sampling_fields=frozenset({"temperature", "top_p"}),
        stream_unit="block",
        error_shape="flat",
    ),
    EngineProfile(
        name="llama-cpp",
        enforcement="native",
        logprobs=True,
        # It writes on by itself, but is a 400 where the template would think first.
        continue_fields={"chat_template_kwargs": {"enable_thinking": False}},
        concurrency=4,
    ),
    # One of its two runners ignores a schema, with status 200.
    EngineProfile(name="ollama", concurrency=4),
    # It ignores `response_format` and `stream_options`, and counts tokens in any case. A temperature and a
    # seed count only where the checkpoint's own generation config samples.
    EngineProfile(
        name="transformers-serve",
        tools="words",
        stream_usage=False,
        error_shape="detail",
        decisions="/systemone",
        decision_wire="state",
        concurrency=4,
    ),
)

PROFILES: Final[Mapping[str, EngineProfile]] = {profile.name: profile for profile in _TABLE}

GENERIC: Final = PROFILES["generic"]
OPENAI: Final = PROFILES["openai"]
MERCURY: Final = PROFILES["mercury"]

_HOSTS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "api.inceptionlabs.ai": "mercury",
    "openrouter.ai": "openrouter",
}
_AZURE = re.compile(
    r".+\.(openai\.azure\.com|services\.ai\.azure\.com|cognitiveservices\.azure\.com)"
)
_OWNERS: Final[Mapping[str, str]] = {"llamacpp": "llama-cpp", "library": "ollama"}


def profile_named(name: str) -> EngineProfile:
    """The profile called `name`.

    Raises:
        ConfigurationError: There is none.
    """
    if name not in PROFILES:
        raise ConfigurationError(f"there is no profile {name!r}; known: {', '.join(PROFILES)}")
    return PROFILES[name]


def profile_of_host(host: str) -> EngineProfile | None:
    """The profile of a hosted service, by its host; None for any other."""
    name = "azure" if _AZURE.fullmatch(host) else _HOSTS.get(host)
    return None if name is None else PROFILES[name]


def guess(models: Json, server: str, model: str) -> EngineProfile | None:
    """The profile of a self-hosted engine, from `/v1/models` and the `Server` header.

    Args:
        models: The body of `/v1/models`.
        server: The `Server` header.
        model: The model that is asked for; its entry may say where its weights come from.

    Returns:
        None where it is not certain, which is most of the time: an engine that serves models of
        both kinds under any name tells neither.
    """
    if server.lower().startswith("llama.cpp"):
        return PROFILES["llama-cpp"]
    for entry in map(an_object, a_list(an_object(models).get("data"))):
        if entry.get("id") != model:
            continue
        owner = str(entry.get("owned_by", "")).lower()
        weights = f"{entry.get('id', '')} {entry.get('root', '')}".lower()
        if owner in _OWNERS:
            return PROFILES[_OWNERS[owner]]
        if owner in ("vllm", "sglang") and "diffusiongemma" in weights:
            return PROFILES[f"{owner}-diffusiongemma"]
        if owner == "sglang" and re.search(r"llada2|sdar", weights):
            return PROFILES["sglang-dllm"]
        if owner == "lmdeploy" and "sdar" in weights:
            return PROFILES["lmdeploy-sdar"]
    return None
