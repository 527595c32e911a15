"""Every fault of real servers, on real sockets, as every profile meets it: no silence, no secrets."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.profiles import PROFILES, EngineProfile
from agentdiff.errors import AgentDiffError, BackendError, OutputInvalid, Rejected
from agentdiff.generation import Commit, Request, Result, generate
from tests.backends.fakes import Reply, Server
from tests.backends.server import Received, serving, until
from tests.backends.server.faulty import CANARY, FAULTS, KEY, Fault, Said


def test_each_of_the_22_kinds_has_a_case() -> None:
    assert {fault.number for fault in FAULTS} == set(range(1, 23))
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)


def saying(said: Said) -> Callable[[Received], Reply]:
    if callable(said):
        return said
    replies = deque([said] if isinstance(said, Reply) else said)

    def answer(request: Received) -> Reply:
        if request.path.endswith("/tokenize"):
            return Reply(parts=[b'{"tokens": [1]}'], headers={"content-type": "application/json"})
        return replies[0] if len(replies) == 1 else replies.popleft()

    return answer


async def meet(
    fault: Fault,
    url: str,
    profile: EngineProfile,
    *,
    streaming: bool,
    client: httpx.AsyncClient | None = None,
) -> Result | AgentDiffError:
    """What comes of the request; nothing is held afterwards."""
    backend = OpenAIBackend(
        url,
        "tiny",
        profile=profile,
        api_key=KEY,
        streaming=streaming,
        max_attempts=1,
        client=client,
    )
    try:
        return await generate(backend, fault.request)
    except AgentDiffError as error:
        return error
    finally:
        assert backend.service.in_use == 0
        await backend.aclose()


def check(fault: Fault, came: Result | AgentDiffError) -> None:
    if isinstance(came, Result):
        check_result(fault, came)
    else:
        check_error(fault, came)


def check_result(fault: Fault, result: Result) -> None:
    assert fault.error is None, result
    assert not fault.text or result.text == fault.text
    assert [dict(call.arguments) for call in result.tool_calls] == list(fault.calls)
    assert len({call.id for call in result.tool_calls}) == len(fault.calls)
    assert fault.also(result)
    assert not fault.attempts or result.stats.attempts == fault.attempts


def check_error(fault: Fault, error: AgentDiffError) -> None:
    if fault.number == 18:  # surfaced, where the profile sends a temperature at all
        assert isinstance(error, Rejected)
        assert "only 1 is allowed" in str(error)
        return
    assert fault.error is not None, error
    assert type(error) is fault.error
    if isinstance(error, BackendError):
        assert error.partial == fault.partial
        assert error.backend == "openai:tiny"
    if isinstance(error, OutputInvalid):
        assert error.text
        assert error.faults
    told = "".join(traceback.format_exception(error, chain=True)) + repr(error) + str(error.args)
    assert not leaks(told)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
async def test_a_fault_ends_in_the_right_outcome_or_a_typed_error_for_every_profile(
    fault: Fault,
) -> None:
    client = httpx.AsyncClient(trust_env=False, verify=False)
    async with serving(saying(fault.said)) as server, client:
        for name, profile in PROFILES.items():
            for streaming in (True, False) if name == "generic" else (name != "mercury",):
                came = await meet(fault, server.url, profile, streaming=streaming, client=client)
                check(fault, came)
        await until(lambda: server.answering == 0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
async def test_a_fault_is_the_same_on_httpx2(fault: Fault) -> None:
    client = pytest.importorskip("httpx2").AsyncClient(trust_env=False, verify=False)
    async with serving(saying(fault.said)) as server, client:
        profile = PROFILES["generic"]
        check(fault, await meet(fault, server.url, profile, streaming=True, client=client))


async def test_no_fault_brings_the_prompt_or_the_key_into_a_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for fault in FAULTS:
        async with serving(saying(fault.said)) as server:
            await meet(fault, server.url, PROFILES["generic"], streaming=True)
    assert "httpcore" in caplog.text
    assert not leaks(caplog.text)


def leaks(told: str) -> bool:
    return any(secret in told for secret in ("swordfish", CANARY, KEY, KEY[:7]))


async def test_what_a_stream_had_said_is_kept_on_the_error_and_was_handed_on() -> None:
    fault = next(f for f in FAULTS if f.id == "15-cut-in-a-chunk")
    async with serving(saying(fault.said)) as server:
        backend = OpenAIBackend(server.url, "tiny")
        said: list[object] = []

        async def listen() -> None:
            async with backend.stream(fault.request) as events:
                async for event in events:
                    said.append(event)  # noqa: PERF401

        with pytest.raises(BackendError) as caught:
            await listen()
        assert said == [Commit("half")]
        assert caught.value.partial == "half"
        await backend.aclose()
        assert len(server.chats) == 1  # not tried again: its text had been handed on


async def test_an_output_that_is_held_is_asked_for_again_where_its_stream_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentdiff.backends.retry.JITTER_S", 0.0)
    broken = next(f for f in FAULTS if f.id == "15-cut-in-a-chunk")
    whole = Reply(
        parts=[b'{"choices": [{"message": {"content": "7"}, "finish_reason": "stop"}]}'],
        headers={"content-type": "application/json"},
    )
    assert isinstance(broken.said, Reply)
    async with serving(saying([broken.said, whole])) as server:
        backend = OpenAIBackend(server.url, "tiny")
        request: Request = replace(broken.request, schema={"type": "integer"})
        result = await generate(backend, request)
        assert (result.text, result.stats.attempts) == ("7", 2)
        await backend.aclose()


SCRIPTS = [
    (fault, b"".join(part for part in fault.said.parts if isinstance(part, bytes)))
    for fault in FAULTS
    if isinstance(fault.said, Reply)
    and "event-stream" in str(fault.said.headers)
    and not any(isinstance(part, Exception) for part in fault.said.parts)
]


@settings(max_examples=60)
@given(st.data())
def test_where_the_reads_of_an_answer_are_cut_makes_no_difference(data: st.DataObject) -> None:
    fault, script = data.draw(st.sampled_from(SCRIPTS))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(script)), max_size=8)))
    parts = [script[a:b] for a, b in pairwise([0, *cuts, len(script)])]
    assert isinstance(fault.said, Reply)
    server = Server(replace(fault.said, parts=parts))

    async def came() -> Result | AgentDiffError:
        try:
            return await generate(server.backend(max_attempts=1), fault.request)
        except AgentDiffError as error:
            return error

    check(fault, anyio.run(came))
    assert server.open_streams == 0
