"""A run as a stream of events: it goes on in a task of its own, and ends when nobody reads any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agentdiff.agent.config import Emit
from agentdiff.agent.events import RunEvent

_AHEAD = 32
"""Events that a run may be ahead of the one who reads them."""


@asynccontextmanager
async def followed(
    run: Callable[[Emit], Awaitable[object]],
) -> AsyncGenerator[AsyncIterator[RunEvent]]:
    """Start `run` and open the iterator of what it emits; an error of the run is raised there.

    Leaving the context cancels the run.
    """
    send, receive = anyio.create_memory_object_stream[RunEvent](_AHEAD)
    events = _Events(receive)
    failure: BaseException | None = None
    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow, run, send, events)
            try:
                yield events
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                failure = error  # raised outside the task group, which would wrap it
            finally:
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Events:
    """The events of a run, and at their end its error."""

    def __init__(self, receive: MemoryObjectReceiveStream[RunEvent]) -> None:
        self._receive = receive
        self.failure: Exception | None = None

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> RunEvent:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            pass
        if self.failure is not None:
            raise self.failure
        raise StopAsyncIteration


async def _follow(
    run: Callable[[Emit], Awaitable[object]],
    send: MemoryObjectSendStream[RunEvent],
    events: _Events,
) -> None:
    with send:
        try:
            await run(send.send)
        except Exception as error:
            events.failure = error
