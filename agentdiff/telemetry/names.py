"""Every attribute name that agentdiff writes or reads.

The GenAI conventions still rename things, so each name has a latest and a legacy spelling and
`AGENTDIFF_SEMCONV` chooses: `latest` (the default: open-telemetry/semantic-conventions-genai
v0.1.0), `legacy` (semantic-conventions 1.36 and before) or `both`. What the conventions have no
word for lives under `agentdiff.`, never under `gen_ai.`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from agentdiff.errors import ConfigurationError

Semconv = Literal["latest", "legacy", "both"]
_MODES: Mapping[str, Semconv] = {mode: mode for mode in get_args(Semconv)}
AttributeValue = str | bool | int | float | Sequence[str]

SCOPE = "agentdiff"
"""The instrumentation scope of our spans."""


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """An attribute's name in each convention. One object for each, so it is its own hash."""

    latest: str
    legacy: str | None
    """None where that convention has no such attribute."""

    def __iter__(self) -> Iterator[str]:
        """Its spellings, the latest first."""
        yield self.latest
        if self.legacy is not None:
            yield self.legacy


Values: TypeAlias = Mapping[Name, AttributeValue | None]
"""Attributes that are not spelled yet; None is unknown."""


def _same(name: str) -> Name:
    return Name(name, name)


# GenAI: what was asked for
OPERATION = _same("gen_ai.operation.name")
PROVIDER = Name("gen_ai.provider.name", "gen_ai.system")
REQUEST_MODEL = _same("gen_ai.request.model")
MAX_TOKENS = _same("gen_ai.request.max_tokens")
TEMPERATURE = _same("gen_ai.request.temperature")
TOP_P = _same("gen_ai.request.top_p")
SEED = _same("gen_ai.request.seed")
OUTPUT_TYPE = _same("gen_ai.output.type")

# GenAI: what came back
RESPONSE_MODEL = _same("gen_ai.response.model")
FINISH_REASONS = _same("gen_ai.response.finish_reasons")
INPUT_TOKENS = _same("gen_ai.usage.input_tokens")
OUTPUT_TOKENS = _same("gen_ai.usage.output_tokens")
REASONING_TOKENS = Name("gen_ai.usage.reasoning.output_tokens", None)
ERROR_TYPE = _same("error.type")

# GenAI: agents and tools
AGENT = _same("gen_ai.agent.name")
TOOL = _same("gen_ai.tool.name")
TOOL_CALL_ID = _same("gen_ai.tool.call.id")
TOOL_TYPE = _same("gen_ai.tool.type")

# GenAI: content, written only on request
INPUT_MESSAGES = Name("gen_ai.input.messages", "gen_ai.prompt")
OUTPUT_MESSAGES = Name("gen_ai.output.messages", "gen_ai.completion")
TOOL_ARGUMENTS = _same("gen_ai.tool.call.arguments")
TOOL_RESULT = _same("gen_ai.tool.call.result")

# agentdiff: the step and its budget
BACKEND = _same("agentdiff.backend")
STEP_KIND = _same("agentdiff.step.kind")
EFFORT = _same("agentdiff.effort")
BUDGET_TARGET = _same("agentdiff.budget.target")
BUDGET_CEILING = _same("agentdiff.budget.ceiling")
BUDGET_SOURCE = _same("agentdiff.budget.source")
BUDGET_USED = _same("agentdiff.budget.used")
BUDGET_FILL = _same("agentdiff.budget.fill")
"""Tokens used divided by the target: 1 is a perfect guess, above 1 the output was extended."""

# agentdiff: how it was decoded
FORWARDS = _same("agentdiff.forwards")
POSITIONS = _same("agentdiff.positions")
TOKENS_PER_FORWARD = _same("agentdiff.tokens_per_forward")
BLOCKS = _same("agentdiff.blocks")
EXTENSIONS = _same("agentdiff.extensions")
FORCED_TOKENS = _same("agentdiff.forced_tokens")
CONSTRAINT_MS = _same("agentdiff.constraint_ms")
DECODE_MS = _same("agentdiff.decode_ms")
FIRST_COMMIT_MS = _same("agentdiff.time_to_first_commit_ms")
CACHE = _same("agentdiff.cache")
CONFIDENCE = _same("agentdiff.confidence")
DRAFTS = _same("agentdiff.drafts")
ATTEMPTS = _same("agentdiff.attempts")
ENFORCEMENT = _same("agentdiff.enforcement")
WARNINGS = _same("agentdiff.warnings")
"""How many; their texts may quote a server, so they are not written."""

