"""The client on real sockets: connections are kept where they can be, closed where they must be."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from agentdiff.backends import connect
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.errors import Unavailable
from agentdiff.generation import Backend, Commit, Request, generate
from agentdiff.messages import user
from tests.backends.fakes import DONE, USAGE, chunk

ASK = Request(messages=(user("hello"),))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def part(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Engine:
    """Answers `hi` in a stream, or, where it is told to hang, its first piece only."""

    port: int = 0
    hangs: bool = False
    connections: int = 0
    gone: int = 0

    async def serve(self, stream: SocketStream) -> None:
        self.connections += 1
        try:
            async with stream:
                while True:
                    request = b""
                    while not request.endswith(b"}"):
                        request += await stream.receive()
                    await stream.send(HEAD + part(chunk(content="hi")))
                    if not self.hangs:
                        await stream.send(part(chunk(finish="stop") + USAGE + DONE) + part(b""))
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self.gone += 1


@asynccontextmanager
async def serving(engine: Engine) -> AsyncGenerator[Backend]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    engine.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, engine.serve)
        backend = connect(f"openai:http://127.0.0.1:{engine.port}/v1#m")
        try:
            yield backend
        finally:
            await backend.aclose()
            tasks.cancel_scope.cancel()


async def test_one_connection_serves_one_call_after_the_other() -> None:
    engine = Engine()
    async with serving(engine) as backend:
        for _ in range(5):
            assert (await generate(backend, ASK)).text == "hi"
        assert (engine.connections, engine.gone) == (1, 0)


async def test_a_stream_that_is_left_is_closed_and_the_next_one_works() -> None:
    engine = Engine(hangs=True)
    async with serving(engine) as backend:
        for number in range(1, 4):
            async with backend.stream(ASK) as events:
                assert await anext(events) == Commit("hi")
            await until(lambda number=number: engine.gone == number)
        engine.hangs = False
        assert (await generate(backend, ASK)).text == "hi"


async def test_a_cancelled_call_is_closed_wherever_it_is() -> None:
    engine = Engine(hangs=True)
    async with serving(engine) as backend:
        for number in range(1, 4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(generate, backend, ASK)
                await until(lambda number=number: engine.connections == number)
                tasks.cancel_scope.cancel()
            await until(lambda number=number: engine.gone == number)
        engine.hangs = False
        assert (await generate(backend, ASK)).text == "hi"


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not is_so():
            await anyio.lowlevel.checkpoint()


async def test_nobody_there_is_unavailable() -> None:
    backend = OpenAIBackend(f"http://127.0.0.1:{_free_port()}/v1", "m", max_attempts=1)
    with pytest.raises(Unavailable, match=r"cannot reach http://127\.0\.0\.1"):
        await generate(backend, ASK)
    await backend.aclose()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
