"""HTTP/1.1 on a listening socket: just enough, each part of an answer a write of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import SocketAttribute, SocketStream

from tests.backends.fakes import Reply


@dataclass(frozen=True, kw_only=True)
class Received:
    """A request, as it came over the wire."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


Answers = Callable[[Received], Reply]


@dataclass
class Listening:
    """A server that listens; what it saw and who is there."""

    url: str = ""
    """Where its API begins."""
    received: list[Received] = field(default_factory=list[Received])
    connections: int = 0
    """All that were ever made."""
    open_connections: int = 0
    answering: int = 0
    """Requests whose answer is under way."""

    @property
    def chats(self) -> list[dict[str, Any]]:
        """The bodies of the chat completions that were asked for."""
        return [r.body for r in self.received if r.path.endswith("/chat/completions")]


@asynccontextmanager
async def serving(answer: Answers, *, port: int = 0) -> AsyncGenerator[Listening]:
    """Serve `answer` until the block is left; whatever is open then is cut off.

    A part that is an exception cuts the connection, one that is None hangs until the client has gone.
    """
    server = Listening()

    async def serve(stream: SocketStream) -> None:
        server.connections += 1
        server.open_connections += 1
        try:
            async with stream:
                await _converse(stream, server, answer)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass  # the client has gone
        finally:
            server.open_connections -= 1

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what the other side does in its own time."""
    with anyio.fail_after(20):
        while not is_so():
            await anyio.lowlevel.checkpoint()


async def _converse(stream: SocketStream, server: Listening, answer: Answers) -> None:
    waiting = b""
    while True:
        request, waiting = await _receive(stream, waiting)
        server.received.append(request)
        server.answering += 1
        try:
            if not await _say(stream, answer(request)):
                return
        finally:
            server.answering -= 1


async def _receive(stream: SocketStream, waiting: bytes) -> tuple[Received, bytes]:
    while b"\r\n\r\n" not in waiting:
        waiting += await stream.receive()
    head, _, rest = waiting.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    length = int(headers.get("content-length", 0))
    while len(rest) < length:
        rest += await stream.receive()
    method, path, _ = first.split(" ")
    body = json.loads(rest[:length]) if length else {}
    return Received(method=method, path=path, headers=headers, body=body), rest[length:]


async def _say(stream: SocketStream, reply: Reply) -> bool:
    """Whether the connection is good for more."""
    headers = {"transfer-encoding": "chunked"} | reply.headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    await stream.send(f"HTTP/1.1 {reply.status} Said\r\n{lines}\r\n".encode())
    for part in reply.parts:
        if isinstance(part, Exception):
            return False
        if part is None:
            await stream.receive()  # returns when the client has gone, by raising
        elif part:
            await stream.send(b"%x\r\n%b\r\n" % (len(part), part))
    await stream.send(b"0\r\n\r\n")
    return True
