"""A server is killed while it answers many: every call ends in time, in an answer or a typed error."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.router import Router
from agentdiff.errors import BackendError, ProtocolError, RateLimited
from agentdiff.generation import Request, Result, generate
from agentdiff.messages import user
from tests.backends.conformance import CITY
from tests.backends.fakes import DONE, USAGE, Reply, chunk, completion, stream, whole
from tests.backends.server import Listening, Received, serving, until
from tests.backends.test_conformance import VALID

CALLS = 50
DEADLINE_S = 20.0
WORDS = Request(messages=(user("hello"),), deadline_s=DEADLINE_S)
TYPED = Request(messages=(user("hello"),), schema=CITY, deadline_s=DEADLINE_S)


def half(request: Received) -> Reply:
    """The beginning of an answer; who asks for silence gets not even that."""
    if request.path.endswith("/models"):
        return whole({"object": "list", "data": []})
    begin = [] if request.body["messages"][-1]["content"] == "silence" else [chunk(content='{"ci')]
    return stream(*begin, None)


def well(request: Received) -> Reply:
    if "response_format" in request.body:
        return completion(VALID)
    return stream(chunk(content="from b"), chunk(finish="stop"), USAGE, DONE)


async def test_every_call_is_answered_by_the_other_or_ends_in_a_typed_error() -> None:
    silent = Request(messages=(user("silence"),), deadline_s=DEADLINE_S)
    requests = [(WORDS, TYPED, silent)[number % 3] for number in range(CALLS)]
    ended: dict[int, Result | BackendError] = {}

    async def ask(number: int) -> None:
        try:
            ended[number] = await generate(router, requests[number])
        except BackendError as error:
            ended[number] = error

    async with serving(well) as alive:
        doomed = Listening()
        backends = [OpenAIBackend(alive.url, "b", name="b")]
        router = Router(backends)
        with anyio.fail_after(DEADLINE_S + 5):
            async with anyio.create_task_group() as tasks, serving(half) as doomed:
                backends.insert(0, OpenAIBackend(doomed.url, "a", name="a"))
                router = Router(backends)
                for number in range(CALLS):
                    tasks.start_soon(ask, number)
                await until(lambda: doomed.answering == CALLS)
                # It is gone. Calls that come now are answered by the other, too.
            after = [await generate(router, TYPED) for _ in range(8)]
        assert [backend.service.in_use for backend in backends] == [0, 0]
        await router.aclose()

    assert len(ended) == CALLS
    for number, end in ended.items():
        if isinstance(end, BackendError):
            assert requests[number] is WORDS
            assert isinstance(end, ProtocolError)
            assert end.partial == '{"ci', "its caller had text"
        else:
            assert end.text == (VALID if requests[number] is TYPED else "from b")
            assert end.warnings == ("`a` was asked before: ProtocolError",)
            assert end.usage.requests == 2
    assert any(isinstance(end, ProtocolError) for end in ended.values())
    assert Counter(result.text for result in after) == {VALID: 8}
    assert len(doomed.chats) == CALLS, "the circuit was open, and nobody was retried"


@pytest.mark.parametrize("asked_s", ["30", "3"])
async def test_a_long_retry_after_never_outlives_the_deadline(asked_s: str) -> None:
    busy = whole({"error": {"message": "slow"}}, status=429, headers={"retry-after": asked_s})
    async with serving(lambda request: busy) as one, serving(well) as two:
        router = Router([OpenAIBackend(one.url, "a"), OpenAIBackend(two.url, "b")])
        began = anyio.current_time()
        request = Request(messages=(user("hello"),), deadline_s=5.0)
        assert (await generate(router, request)).text == "from b"
        assert anyio.current_time() - began < 2.5
        assert (await generate(router, request)).text == "from b"
        assert len(one.chats) == 1, "it said when to come again"
        await router.aclose()


async def test_alone_a_long_retry_after_is_a_typed_error_at_once() -> None:
    busy = whole({"error": {"message": "slow"}}, status=429, headers={"retry-after": "30"})
    async with serving(lambda request: busy) as one:
        router = Router([OpenAIBackend(one.url, "a")])
        began = anyio.current_time()
        with pytest.raises(RateLimited) as caught:
            await generate(router, Request(messages=(user("hello"),), deadline_s=5.0))
        assert anyio.current_time() - began < 2.5
        assert caught.value.retry_after_s == 30
        await router.aclose()
