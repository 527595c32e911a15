"""The contract, held over every backend that needs no model on this machine."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentdiff.backends.mercury import mercury
from agentdiff.backends.scripted import Said, Scripted
from agentdiff.errors import RateLimited
from agentdiff.generation import Backend, Request
from agentdiff.messages import ToolCall
from tests.backends.conformance import CHECKS, Subject
from tests.backends.fakes import (
    DONE,
    USAGE,
    Reply,
    Server,
    call,
    chunk,
    completion,
    stream,
    streamed,
    whole,
)

VALID = '{"city": "Zürich", "sunny": true}'
ARGUMENTS = '{"text": "buy milk"}'


def echo(prompt: str) -> str:
    return f"You said: {prompt} ✓"


def scripted() -> Backend:
    def reply(request: Request) -> Said:
        if request.schema is not None:
            return VALID
        if request.tools:
            return ToolCall(id="call_1", name="add_note", arguments=json.loads(ARGUMENTS))
        return echo(request.messages[-1].content)

    return Scripted([reply] * 20)


def completed(body: dict[str, Any]) -> Reply:
    if "response_format" in body:
        return completion(VALID)
    if "tools" in body:
        return completion(tool_calls=[call("add_note", ARGUMENTS)], finish="tool_calls")
    return completion(echo(body["messages"][-1]["content"]))


def in_pieces(body: dict[str, Any]) -> Reply:
    if "response_format" in body:
        return streamed(VALID)
    if "tools" in body:
        first = {"index": 0, "id": "call_1", "function": {"name": "add_note", "arguments": ""}}
        rest = [
            {"index": 0, "function": {"arguments": part}} for part in (ARGUMENTS[:5], ARGUMENTS[5:])
        ]
        return stream(
            chunk(tool_calls=[first]),
            *(chunk(tool_calls=[fragment]) for fragment in rest),
            chunk(finish="tool_calls"),
            USAGE,
            DONE,
        )
    return streamed(echo(body["messages"][-1]["content"]))


def diffusing(body: dict[str, Any]) -> Reply:
    if "tools" in body:
        return in_pieces(body)
    text = VALID if "response_format" in body else echo(body["messages"][-1]["content"])
    half = text[: len(text) // 2] + "?" * 20
    return stream(
        chunk(content="?" * len(text)),
        chunk(content=half),
        chunk(content=text),
        chunk(finish="stop"),
        USAGE,
        DONE,
    )


def hosted(
    name: str, answer: Callable[[dict[str, Any]], Reply], make: Callable[[Server], Backend]
) -> Subject:
    servers: dict[int, Server] = {}

    def serve(server: Server) -> Backend:
        backend = make(server)
        servers[id(backend)] = server
        return backend

    return Subject(
        name=name,
        open=lambda: serve(Server(answer)),
        failing=lambda: serve(Server(whole({"error": {"message": "no"}}, status=400))),
        held=lambda backend: servers[id(backend)].open_streams,
    )


SUBJECTS = (
    Subject(
        name="scripted",
        open=scripted,
        failing=lambda: Scripted([RateLimited("slow down", backend="scripted")]),
    ),
    hosted("openai", completed, lambda server: server.backend(streaming=False)),
    hosted("openai-streamed", in_pieces, lambda server: server.backend()),
    hosted("openai-that-does-not-stream", completed, lambda server: server.backend()),
    hosted("mercury", completed, lambda s: mercury("mercury-2", api_key="key", client=s.client())),
    hosted(
        "mercury-drafts",
        diffusing,
        lambda s: mercury("mercury-2", api_key="key", client=s.client(), drafts=True),
    ),
)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_backend_keeps_the_contract(
    check: Callable[[Subject], Awaitable[None]], subject: Subject
) -> None:
    await check(subject)
