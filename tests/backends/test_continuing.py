"""A reply that was cut is written on from where it ends, and what servers get wrong about that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.agent import Agent
from agentdiff.backends.continuing import GO_ON, Seam
from agentdiff.errors import AuthenticationFailed, ContextTooLong, OutputInvalid, Rejected
from agentdiff.generation import Request, generate
from agentdiff.messages import assistant, user
from tests.backends.conformance import CITY
from tests.backends.fakes import Reply, Server, completion, streamed, whole

WRITTEN = "Once upon a time there "
REST = "was a king. "
STORY = Request(messages=(user("tell me a story"), assistant(WRITTEN)))
VALID = '{"city": "Oslo", "sunny": false}'


def refusing(body: dict[str, Any]) -> Reply:
    """A server whose template cannot leave a message open."""
    if body.get("continue_final_message"):
        return whole({"error": {"message": "cannot continue", "code": 400}}, status=400)
    return streamed(REST)


@given(st.text("ab \n", min_size=1, max_size=60), st.data())
def test_both_parts_make_the_text_however_it_comes(text: str, data: st.DataObject) -> None:
    prefix = text[: data.draw(st.integers(0, len(text)))]
    sent = prefix.rstrip()
    rest = text[len(sent) :]
    repeats = data.draw(st.booleans()) and len(sent) >= 16
    said = text if repeats else rest
    if not repeats and len(sent) >= 16 and rest.startswith(sent):
        return  # the model itself goes round in circles
    seam, joined = Seam(prefix), prefix
    while said:
        size = data.draw(st.integers(1, len(said)))
        joined += seam.add(said[:size])
        said = said[size:]
    assert joined + seam.end() == text
    assert seam.was_repeated == repeats


@pytest.mark.parametrize("profile", ["vllm", "sglang", "llama-cpp"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_rest_alone_is_committed(profile: str, streaming: bool) -> None:
    server = Server(streamed(REST) if streaming else completion(REST))
    backend = server.backend(profile=profile, streaming=streaming)
    result = await generate(backend, STORY)
    assert (result.text, result.reason, result.warnings) == (REST, "stop", ())
    (body,) = server.bodies
    assert body["messages"][-1] == {"role": "assistant", "content": WRITTEN.rstrip()}
    assert ("continue_final_message" in body) == (profile != "llama-cpp")


async def test_a_profile_that_does_not_continue_sends_the_message_as_it_is() -> None:
    server = Server(streamed(REST))
    await generate(server.backend(profile="generic"), STORY)
    assert server.bodies[0]["messages"][-1]["content"] == WRITTEN
    assert "continue_final_message" not in server.bodies[0]


async def test_what_a_server_repeats_is_dropped_and_told() -> None:
    server = Server(streamed(WRITTEN + REST))
    result = await generate(server.backend(profile="vllm"), STORY)
    assert result.text == REST
    assert "repeated" in result.warnings[0]


async def test_a_server_that_refuses_is_asked_in_words_from_then_on() -> None:
    server = Server(refusing)
    backend = server.backend(profile="vllm")
    assert backend.capabilities.continues
    result = await generate(backend, STORY)
    assert result.text == REST
    assert "asked in words to go on" in result.warnings[0]
    assert result.stats.attempts == 2
    said = server.bodies[-1]["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert said[-1]["content"] == GO_ON
    assert not backend.capabilities.continues


async def test_a_value_that_is_asked_for_in_words_is_not_begun_anew() -> None:
    half = len(VALID) // 2

    def refuses(body: dict[str, Any]) -> Reply:
        if body.get("continue_final_message"):
            return refusing(body)
        return completion(VALID if "response_format" in body else VALID[half:])

    request = Request(messages=(user("where?"), assistant(VALID[:half])), schema=CITY)
    server = Server(refuses)
    result = await generate(server.backend(profile="vllm", streaming=False), request)
    assert (VALID[:half] + result.text, result.enforcement) == (VALID, "validated")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(401, "", AuthenticationFailed), (400, "context_length_exceeded", ContextTooLong)],
)
async def test_other_refusals_are_no_matter_of_continuing(
    status: int, code: str, kind: type[Rejected]
) -> None:
    server = Server(whole({"error": {"message": code, "code": code}}, status=status))
    backend = server.backend(profile="vllm")
    with pytest.raises(kind):
        await generate(backend, STORY)
    assert len(server.requests) == 1
    assert backend.capabilities.continues


async def test_both_ways_refused_is_an_error_and_proves_nothing() -> None:
    server = Server(whole({"error": {"message": "no such model"}}, status=404))
    backend = server.backend(profile="sglang")
    with pytest.raises(Rejected, match="no such model"):
        await generate(backend, STORY)
    assert backend.capabilities.continues


async def test_a_value_is_held_to_its_schema_as_a_whole() -> None:
    half = len(VALID) // 2
    request = Request(messages=(user("where?"), assistant(VALID[:half])), schema=CITY)
    server = Server(streamed(VALID[half:]))
    result = await generate(server.backend(profile="vllm"), request)
    assert (VALID[:half] + result.text, result.enforcement) == (VALID, "validated")
    (body,) = server.bodies
    # The engine's grammar would begin a value of its own in the middle of this one.
    assert "response_format" not in body
    assert "JSON Schema" in body["messages"][0]["content"]

    server = Server(streamed(VALID.replace("Oslo", "Rome")))  # a value of its own
    with pytest.raises(OutputInvalid, match="is not JSON") as caught:
        await generate(server.backend(profile="vllm"), request)
    assert caught.value.usage is not None


async def test_a_run_goes_on_where_its_budget_cut_it() -> None:
    def cut_first(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "assistant":
            return completion(REST)
        return completion(WRITTEN, finish="length")

    server = Server(cut_first)
    agent = Agent(server.backend(profile="sglang", streaming=False))
    result = await agent.run("tell me a story")
    assert result.output == WRITTEN + REST
    assert result.usage.requests == 2
    assert json.loads(server.requests[-1].content)["continue_final_message"] is True


async def test_a_conversation_that_ends_otherwise_is_not_continued() -> None:
    server = Server(streamed("Done."))
    called = replace(STORY, messages=(*STORY.messages, user("go on")))
    assert (await generate(server.backend(profile="vllm"), called)).text == "Done."
    assert "continue_final_message" not in server.bodies[0]