# agentdiff: how it ended
CANCELLED = _same("agentdiff.cancelled")
STEPS = _same("agentdiff.steps")
REQUESTS = _same("agentdiff.requests")
TOOL_CALLS = _same("agentdiff.tool_calls")
COST = _same("agentdiff.cost")
TRUNCATIONS = _same("agentdiff.truncations")
"""Generations of the run that their budget cut, those that were made again included."""
RUN_BUDGET_FILL = _same("agentdiff.run.budget.fill")
"""Tokens written divided by tokens expected, over all generations whose budget is known."""
RESUMED = _same("agentdiff.resumed")
"""Generations that an earlier life of the run had made."""
APPROVAL = _same("agentdiff.approval")
"""Of a tool call: `approved`, `denied`, or `waiting` when the run paused for it."""
TOOL_ATTEMPT = _same("agentdiff.tool.attempt")
"""From 2, where the model was told to make the call again."""
NUMBER = _same("agentdiff.number")
"""Of a step."""
PLAN_STEPS = _same("agentdiff.plan.steps")
FAILED_STEPS = _same("agentdiff.plan.failed")
REPLAN = _same("agentdiff.plan.replan")
"""From 1, where the rest of a plan was planned anew after a step had failed."""
CRITICAL_PATH_MS = _same("agentdiff.plan.critical_path_ms")
SUM_MS = _same("agentdiff.plan.sum_ms")
PARALLEL_GAIN = _same("agentdiff.plan.parallel_gain")
"""What the calls would take one after the other, divided by what they took."""
TOKEN_TYPE = _same("gen_ai.token.type")

# agentdiff: who was asked
ROUTER = _same("agentdiff.router")
ROUTE_CANDIDATES = _same("agentdiff.route.candidates")
ROUTE_REASON = _same("agentdiff.route.reason")
ROUTE_REJECTED = _same("agentdiff.route.rejected")
"""`name: objection` of each backend that was not chosen."""
ROUTE_ATTEMPT = _same("agentdiff.route.attempt")
HEDGE = _same("agentdiff.hedge.backend")
"""The second backend, where two were asked at once."""
HEDGE_WINNER = _same("agentdiff.hedge.winner")
FAULTS = _same("agentdiff.faults")
"""How many; their texts quote the output, so they are not written."""

PROVIDERS: Mapping[str, str] = {
    "embedded": "agentdiff.embedded",
    "local": "agentdiff.local",
    "mercury": "inception",
    "scripted": "agentdiff.scripted",
}
"""Provider by the first part of a backend's name; a name that is not here is its own provider."""


def provider_of(backend: str) -> str:
    """The provider of a backend called `backend`: `inception` for `mercury:mercury-2`."""
    kind = backend.partition(":")[0]
    return PROVIDERS.get(kind, kind)


def model_of(backend: str) -> str:
    """The model that a backend called `backend` asks for: `m` for `openai:http://host/v1#m`."""
    _, _, address = backend.partition(":")
    return address.rpartition("#")[2] or backend


@functools.lru_cache(maxsize=64)
def generation_of(backend: str) -> Values:
    """Whose generation it is: the same for every span and metric of a backend."""
    return {
        OPERATION: "chat",
        PROVIDER: provider_of(backend),
        REQUEST_MODEL: model_of(backend),
        BACKEND: backend,
    }


def semconv() -> Semconv:
    """The convention to write, from `AGENTDIFF_SEMCONV`.

    Raises:
        ConfigurationError: the variable is set to something else than the three modes.
    """
    mode = os.environ.get("AGENTDIFF_SEMCONV") or "latest"
    known = _MODES.get(mode)
    if known is None:
        raise ConfigurationError(f"`AGENTDIFF_SEMCONV` is {mode!r}; use one of {', '.join(_MODES)}")
    return known


def captures_content() -> bool:
    """Whether prompts, outputs, tool arguments and results may be written.

    Only if `AGENTDIFF_CAPTURE_CONTENT` is `1`.
    """
    return os.environ.get("AGENTDIFF_CAPTURE_CONTENT") == "1"


def spelled(values: Values, mode: Semconv | None = None) -> dict[str, AttributeValue]:
    """The attributes to set, in the convention chosen. What is None is unknown and left out.

    `mode` is what `semconv` gave: whoever sets attributes more than once asks the environment once.
    """
    mode = mode or semconv()
    if mode == "latest":
        return {name.latest: value for name, value in values.items() if value is not None}
    attributes: dict[str, AttributeValue] = {}
    for name, value in values.items():
        if value is None:
            continue
        if name.legacy is not None:
            attributes[name.legacy] = value
        if mode == "both":
            attributes[name.latest] = value
    return attributes
