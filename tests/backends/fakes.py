"""A server of chat completions without sockets: it speaks by a script and keeps what it is sent."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from agentdiff.backends.openai import OpenAIBackend

URL = "http://engine.test/v1"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server answers: bytes, an exception to raise among them, or None to hang."""

    parts: Sequence[bytes | Exception | None]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Script = Reply | Exception | Callable[[dict[str, Any]], Reply]


class Server:
    """Answers with the next of `script`, the last one again and again."""

    def __init__(self, *script: Script) -> None:
        self.requests: list[httpx.Request] = []
        self.open_streams = 0
        self._script = deque(script)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def backend(self, *, model: str = "tiny", **options: Any) -> OpenAIBackend:
        return OpenAIBackend(URL, model, client=self.client(), **options)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        self.requests.append(request)
        said = self._script[0] if len(self._script) == 1 else self._script.popleft()
        if isinstance(said, Exception):
            raise said
        if callable(said):
            said = said(json.loads(request.content))
        return httpx.Response(said.status, headers=said.headers, stream=_Body(self, said.parts))


class _Body(httpx.AsyncByteStream):
    def __init__(self, server: Server, parts: Iterable[bytes | Exception | None]) -> None:
        self._server = server
        self._parts = iter(parts)
        self._is_open = True
        server.open_streams += 1

    # Not a generator: one that is left early would wait for the garbage collector.
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        for part in self._parts:
            if isinstance(part, bytes):
                return part
            if part is not None:
                raise part
            await anyio.sleep_forever()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._server.open_streams -= 1


def whole(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """One JSON body."""
    sent = {"content-type": "application/json"} | (headers or {})
    return Reply(parts=[json.dumps(body).encode()], status=status, headers=sent)


def completion(content: str | None = None, *, finish: str | None = "stop", **extra: Any) -> Reply:
    """A completion that is not streamed; `extra` goes into the message."""
    message = {"role": "assistant", "content": content, **extra}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return whole({"id": "x", "model": "tiny-v1", "choices": [choice], "usage": usage})


def frame(data: Any) -> bytes:
    """One event."""
    return b"data: " + (data if isinstance(data, str) else json.dumps(data)).encode() + b"\n\n"


def chunk(*, finish: str | None = None, **delta: Any) -> bytes:
    """One chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return frame({"model": "tiny-v1", "choices": [choice]})


USAGE = frame({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
DONE = frame("[DONE]")


def stream(*parts: bytes | Exception | None) -> Reply:
    """A stream of events."""
    return Reply(parts=parts, headers={"content-type": "text/event-stream; charset=utf-8"})


def streamed(text: str, *, size: int = 5) -> Reply:
    """`text` in pieces, then the end, usage and `[DONE]`."""
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return stream(
        chunk(role="assistant", content=""),
        *(chunk(content=piece) for piece in pieces),
        chunk(finish="stop"),
        USAGE,
        DONE,
    )


def call(name: str, arguments: str, *, call_id: str = "call_1") -> dict[str, Any]:
    """A tool call of a message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
