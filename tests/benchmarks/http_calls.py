"""What a call costs on this side, beside the same exchange by a bare httpx loop, in CPU time.

A server in a process of its own answers at once. Both sides keep their connections, take turns,
and are warm; `ours` ends in a `Result`, and, where spans are recorded, makes one with the
OpenTelemetry SDK too. A call is the first of a conversation, or the eleventh of a run, with a tool
and the calls and results of ten steps in it.

    python tests/benchmarks/http_calls.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any

import anyio
import httpx

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.generation import Request, generate
from agentdiff.messages import ToolCall, ToolSpec, assistant, tool_result, user

TEXT = "a short answer of seven words, streamed"
TOOL = ToolSpec(
    name="lookup",
    description="Look up a key.",
    parameters={
        "type": "object",
        "properties": {"key": {"type": "integer"}},
        "required": ["key"],
        "additionalProperties": False,
    },
)


def conversation(steps: int) -> tuple[dict[str, Any], Request]:
    """After so many steps: a body for the bare client, and the same as a request."""
    said: list[dict[str, Any]] = [{"role": "user", "content": "hello there"}]
    messages = [user("hello there")]
    for number in range(steps):
        call = ToolCall(id=f"call_{number}", name="lookup", arguments={"key": number})
        messages += [assistant(tool_calls=[call]), tool_result(call, str(number))]
        function = {"name": "lookup", "arguments": json.dumps({"key": number})}
        made = {"id": call.id, "type": "function", "function": function}
        said += [
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": call.id, "content": str(number)},
        ]
    body: dict[str, Any] = {"model": "m", "messages": said}
    if not steps:
        return body, Request(messages=tuple(messages))
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    tools = [{"type": "function", "function": function}]
    return body | {"tools": tools}, Request(messages=tuple(messages), tools=(TOOL,))


SERVER = "--serve"


class Answering:
    """Raw HTTP/1.1 on asyncio, with two answers made beforehand."""

    def __init__(self) -> None:
        usage = {"prompt_tokens": 7, "completion_tokens": 7}
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": TEXT}}
        body = json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()
        pieces = [
            {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]} for word in TEXT.split()
        ]
        end = [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        events = [f"data: {json.dumps(piece)}\n\n".encode() for piece in pieces + end]
        events.append(b"data: [DONE]\n\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: "
        self.whole = head + b"application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        self.stream = (
            head
            + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
            + b"0\r\n\r\n"
        )

    async def run(self) -> None:
        import asyncio

        answers = self

        class Connection(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                self.transport, self.waiting = transport, b""

            def data_received(self, data: bytes) -> None:
                self.waiting += data
                head, found, body = self.waiting.partition(b"\r\n\r\n")
                if not found:
                    return
                size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                if len(body) >= size:
                    is_stream = b'"stream":true' in body
                    self.waiting = b""
                    self.transport.write(answers.stream if is_stream else answers.whole)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(Connection, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def raw(client: httpx.AsyncClient, url: str, body: dict[str, Any], *, streamed: bool) -> str:
    """The least that gets the text."""
    if not streamed:
        response = await client.post(url, json=body)
        return response.json()["choices"][0]["message"]["content"]
    texts: list[str] = []
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", url, json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                texts += [choice["delta"].get("content", "") for choice in choices]
    return "".join(texts)


async def cpu_ms(call: Callable[[], Awaitable[object]], *, calls: int, at_once: int) -> float:
    """CPU milliseconds of this process for each of `calls`, `at_once` of them together."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            await call()

    began = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    return (time.process_time() - began) / calls * 1000


async def compare(
    base: str, *, streamed: bool, at_once: int, steps: int, calls: int, rounds: int
) -> None:
    url = f"{base}/chat/completions"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(limits=limits, trust_env=False, verify=False)
    backend = OpenAIBackend(base, "m", streaming=streamed)
    body, request = conversation(steps)
    sides: dict[str, Callable[[], Awaitable[object]]] = {
        "httpx": lambda: raw(client, url, body, streamed=streamed),
        "ours": lambda: generate(backend, request),
    }
    for call in sides.values():
        await cpu_ms(call, calls=2 * at_once, at_once=at_once)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, call in sides.items():
            taken[side].append(await cpu_ms(call, calls=calls, at_once=at_once))
    ratio = median(b / a for a, b in zip(taken["httpx"], taken["ours"], strict=True))
    form = "stream" if streamed else "whole"
    print(
        f"{form:6} {at_once:4} at once   {steps:2} steps before   httpx {median(taken['httpx']):6.2f} ms"
        f"   ours {median(taken['ours']):6.2f} ms   ratio {ratio:5.2f}"
    )
    await client.aclose()
    await backend.aclose()


def traced() -> None:
    """Record every span from here on, in memory."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


def main(rounds: int) -> None:
    command = [sys.executable, __file__, SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        base = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        for name in ("no SDK", "spans recorded"):
            if name == "spans recorded":
                traced()
            print(name)
            for streamed in (False, True):
                for at_once, steps, calls in ((1, 0, 150), (1, 10, 150), (100, 0, 200)):
                    anyio.run(
                        partial(
                            compare,
                            base,
                            streamed=streamed,
                            at_once=at_once,
                            steps=steps,
                            calls=calls,
                            rounds=rounds,
                        )
                    )
        server.stdin.close()
    print(
        f"medians of {rounds} rounds, CPU time of the client, Python {platform.python_version()}, "
        f"httpx {httpx.__version__}, {platform.machine()}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    if SERVER in sys.argv:
        anyio.run(Answering().run)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
