"""The client on real sockets: connections are kept where they can be, closed where they must be."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.errors import TimedOut, Unavailable
from agentdiff.generation import Commit, Request, generate
from agentdiff.messages import user
from tests.backends.fakes import DONE, USAGE, Reply, chunk, stream
from tests.backends.server import Listening, Received, serving, until

ASK = Request(messages=(user("hello"),))
WHOLE = stream(chunk(content="hi"), chunk(finish="stop"), USAGE, DONE)
HANGING = stream(chunk(content="hi"), None)


@dataclass
class Engine:
    """Answers `hi` in a stream, or, where it is told to hang, its first piece only."""

    hangs: bool = False

    def __call__(self, request: Received) -> Reply:
        return HANGING if self.hangs else WHOLE


@asynccontextmanager
async def backed(engine: Engine) -> AsyncGenerator[tuple[Listening, OpenAIBackend]]:
    async with serving(engine) as server:
        backend = OpenAIBackend(server.url, "m", concurrency=4)
        try:
            yield server, backend
        finally:
            await backend.aclose()


async def test_one_connection_serves_one_call_after_the_other() -> None:
    async with backed(Engine()) as (server, backend):
        for _ in range(5):
            assert (await generate(backend, ASK)).text == "hi"
        assert (server.connections, server.open_connections) == (1, 1)


async def test_a_stream_that_is_left_is_closed_and_the_next_one_works() -> None:
    engine = Engine(hangs=True)
    async with backed(engine) as (server, backend):
        for _ in range(3):
            async with backend.stream(ASK) as events:
                assert await anext(events) == Commit("hi")
            await until(lambda: server.open_connections == 0)
        assert backend.service.in_use == 0
        engine.hangs = False
        assert (await generate(backend, ASK)).text == "hi"


async def test_a_cancelled_call_is_closed_wherever_it_is() -> None:
    engine = Engine(hangs=True)
    async with backed(engine) as (server, backend):
        for number in range(1, 4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(generate, backend, ASK)
                await until(lambda number=number: server.connections == number)
                tasks.cancel_scope.cancel()
            await until(lambda: server.open_connections == 0)
        assert backend.service.in_use == 0
        engine.hangs = False
        assert (await generate(backend, ASK)).text == "hi"


async def test_what_is_beyond_the_slots_waits_and_no_slot_is_lost() -> None:
    engine = Engine(hangs=True)
    async with backed(engine) as (server, backend):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(generate, backend, ASK)
            await until(lambda: server.answering == 4)
            with pytest.raises(TimedOut):
                await generate(backend, replace(ASK, deadline_s=0.01))
            tasks.cancel_scope.cancel()
        assert len(server.received) == 4  # the fifth never left
        await until(lambda: server.open_connections == 0)
        assert backend.service.in_use == 0
        engine.hangs = False
        for _ in range(6):
            assert (await generate(backend, ASK)).text == "hi"


# Nobody closes the connections of a loop that has ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_backend_outlives_the_event_loop_that_used_it() -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(Engine())) as server,
    ):
        backend = OpenAIBackend(server.url, "m")
        for loop in ("asyncio", "asyncio", "trio"):
            assert anyio.run(generate, backend, ASK, backend=loop).text == "hi"
        gc.collect()


async def test_many_at_once_take_few_connections_each_and_keep_them() -> None:
    async with serving(Engine()) as server:
        backend = OpenAIBackend(server.url, "m")
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(generate, backend, ASK)
        assert server.connections <= 20
        await backend.aclose()
        await until(lambda: server.open_connections == 0)


@pytest.mark.slow
# httpx leaves the generator of a request's body to the collector where sending it is cancelled; trio says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_thousand_cancelled_streams_leave_nothing_behind() -> None:
    engine = Engine(hangs=True)
    async with backed(engine) as (server, backend):
        before = len(gc.get_objects())
        for number in range(1000):
            if number % 2:
                with anyio.CancelScope() as scope:
                    async with backend.stream(ASK) as events:
                        await anext(events)
                        scope.cancel()
                        await anyio.lowlevel.checkpoint()
            else:
                with pytest.raises(TimedOut):
                    await generate(backend, replace(ASK, deadline_s=0.01))
        await until(lambda: server.open_connections == 0)
        assert backend.service.in_use == server.answering == 0
        server.received.clear()
        gc.collect()
        assert len(gc.get_objects()) - before < 5000
        engine.hangs = False
        async with anyio.create_task_group() as tasks:
            for _ in range(8):  # every slot still serves
                tasks.start_soon(generate, backend, ASK)


async def test_nobody_there_is_unavailable() -> None:
    backend = OpenAIBackend(f"http://127.0.0.1:{_free_port()}/v1", "m", max_attempts=1)
    with pytest.raises(Unavailable, match=r"cannot reach http://127\.0\.0\.1"):
        await generate(backend, ASK)
    await backend.aclose()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
