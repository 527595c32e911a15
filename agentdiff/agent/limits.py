"""How much one run may spend, and how much it has spent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

import anyio

from agentdiff.errors import ConfigurationError, LimitExceeded
from agentdiff.messages import Json, Message, ToolCall, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLimits:
    """Limits of one run; None is no limit. A run that reaches one ends with `LimitExceeded`."""

    requests: int | None = 25
    """Generations, those made again after a cut included."""
    tool_calls: int | None = None
    """Tool calls. A turn that asks for more than are left runs none of its calls."""
    output_tokens: int | None = None
    """Tokens written; looked at before each generation, so the last one may go beyond. Where the
    backend does not say how many there were, none are counted."""
    wall_s: float | None = None
    """Seconds for the whole run; what is under way then is cancelled."""
    identical_turns: int | None = 2
    """Turns in a row with the same calls, the same arguments and the same results that are run; one
    more ends the run. A result that changes is progress: this does not stop a tool that is polled.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value <= 0:
                raise ConfigurationError(
                    f"`UsageLimits.{each.name}` must be positive or None, got {value!r}"
                )


class Spending:
    """What a run has spent, held against its limits."""

    def __init__(self, limits: UsageLimits) -> None:
        self.limits = limits
        self.usage = Usage(requests=0)
        self.deadline: float | None = None
        """On anyio's clock; None without `wall_s`."""
        self._requests = 0
        self._calls = 0
        self._written = ""
        self._told: list[str] = []
        self._identical = 0

    def start_clock(self) -> None:
        """Begin to count the seconds."""
        if self.limits.wall_s is not None:
            self.deadline = anyio.current_time() + self.limits.wall_s

    def left_s(self) -> float | None:
        """Seconds left, more than 0; None without a limit."""
        if self.deadline is None:
            return None
        return max(self.deadline - anyio.current_time(), 0.001)

    def count_request(self) -> None:
        """Count one generation that is about to be made.

        Raises:
            LimitExceeded: There is no room for it; it is not counted.
        """
        limits = self.limits
        if limits.requests is not None and self._requests >= limits.requests:
            raise LimitExceeded("requests", limit=limits.requests)
        written = self.usage.output_tokens or 0
        if limits.output_tokens is not None and written >= limits.output_tokens:
            raise LimitExceeded("output tokens", limit=limits.output_tokens)
        self._requests += 1

    def count_calls(self, calls: Sequence[ToolCall]) -> None:
        """Count the calls of a turn that are about to be run.

        Raises:
            LimitExceeded: There is no room for all of them, or they repeat what led to nothing new;
                none is counted.
        """
        limits = self.limits
        if limits.tool_calls is not None and self._calls + len(calls) > limits.tool_calls:
            raise LimitExceeded("tool calls", limit=limits.tool_calls)
        identical = self._identical if _written(calls) == self._written else 0
        if limits.identical_turns is not None and identical >= limits.identical_turns:
            names = ", ".join(dict.fromkeys(f"`{call.name}`" for call in calls))
            raise LimitExceeded(
                f"identical turns (repeated calls of {names}, with the same results)",
                limit=limits.identical_turns,
            )
        self._calls += len(calls)

    def note_turn(self, calls: Sequence[ToolCall], told: Sequence[Message]) -> None:
        """Remember a turn and its results, to know it again."""
        written, texts = _written(calls), [message.content for message in told]
        is_same = written == self._written and texts == self._told
        self._identical = self._identical + 1 if is_same else 1
        self._written, self._told = written, texts


def _written(calls: Sequence[ToolCall]) -> str:
    pairs: Json = [[call.name, dict(call.arguments)] for call in calls]
    return json.dumps(pairs, sort_keys=True, default=str)
