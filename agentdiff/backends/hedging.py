"""Two backends for the slow calls: where the first takes longer than it nearly always does, ask a second.

The first whole answer wins, the other call is cancelled; it may be billed all the same, and the result
says so. That a call may be made twice is the user's decision, so nothing hedges by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from agentdiff.backends.latency import Latencies, Taken
from agentdiff.errors import AgentDiffError, ConfigurationError, ProtocolError
from agentdiff.generation import Backend, Capabilities, Commit, Event, Finish, Request
from agentdiff.messages import Usage
from agentdiff.telemetry.routing import routing

ENOUGH = 20
"""Calls of a kind after which it is known what slow is."""


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
        names = (self._first.name, self._second.name)
        with routing(self._name, request.kind, names) as span:
            race = _Race()
            with span.current():
                await self._run(race, request)
            if race.winner is None:
                raise race.errors[0]
            attempts = len(race.asked)
            if attempts > 1:
                span.hedged(self._second.name, winner=race.winner)
            span.finish(race.winner, attempts=attempts)
            for event in race.events:
                if isinstance(event, Finish) and attempts > 1:
                    other = next(name for name in race.asked if name != race.winner)
                    event = replace(
                        event,
                        usage=event.usage + Usage(),
                        stats=replace(event.stats, attempts=event.stats.attempts + 1),
                        warnings=(*event.warnings, f"`{other}` was asked too: it was slow"),
                    )
                yield event

    async def _run(self, race: _Race, request: Request) -> None:
        """Let the backends run; returns when there is an answer, or none any more."""
        self._calls += 1
        slow_s = None
        if self.latencies.count(self._first.name, request.kind) >= ENOUGH:
            slow_s = self.latencies.total_s(self._first.name, request.kind, share=self._share)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask, race, self._first, request, tasks.cancel_scope)
            if slow_s is None or self._hedges + 1 > self._at_most * self._calls:
                return
            with anyio.move_on_after(slow_s):
                await race.first_ended.wait()
            if race.winner is None and not race.errors:
                self._hedges += 1
                left_s = request.deadline_s
                if left_s is not None:
                    left_s = max(0.001, left_s - slow_s)
                asked = replace(request, deadline_s=left_s)
                tasks.start_soon(self._ask, race, self._second, asked, tasks.cancel_scope)

    async def _ask(
        self, race: _Race, backend: Backend, request: Request, both: anyio.CancelScope
    ) -> None:
        began = anyio.current_time()
        race.asked.append(backend.name)
        events: list[Event] = []
        try:
            async with backend.stream(request) as stream:
                async for event in stream:
                    if isinstance(event, Commit | Finish):
                        events.append(event)
                    if isinstance(event, Finish):
                        break
                else:
                    raise ProtocolError("the stream ended without `Finish`", backend=backend.name)
        except AgentDiffError as error:
            race.errors.append(error)
        else:
            if race.winner is None:
                race.winner, race.events = backend.name, events
                both.cancel()
        finally:
            if backend is self._first:
                # One that is cancelled has taken this long at least.
                taken = Taken(total_s=anyio.current_time() - began)
                self.latencies.observe(backend.name, request.kind, taken)
                race.first_ended.set()


@dataclass(slots=True)
class _Race:
    """One call, made once or twice."""

    asked: list[str] = field(default_factory=list[str])
    winner: str | None = None
    events: list[Event] = field(default_factory=list[Event])
    errors: list[AgentDiffError] = field(default_factory=list[AgentDiffError])
    first_ended: anyio.Event = field(default_factory=anyio.Event)
