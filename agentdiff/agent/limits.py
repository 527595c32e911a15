"""How much one run may spend."""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLimits:
    """Limits of one run; None is no limit. A run that reaches one ends with `LimitExceeded`."""

    requests: int | None = 25
    """Generations, those sent again after a cut included."""
    tool_calls: int | None = None
    """Tool calls. A turn that asks for more than are left runs none of its calls."""
    output_tokens: int | None = None
    """Tokens written; looked at before each generation, so the last one may go beyond. Not counted where the backend does not say."""
    wall_s: float | None = None
    """Seconds for the whole run; what is under way then is cancelled."""
    identical_turns: int | None = 2
    """Turns in a row with the same calls, the same arguments and the same results that are run; one more ends the run. A result
    that changes is progress, so a tool that is polled is not stopped by this."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value <= 0:
                raise ConfigurationError(
                    f"`UsageLimits.{each.name}` must be positive or None, got {value!r}"
                )
