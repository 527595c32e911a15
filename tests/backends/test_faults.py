"""Errors by status and by body, what they may say, and when a request is sent again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import httpx
import pytest

from agentdiff.backends import retry
from agentdiff.backends.faults import retry_after_s
from agentdiff.errors import (
    AuthenticationFailed,
    BackendError,
    ContextTooLong,
    RateLimited,
    Rejected,
    TimedOut,
    Unavailable,
)
from agentdiff.generation import Request, generate
from agentdiff.messages import ToolCall, assistant, system, tool_result, user
from tests.backends.fakes import DONE, Reply, Server, chunk, completion, frame, stream, whole

CANARY = "the launch code is swordfish-0042"
KEY = "key-abcdefghijkl"
MADE = ToolCall(id="1", name="t", arguments={"text": "a canary in the arguments of a call"})
ASK = Request(
    messages=(
        system("answer in one word"),
        user(CANARY),
        assistant(tool_calls=[MADE]),
        tool_result(MADE, "a canary in what a tool returned"),
    )
)
SOON = {"retry-after-ms": "1"}


async def fault(reply: Any, **options: Any) -> BackendError:
    server = Server(reply)
    with pytest.raises(BackendError) as caught:
        await generate(server.backend(api_key=KEY, max_attempts=1, **options), ASK)
    assert server.open_streams == 0
    assert caught.value.backend == "openai:tiny"
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, Rejected),
        (400, Rejected),
        (401, AuthenticationFailed),
        (403, AuthenticationFailed),
        (404, Rejected),
        (408, TimedOut),
        (409, Unavailable),
        (413, ContextTooLong),
        (422, Rejected),
        (429, RateLimited),
        (500, Unavailable),
        (503, Unavailable),
        (504, TimedOut),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b'"no"', b"{}", b"[" * 99_999])
async def test_the_status_decides(status: int, kind: type[BackendError], body: bytes) -> None:
    error = await fault(Reply(parts=[body], status=status))
    assert type(error) is kind
    assert error.status == status
    assert str(status) in str(error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "odd field", "code": "bad_field"}}, "400 bad_field: odd field"),
        ({"error": {"message": [{"loc": ["body", 0], "msg": "odd"}]}}, "400: body.0: odd"),
        ({"error": "odd field"}, "400: odd field"),
        ({"object": "error", "message": "odd", "type": "BadRequestError"}, "BadRequestError: odd"),
        ({"detail": "odd field"}, "400: odd field"),
        (
            {"detail": [{"loc": ["body", "n"], "msg": "odd", "input": CANARY}, 7]},
            "400: body.n: odd",
        ),
        ({"title": "odd", "status": 400}, "400: odd"),
        ({"error": {"code": 400, "message": "a" * 999}}, "a" * 300),
    ],
)
async def test_every_shape_of_error_is_read(body: Any, words: str) -> None:
    error = await fault(whole(body, status=400))
    assert words in str(error)
    assert "swordfish" not in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    "message",
    [
        f"cannot parse: {CANARY}",
        f"cannot parse {json.dumps([CANARY.upper(), CANARY[5:25]])}",
        "near: a canary in what a tool returned",
        "near: a canary in the arguments of a call",
        f"no such key {KEY}",
        f"no such key {KEY[:8]}***",
    ],
)
@pytest.mark.parametrize("shape", ["nested", "flat", "detail", "stream", "ok"])
async def test_neither_prompt_nor_key_is_repeated(message: str, shape: str) -> None:
    nested = {"error": {"message": message, "code": message}}
    replies = {
        "nested": whole(nested, status=400),
        "flat": whole({"object": "error", "message": message}, status=500),
        "detail": whole({"detail": [{"loc": [message], "msg": message}]}, status=422),
        "stream": stream(chunk(content=""), frame(nested)),
        "ok": whole(nested),
    }
    said = str(await fault(replies[shape]))
    assert "left out" in said
    for secret in ("swordfish", "canary", "key-abc"):
        assert secret not in said


async def test_a_refused_key_says_where_to_set_it_and_nothing_else() -> None:
    error = await fault(whole({"error": {"message": f"bad key {KEY}"}}, status=401))
    assert str(error) == (
        "openai:tiny: the key was refused (401); pass `api_key=` or set AGENTDIFF_API_KEY"
    )


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (400, {"code": "context_length_exceeded", "message": "too big"}, ContextTooLong),
        (400, {"message": "This model's maximum context length is 4096 tokens"}, ContextTooLong),
        (429, {"code": "insufficient_quota", "message": "pay"}, Rejected),
        (200, {"code": 429, "message": "slow down"}, RateLimited),
        (200, {"code": "overloaded", "message": "busy"}, Unavailable),
    ],
)
async def test_the_body_may_say_it_better(
    status: int, said: dict[str, Any], kind: type[BackendError]
) -> None:
    assert type(await fault(whole({"error": said}, status=status))) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectError("refused"), Unavailable),
        (httpx.RemoteProtocolError("disconnected"), Unavailable),
        (httpx.ConnectTimeout(""), TimedOut),
        (httpx.ReadTimeout(""), TimedOut),
    ],
)
async def test_a_server_that_does_not_answer(error: Exception, kind: type[BackendError]) -> None:
    said = await fault(error)
    assert type(said) is kind
    assert "http://engine.test/v1" in str(said)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1", "x-should-retry": "false"}, math.inf),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after_s({"retry-after": soon}) == pytest.approx(30, abs=5)


BUSY = whole({"error": {"message": "busy"}}, status=503, headers=SOON)


async def test_what_may_pass_is_tried_again_and_counted() -> None:
    server = Server(BUSY, replace(BUSY, status=429), completion("hi"))
    result = await generate(server.backend(), ASK)
    assert (result.text, result.stats.attempts, result.usage.requests) == ("hi", 3, 3)
    assert server.open_streams == 0


@pytest.mark.parametrize(
    "reply",
    [
        replace(BUSY, status=400),
        replace(BUSY, status=401),
        replace(BUSY, headers=SOON | {"x-should-retry": "false"}),
        # Longer than anyone would wait for.
        replace(BUSY, headers={"retry-after": "3600"}),
    ],
)
async def test_what_will_not_pass_is_not_tried_again(reply: Reply) -> None:
    server = Server(reply)
    with pytest.raises(BackendError):
        await generate(server.backend(), ASK)
    assert len(server.requests) == 1


async def test_attempts_are_bounded() -> None:
    server = Server(BUSY)
    with pytest.raises(Unavailable, match="503"):
        await generate(server.backend(max_attempts=3), ASK)
    assert len(server.requests) == 3


async def test_a_stream_is_tried_again_until_its_first_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "JITTER_S", 0.0)
    error = frame({"error": {"code": 503, "message": "busy"}})
    server = Server(
        stream(chunk(role="assistant", content=""), error),
        stream(chunk(role="assistant"), httpx.ReadError("reset")),
        stream(chunk(content="hi", finish="stop"), DONE),
    )
    result = await generate(server.backend(), ASK)
    assert (result.text, result.stats.attempts) == ("hi", 3)
    failing = Server(stream(chunk(content="h"), error))
    with pytest.raises(Unavailable):
        await generate(failing.backend(), ASK)
    assert len(failing.requests) == 1
    assert server.open_streams == failing.open_streams == 0


async def test_a_wait_beyond_the_deadline_fails_at_once() -> None:
    server = Server(replace(BUSY, status=429, headers={"retry-after": "30"}))
    with anyio.fail_after(5), pytest.raises(RateLimited) as caught:
        await generate(server.backend(), replace(ASK, deadline_s=10.0))
    assert caught.value.retry_after_s == 30
    assert len(server.requests) == 1


@pytest.mark.parametrize("parts", [(None,), (chunk(content="hi"), None)], ids=["first", "middle"])
async def test_a_deadline_ends_a_stream_that_hangs(parts: tuple[bytes | None, ...]) -> None:
    server = Server(stream(*parts))
    with anyio.fail_after(5), pytest.raises(TimedOut, match="deadline_s") as caught:
        await generate(server.backend(), replace(ASK, deadline_s=0.02))
    assert caught.value.backend == "openai:tiny"
    assert server.open_streams == 0


async def test_the_time_of_the_caller_is_not_cut_short_by_the_deadline() -> None:
    server = Server(stream(chunk(content="hi"), chunk(content="!", finish="stop"), DONE))
    async with server.backend().stream(replace(ASK, deadline_s=0.3)) as events:
        await anext(events)
        await anyio.sleep(0.3)  # the caller is busy, and is not cancelled
        with pytest.raises(TimedOut):
            await anext(events)
