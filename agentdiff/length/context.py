"""What is known about a step before it is generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from agentdiff.errors import ConfigurationError
from agentdiff.generation import StepKind

Key = tuple[str | int | None, ...]
"""Names that lead to something learned, most general first."""
KINDS: tuple[StepKind, ...] = get_args(StepKind)


@dataclass(frozen=True, slots=True)
class StepContext:
    """A step whose length is to be predicted. Names and counts only, never text."""

    agent: str
    """The agent that takes the step; steps of one agent resemble each other."""
    kind: StepKind
    tool: str | None = None
    """The tool whose arguments are written, where that is already decided."""
    model: str = ""
    """The model's tokenizer, and where its effort is not the usual one, `@` and that.

    Lengths of one model are only a hint for another.
    """
    schema_min: int = 0
    """Tokens of the shortest valid output (`schema_bounds`); 0 for free text."""
    schema_max: int | None = None
    """Tokens of the longest valid output; None where there is no limit."""
    prompt_tokens: int | None = None
    last_tokens: int | None = None
    """Tokens of the newest tool result or user message."""
    episode: str | None = None
    """Names the run that the step belongs to."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(f"`kind` must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.schema_min < 0:
            raise ConfigurationError(f"`schema_min` must not be negative, got {self.schema_min!r}")
        for name, tokens in (("prompt", self.prompt_tokens), ("last", self.last_tokens)):
            if tokens is not None and tokens < 0:
                raise ConfigurationError(f"`{name}_tokens` must not be negative, got {tokens!r}")
        if self.schema_max is not None and self.schema_max < max(1, self.schema_min):
            raise ConfigurationError(
                f"`schema_max` must be positive and not below `schema_min` ({self.schema_min}),"
                f" got {self.schema_max!r}"
            )
