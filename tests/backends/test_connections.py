"""Connections of our own: what they send, what they read, and when a whole client is used."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from agentdiff.backends.connections import Connections, _OverClient, _OverTransport
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.generation import Request, generate
from agentdiff.messages import user
from tests.backends.fakes import Reply, completion
from tests.backends.server import Received, serving

ASK = Request(messages=(user("hello"),))


def connections(url: str) -> Connections:
    return Connections(httpx.URL(url), client=None, timeout_s=5.0, concurrency=20)


def squeezed(request: Received) -> Reply:
    """A server that compresses where it may."""
    plain = completion("squeezed")
    body = b"".join(part for part in plain.parts if isinstance(part, bytes))
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers = {**plain.headers, "content-encoding": "gzip"}
        return Reply(parts=[gzip.compress(body)], headers=headers)
    return plain


async def test_a_request_over_the_transport_is_whole() -> None:
    async with serving(squeezed) as server:
        backend = OpenAIBackend(
            server.url, "m", api_key="key-abcdef", headers={"X-Team": "blue"}, streaming=False
        )
        for _ in range(2):
            assert (await generate(backend, ASK)).text == "squeezed"
        first, second = server.received
        assert first.headers == second.headers
        assert first.headers["host"] == server.url.removeprefix("http://").removesuffix("/v1")
        assert first.headers["content-type"] == "application/json"
        assert first.headers["authorization"] == "Bearer key-abcdef"
        assert first.headers["x-team"] == "blue"
        assert first.headers["user-agent"].startswith("agentdiff ")
        length = len(json.dumps(first.body, ensure_ascii=False, separators=(",", ":")).encode())
        assert int(first.headers["content-length"]) == length
        assert server.connections == 1
        await backend.aclose()


async def test_headers_that_are_made_anew_reach_the_server() -> None:
    made = iter("abc")

    async def auth() -> Mapping[str, str]:
        return {"Authorization": f"Bearer token-{next(made)}"}

    async with serving(lambda _: completion("hi")) as server:
        backend = OpenAIBackend(server.url, "m", auth=auth, streaming=False)
        for _ in range(3):
            await generate(backend, ASK)
        said = [request.headers["authorization"] for request in server.received]
        assert said == ["Bearer token-a", "Bearer token-b", "Bearer token-c"]
        await backend.aclose()


@pytest.mark.parametrize(
    ("url", "proxies", "kind"),
    [
        ("http://localhost:8000/v1", {"http": "http://proxy.test:3128"}, _OverTransport),
        ("http://engine.test/v1", {"http": "http://proxy.test:3128"}, _OverClient),
        ("http://engine.test/v1", {}, _OverTransport),
    ],
)
async def test_a_proxy_of_the_environment_needs_the_client(
    url: str, proxies: dict[str, str], kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentdiff.backends.connections.getproxies", lambda: proxies)
    made = connections(url)
    lane, release = await made.take()
    assert isinstance(lane.carrier, kind)
    release()
    await made.aclose()


async def test_certificates_are_loaded_once_for_all_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentdiff.backends.connections.getproxies", dict[str, str])
    loaded: list[object] = []
    load = httpx.create_ssl_context
    monkeypatch.setattr(
        "agentdiff.backends.connections.httpx.create_ssl_context",
        lambda **options: loaded.append(options) or load(**options),
    )
    made = connections("https://engine.test/v1")
    taken = [await made.take() for _ in range(17)]
    assert len({id(lane) for lane, _ in taken}) == 3
    assert made.in_use == 17
    assert len(loaded) == 1
    for _, release in taken:
        release()
    assert made.in_use == 0
    await made.aclose()
