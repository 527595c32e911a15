"""How much one run may spend, and how much it has spent.

Runs nest: a tool may run another agent. What the inner run spends counts for the outer one too, and
no run goes on past the deadline of the run that it is part of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TypeAlias

from agentdiff.errors import ConfigurationError, LimitExceeded
from agentdiff.messages import Json, Message, ToolCall, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What tokens cost, for each million of them, in a currency of your choice."""

    input: float
    output: float

    def __call__(self, model: str, usage: Usage) -> float | None:
        """The price of a generation; None where the backend did not count its tokens."""
        if usage.input_tokens is None and usage.output_tokens is None:
            return None
        read, written = usage.input_tokens or 0, usage.output_tokens or 0
        return (self.input * read + self.output * written) / 1e6


_Written: TypeAlias = tuple[str, Mapping[str, Json], str | None]
"""What a call says, whatever its id."""
Pricing: TypeAlias = Callable[[str, Usage], float | None]
"""The price of a generation by a model, None where it is not known; `Price` is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLimits:
    """Limits of one run, runs inside it included; None is no limit.

    A run that reaches one ends with `LimitExceeded`. Tokens and cost are looked at before each
    generation, so the last one may go beyond; what a backend does not count is not counted here.
    """

    requests: int | None = 25
    """Generations, those made again after a cut included."""
    tool_calls: int | None = None
    """Tool calls. A turn that asks for more than are left runs none of its calls."""
    input_tokens: int | None = None
    """Tokens read."""
    output_tokens: int | None = None
    """Tokens written."""
    total_tokens: int | None = None
    """Tokens read and written."""
    cost: float | None = None
    """What the tokens may cost, by the agent's `price`."""
    wall_s: float | None = None
    """Seconds for the whole run; what is under way then is cancelled. A run that is resumed begins
    to count anew."""
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
    """What a run has spent, held against its limits and those of the runs around it."""

    __slots__ = ("_calls", "_deadline", "_outer", "_price", "_requests", "cost", "limits", "usage")

    def __init__(
        self, limits: UsageLimits, *, price: Pricing | None = None, outer: Spending | None = None
    ) -> None:
        """Nothing is spent.

        Args:
            limits: Of this run alone.
            price: Of its generations.
            outer: The spending that this one is part of.

        Raises:
            ConfigurationError: There is a limit of cost and no price.
        """
        if limits.cost is not None and price is None:
            raise ConfigurationError(
                "`UsageLimits.cost` needs to know what tokens cost; give the agent a `price=`"
            )
        self.limits = limits
        self.usage = _NOTHING
        self.cost: float | None = None
        """What was spent as far as it is known."""
        self._price = price
        self._outer: tuple[Spending, ...] = () if outer is None else (outer, *outer._outer)
        """Those around it, the nearest first."""
        self._deadline = None if outer is None else outer._deadline
        self._requests = 0
        self._calls = 0

    def part(self) -> Spending:
        """The spending of one part of the run, such as a tool call: counts, and has no limits."""
        return Spending(_UNLIMITED, outer=self)

    def start_clock(self) -> None:
        """Begin to count the seconds."""
        if self.limits.wall_s is not None:
            own = time.monotonic() + self.limits.wall_s
            self._deadline = own if self._deadline is None else min(self._deadline, own)

    def left_s(self) -> float | None:
        """Seconds left, more than 0; None without a limit."""
        if self._deadline is None:
            return None
        return max(self._deadline - time.monotonic(), 0.001)

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def add(self, usage: Usage, *, model: str) -> None:
        """Count what a generation used, here and in the runs around this one."""
        cost = None if self._price is None else self._price(model, usage)
        for each in (self, *self._outer):
            each.usage += usage
            if cost is not None:
                each.cost = (each.cost or 0.0) + cost

    def count_request(self) -> None:
        """Count one generation that is about to be made.

        Raises:
            LimitExceeded: There is no room for it; it is not counted.
        """
        for each in (self, *self._outer):
            each._check_room()
        for each in (self, *self._outer):
            each._requests += 1

    def count_calls(self, number: int) -> None:
        """Count tool calls that are about to be run.

        Raises:
            LimitExceeded: There is no room for all of them; none is counted.
        """
        for each in (self, *self._outer):
            limit = each.limits.tool_calls
            if limit is not None and each._calls + number > limit:
                raise LimitExceeded("tool calls", limit=limit)
        for each in (self, *self._outer):
            each._calls += number

    def _check_room(self) -> None:
        limits, usage = self.limits, self.usage
        if limits is _UNLIMITED:
            return
        if limits.requests is not None and self._requests >= limits.requests:
            raise LimitExceeded("requests", limit=limits.requests)
        if limits.input_tokens or limits.output_tokens or limits.total_tokens or limits.cost:
            self._check_tokens(limits, usage)

    def _check_tokens(self, limits: UsageLimits, usage: Usage) -> None:
        read, written = usage.input_tokens or 0, usage.output_tokens or 0
        for what, limit, spent in (
            ("input tokens", limits.input_tokens, read),
            ("output tokens", limits.output_tokens, written),
            ("tokens", limits.total_tokens, read + written),
            ("cost", limits.cost, self.cost or 0.0),
        ):
            if limit is not None and spent >= limit:
                raise LimitExceeded(what, limit=limit)


class Repetition:
    """Tells a run that goes round in circles: the same calls, and the same results, again and again."""

    __slots__ = ("_calls", "_limit", "_seen", "_told")

    def __init__(self, limit: int | None) -> None:
        """No turn was seen. `limit` is `UsageLimits.identical_turns`."""
        self._limit = limit
        self._calls: list[_Written] = []
        self._told: list[str] = []
        self._seen = 0
        """Turns in a row like the newest."""

    def check(self, calls: Sequence[ToolCall]) -> None:
        """Pass unless these calls were run and told the same as often as is allowed.

        Raises:
            LimitExceeded: They were.
        """
        if self._limit is None or self._seen < self._limit or _written(calls) != self._calls:
            return
        names = ", ".join(dict.fromkeys(f"`{call.name}`" for call in calls))
        raise LimitExceeded(
            f"identical turns (repeated calls of {names}, with the same results)",
            limit=self._limit,
        )

    def note(self, calls: Sequence[ToolCall], told: Sequence[Message]) -> None:
        """Remember a turn and its results, to know it again."""
        if self._limit is None:
            return
        written, texts = _written(calls), [message.content for message in told]
        self._seen = self._seen + 1 if (written, texts) == (self._calls, self._told) else 1
        self._calls, self._told = written, texts


_NOTHING = Usage(requests=0)
_UNLIMITED = UsageLimits(requests=None, identical_turns=None)

_around: ContextVar[Spending | None] = ContextVar("agentdiff_spending", default=None)


def spending_around() -> Spending | None:
    """The spending of the tool call that this code runs in, if it runs in one."""
    return _around.get()


class inside:
    """Runs that begin in this block, in its tasks and its threads, are part of `spending`."""

    __slots__ = ("_spending", "_token")

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    def __enter__(self) -> None:
        self._token = _around.set(self._spending)

    def __exit__(self, *_: object) -> None:
        _around.reset(self._token)


def _written(calls: Sequence[ToolCall]) -> list[_Written]:
    return [(call.name, call.arguments, call.malformed) for call in calls]
