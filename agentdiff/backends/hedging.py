"""Two backends for the slow calls: where the first takes longer than it nearly always does, ask a second.

The first whole answer wins, the other call is cancelled; it may be billed all the same, and the result
says so. That a call may be made twice is the user's decision, so nothing hedges by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import anyio

from agentdiff.backends import decisions
from agentdiff.backends.latency import Latencies, Taken
from agentdiff.errors import AgentDiffError, ConfigurationError, ProtocolError
from agentdiff.generation import (
    Backend,
    Budget,
    Capabilities,
    Commit,
    Decision,
    Event,
    Finish,
    Infills,
    Question,
    Request,
    Result,
    StepKind,
)
from agentdiff.messages import Usage
from agentdiff.telemetry.routing import routing

ENOUGH = 20
"""Calls of a kind after which it is known what slow is."""

_T = TypeVar("_T")
_Whole = TypeVar("_Whole", Decision, Result)
_Ask = Callable[[Backend, float | None], Awaitable[_T]]
"""Asks a backend, which has so many seconds; None for no deadline."""


class Hedged:
    """A backend that asks a second one where the first is slow. Answers come whole, without drafts."""

    def __init__(
        self,
        first: Backend,
        second: Backend,
        *,
        share: float = 0.95,
        at_most: float = 0.05,
        name: str | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            first: Who is asked. Best another machine than `second`: what slows one slows its twin.
            second: Who is asked too. Both are closed with this.
            share: The share of calls that are not slow: a call is hedged after the time within which so
                many of the first backend's last calls of its kind ended.
            at_most: The share of calls that may be made twice.
            name: None for `hedged:<first>`.

        Raises:
            ConfigurationError: A share makes no sense.
        """
        if not 0 < share < 1:
            raise ConfigurationError(f"`share` must be in (0, 1), got {share!r}")
        if not 0 <= at_most <= 1:
            raise ConfigurationError(f"`at_most` must be in 0..1, got {at_most!r}")
        self._first = first
        self._second = second
        self._share = share
        self._at_most = at_most
        self._name = name or f"hedged:{first.name}"
        self._calls = self._hedges = 0
        self.latencies = Latencies()
        """What is known of how fast the first one is."""

    @property
    def name(self) -> str:
        """A short name for traces and errors."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """The first one's, without drafts, as the second is to be its equal."""
        return replace(self._first.capabilities, drafts=False)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of events; see `Backend.stream`.

        Raises:
            AgentDiffError: What the first one raised, where the second was not asked or failed too.
        """
        return self._stream(request)

    async def decide(self, question: Question) -> Decision:
        """Choose one of the options; each backend by the best way that it has.

        Raises:
            AgentDiffError: What the first one raised, where the second was not asked or failed too.
        """

        async def ask(backend: Backend, left_s: float | None) -> Decision:
            return await decisions.decide(backend, replace(question, deadline_s=left_s))

        return await self._answered("route", question.deadline_s, ask)

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """Write what belongs between two texts: see `Infills.infill`.

        Raises:
            AgentDiffError: What the first one raised, where the second was not asked or failed too.
            ConfigurationError: One of them cannot.
        """
        for backend in (self._first, self._second):
            if not isinstance(backend, Infills):
                raise ConfigurationError(f"`{backend.name}` does not write between two texts")

        async def ask(backend: Backend, left_s: float | None) -> Result:
            assert isinstance(backend, Infills)
            return await backend.infill(prefix, suffix, budget=budget, deadline_s=left_s)

        return await self._answered("answer", deadline_s, ask)

    async def aclose(self) -> None:
        """Close both. Calling it twice is safe."""
        try:
            await self._first.aclose()
        finally:
            await self._second.aclose()

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        async with aclosing(self._events(request)) as events:
            yield events

    async def _events(self, request: Request) -> AsyncGenerator[Event]:
        async def ask(backend: Backend, left_s: float | None) -> list[Event]:
            return await _whole(backend, replace(request, deadline_s=left_s))

        race = await self._raced(request.kind, request.deadline_s, ask)
        for event in race.answer or ():
            if isinstance(event, Finish) and race.warning:
                event = replace(
                    event,
                    usage=event.usage + Usage(),
                    stats=replace(event.stats, attempts=event.stats.attempts + 1),
                    warnings=(*event.warnings, race.warning),
                )
            yield event

    async def _answered(
        self, kind: StepKind, deadline_s: float | None, ask: _Ask[_Whole]
    ) -> _Whole:
        """The answer to what is no stream."""
        race = await self._raced(kind, deadline_s, ask)
        answer = race.answer
        assert answer is not None, "a race without an answer is an error"
        if not race.warning:
            return answer
        return replace(
            answer,
            usage=answer.usage + Usage(),
            stats=replace(answer.stats, attempts=answer.stats.attempts + 1),
            warnings=(*answer.warnings, race.warning),
        )

    async def _raced(self, kind: StepKind, deadline_s: float | None, ask: _Ask[_T]) -> _Race[_T]:
        """A race that somebody has won.

        Raises:
            AgentDiffError: Nobody did.
        """
        with routing(self._name, kind, (self._first.name, self._second.name)) as span:
            race = _Race[_T]()
            with span.current():
                await self._run(race, kind, deadline_s, ask)
            if race.winner is None:
                raise race.errors[0]
            if len(race.asked) > 1:
                span.hedged(self._second.name, winner=race.winner)
            span.finish(race.winner, attempts=len(race.asked))
            return race

    async def _run(
        self, race: _Race[_T], kind: StepKind, deadline_s: float | None, ask: _Ask[_T]
    ) -> None:
        """Let the backends run; returns when there is an answer, or none any more."""
        self._calls += 1
        slow_s = None
        if self.latencies.count(self._first.name, kind) >= ENOUGH:
            slow_s = self.latencies.total_s(self._first.name, kind, share=self._share)
        async with anyio.create_task_group() as tasks:

            async def run(backend: Backend, left_s: float | None) -> None:
                began = anyio.current_time()
                race.asked.append(backend.name)
                try:
                    answer = await ask(backend, left_s)
                except AgentDiffError as error:
                    race.errors.append(error)
                else:
                    if race.winner is None:
                        race.winner, race.answer = backend.name, answer
                        tasks.cancel_scope.cancel()
                finally:
                    if backend is self._first:
                        # One that is cancelled has taken this long at least.
                        taken = Taken(total_s=anyio.current_time() - began)
                        self.latencies.observe(backend.name, kind, taken)
                        race.first_ended.set()

            tasks.start_soon(run, self._first, deadline_s)
            if slow_s is None or self._hedges + 1 > self._at_most * self._calls:
                return
            with anyio.move_on_after(slow_s):
                await race.first_ended.wait()
            if race.winner is None and not race.errors:
                self._hedges += 1
                left_s = None if deadline_s is None else max(0.001, deadline_s - slow_s)
                tasks.start_soon(run, self._second, left_s)


@dataclass(slots=True)
class _Race(Generic[_T]):
    """One call, made once or twice."""

    asked: list[str] = field(default_factory=list[str])
    winner: str | None = None
    answer: _T | None = None
    errors: list[AgentDiffError] = field(default_factory=list[AgentDiffError])
    first_ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def warning(self) -> str:
        """What a call that was made twice says of that; empty for others."""
        if len(self.asked) < 2:
            return ""
        other = next(name for name in self.asked if name != self.winner)
        return f"`{other}` was asked too: it was slow"


async def _whole(backend: Backend, request: Request) -> list[Event]:
    """The events of an answer, without drafts."""
    events: list[Event] = []
    async with backend.stream(request) as stream:
        async for event in stream:
            if isinstance(event, Commit | Finish):
                events.append(event)
            if isinstance(event, Finish):
                return events
    raise ProtocolError("the stream ended without `Finish`", backend=backend.name)
