"""What is sent, what comes of the answers, and what comes of the answers that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.profiles import GENERIC
from agentdiff.errors import ConfigurationError, OutputInvalid, ProtocolError, Rejected, SchemaError
from agentdiff.generation import Budget, Commit, Event, Finish, Request, Sampling, generate
from agentdiff.messages import ToolCall, ToolSpec, Usage, assistant, system, tool_result, user
from tests.backends.conformance import CITY, NOTE
from tests.backends.fakes import (
    DONE,
    URL,
    Reply,
    Server,
    call,
    chunk,
    completion,
    frame,
    stream,
    streamed,
    whole,
)

ASK = Request(messages=(user("hello"),))
STRUCTURED = Request(messages=(user("where?"),), schema=CITY)
NOTING = Request(messages=(user("note it"),), tools=(NOTE,))


async def sent(request: Request, **options: Any) -> dict[str, Any]:
    server = Server(completion('{"city": "Bern", "sunny": false}'))
    await generate(server.backend(**options), request)
    return server.bodies[0]


async def calls_from(*fragments: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """The calls that a stream of fragments makes."""
    chunks = [chunk(tool_calls=fragment) for fragment in fragments]
    server = Server(stream(*chunks, chunk(finish="tool_calls"), DONE))
    result = await generate(server.backend(), NOTING)
    return [(call.id, call.name, dict(call.arguments)) for call in result.tool_calls]


def part(**fields: Any) -> dict[str, Any]:
    """A fragment of a tool call; `name` and `arguments` go into `function`."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**fields, "function": function}


# --- What is sent ---


async def test_only_what_the_caller_set_is_sent() -> None:
    assert await sent(ASK, streaming=False) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
    }
    assert await sent(ASK) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_ceiling_is_the_cap_and_sampling_goes_along() -> None:
    request = replace(
        ASK,
        budget=Budget(target=8, ceiling=32),
        sampling=Sampling(temperature=0.0, top_p=0.5, seed=7),
    )
    body = await sent(request)
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["seed"]) == (32, 0, 0.5, 7)
    newer = await sent(request, profile=replace(GENERIC, length_field="max_completion_tokens"))
    assert newer["max_completion_tokens"] == 32
    assert "max_tokens" not in newer


async def test_a_conversation_with_tools_is_written_as_the_protocol_says() -> None:
    made = ToolCall(id="call_9", name="add_note", arguments={"text": "Zürich"})
    request = Request(
        messages=(
            system("be brief"),
            user("note it"),
            assistant(tool_calls=[made]),
            tool_result(made, "saved"),
        ),
        tools=(NOTE, ToolSpec(name="now")),
        tool_choice="required",
    )
    body = await sent(request)
    assert body["tool_choice"] == "required"
    assert body["tools"][1]["function"] == {
        "name": "now",
        "parameters": {"type": "object", "properties": {}},
    }
    assert body["tools"][0]["function"]["description"] == "Save a note"
    answer, result = body["messages"][2:]
    assert answer["content"] == ""
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"text": "Zürich"}
    assert result == {"role": "tool", "content": "saved", "tool_call_id": "call_9"}


async def test_a_schema_is_strict_only_where_strict_takes_it() -> None:
    open_schema = {"type": "object", "title": "A city!", "properties": {"city": {}}}
    body = await sent(replace(STRUCTURED, schema=open_schema))
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "A_city_", "schema": open_schema},
    }
    closed: dict[str, Any] = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "sunny": {"type": "boolean"}},
        "required": ["sunny", "city"],
        "additionalProperties": False,
    }
    body = await sent(replace(STRUCTURED, schema=closed))
    assert body["response_format"]["json_schema"] == {
        "name": "output",
        "schema": closed,
        "strict": True,
    }
    nested = closed | {"properties": closed["properties"] | {"city": open_schema}}
    body = await sent(replace(STRUCTURED, schema={"anyOf": [{"type": "object"}, nested]}))
    assert "strict" not in body["response_format"]["json_schema"]


async def test_a_request_that_cannot_be_sent_is_refused_before_it_is() -> None:
    server = Server(completion("hi"))
    backend = server.backend()
    with pytest.raises(ConfigurationError, match="needs `tools`"):
        await generate(backend, replace(ASK, tool_choice="required"))
    with pytest.raises(SchemaError, match="not a JSON Schema"):
        await generate(backend, replace(ASK, schema={"type": "objekt"}))
    assert server.requests == []


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"max_attempts": 0}, {"model": " "}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Server().backend(**options)


async def test_a_closed_backend_says_so_and_an_injected_client_stays_open() -> None:
    client = Server(completion("hi")).client()
    backend = OpenAIBackend(URL, "tiny", client=client)
    await backend.aclose()
    with pytest.raises(ConfigurationError, match="closed"):
        await generate(backend, ASK)
    assert not client.is_closed


# --- What comes of the answers ---


async def test_a_stream_is_told_as_it_comes() -> None:
    server = Server(streamed("Hello there"))
    async with server.backend().stream(ASK) as stream_:
        events: list[Event] = [event async for event in stream_]
    assert events[:-1] == [Commit("Hello"), Commit(" ther"), Commit("e")]
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.usage == Usage(input_tokens=7, output_tokens=3)
    assert (finish.model, finish.reason, finish.enforcement) == ("tiny-v1", "stop", "none")
    assert finish.stats.first_commit_s is not None
    assert finish.stats.total_s is not None
    assert 0 <= finish.stats.first_commit_s <= finish.stats.total_s


NOISY = stream(
    b": OPENROUTER PROCESSING\n\n",
    frame({"choices": [], "model": "tiny-v1"}),
    b":\r\n\r\ndata: : keepalive\r\n\r\ndata:\r\n\r\n",
    chunk(role="assistant", content=None, reasoning_content="let me think"),
    chunk(content="Gr\u00fc\u00dfe").replace(b"\\u00fc", "\u00fc".encode())[:-30],
    chunk(content="Gr\u00fc\u00dfe").replace(b"\\u00fc", "\u00fc".encode())[-30:],
    frame({"choices": [{"index": 1, "delta": {"content": "another choice"}}]}),
    frame({"choices": [{"delta": {"content": [{"type": "text", "text": " aus"}]}}]}),
    frame({"choices": [{"delta": {"content": " Bern", "tool_calls": []}, "finish_reason": "stop"}],
           "usage": {"prompt_tokens": None, "completion_tokens": 4}}),
    frame({"choices": [{"delta": None}], "usage": None}),
)  # fmt: skip


async def test_noise_gaps_and_nulls_do_no_harm_and_done_may_be_missing() -> None:
    result = await generate(Server(NOISY).backend(), ASK)
    assert result.text == "Grüße aus Bern"
    assert result.usage == Usage(output_tokens=4)


async def test_missing_usage_is_unknown() -> None:
    server = Server(stream(chunk(content="hi", finish="stop"), DONE))
    assert (await generate(server.backend(), ASK)).usage == Usage()


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stop", "stop"), ("length", "length"), ("end_turn", "stop"), ("max_tokens", "length")],
)
async def test_reasons_of_other_engines_are_understood(said: str, reason: str) -> None:
    result = await generate(Server(completion("hi", finish=said)).backend(), ASK)
    assert (result.reason, result.warnings) == (reason, ())


async def test_an_unknown_reason_and_an_empty_reply_are_told() -> None:
    result = await generate(Server(completion(None, finish="tired")).backend(), ASK)
    assert result.reason == "stop"
    assert result.warnings == (
        "finish_reason 'tired' is unknown; taken as 'stop'",
        "the reply is empty",
    )


async def test_calls_count_more_than_the_reason() -> None:
    server = Server(completion(None, tool_calls=[call("add_note", '{"text": "a"}')], finish="stop"))
    result = await generate(server.backend(), NOTING)
    assert result.reason == "tool_calls"
    assert result.tool_calls[0].arguments == {"text": "a"}
    assert result.enforcement == "validated"


async def test_fragments_of_a_call_are_joined_by_index() -> None:
    assert await calls_from(
        [part(index=0, id="a", name="add_note", arguments="")],
        [part(index=1, id="b", name="add_note", arguments='{"te')],
        [part(index=0, arguments='{"text": ')],
        [part(index=1, arguments='xt": "two"}'), part(index=0, arguments='"one"}')],
    ) == [("a", "add_note", {"text": "one"}), ("b", "add_note", {"text": "two"})]


async def test_the_same_index_with_another_id_and_name_is_another_call() -> None:
    assert await calls_from(
        [part(index=0, id="a", name="add_note", arguments='{"text": "one"}')],
        [part(index=0, id="b", name="add_note", arguments='{"text":')],
        [part(index=0, id="b", arguments=' "two"}')],
    ) == [("a", "add_note", {"text": "one"}), ("b", "add_note", {"text": "two"})]


async def test_a_fresh_id_in_every_fragment_does_not_split_a_call() -> None:
    assert await calls_from(
        [part(index=0, id="a", name="add_note", arguments='{"text":')],
        [part(index=0, id="z", name=None, arguments=' "one"}')],
    ) == [("a", "add_note", {"text": "one"})]


async def test_fragments_without_an_index_are_told_apart() -> None:
    assert await calls_from(
        [part(id="a", name="add_note", arguments='{"text":')],
        [part(arguments=' "one"}')],
        [part(id="b", name="add_note", arguments={"text": "two"})],
    ) == [("a", "add_note", {"text": "one"}), ("b", "add_note", {"text": "two"})]


async def test_missing_and_doubled_ids_are_made_up() -> None:
    made = await calls_from(
        [part(name="add_note", arguments=""), part(name="add_note", arguments=None)],
        [part(index=5, id="x", name="now", arguments="{}"), part(index=6, id="x", name="now")],
    )
    assert [arguments for _, _, arguments in made] == [{}, {}, {}, {}]
    assert len({call_id for call_id, _, _ in made}) == 4
    assert all(call_id for call_id, _, _ in made)


async def test_calls_that_were_cut_at_the_cap_are_not_made() -> None:
    cut = [part(index=0, id="a", name="add_note", arguments='{"text": "on')]
    server = Server(stream(chunk(tool_calls=cut), chunk(finish="length"), DONE))
    result = await generate(server.backend(), NOTING)
    assert (result.reason, result.tool_calls) == ("length", ())


@pytest.mark.parametrize("arguments", ['{"text": "on', "[1]", '"text"', '{"n": NaN}'])
async def test_arguments_that_are_no_object_are_kept_for_whoever_makes_the_calls(
    arguments: str,
) -> None:
    written = call("add_note", arguments)
    server = Server(completion(None, tool_calls=[written], finish="tool_calls"))
    result = await generate(server.backend(), NOTING)
    made = result.tool_calls[0]
    assert (result.reason, result.enforcement) == ("tool_calls", "none")
    assert (made.name, made.arguments, made.malformed) == ("add_note", {}, arguments)
    assert "the arguments of the call to 'add_note' are" in result.warnings[0]
    again = replace(NOTING, messages=(*NOTING.messages, assistant(tool_calls=[made])))
    body = await sent(again)
    assert body["messages"][-1]["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_arguments_that_do_not_fit_the_tool_are_passed_on_and_told() -> None:
    server = Server(completion(None, tool_calls=[call("add_note", '{"txt": 1}')]))
    result = await generate(server.backend(), NOTING)
    assert result.tool_calls[0].arguments == {"txt": 1}
    assert result.enforcement == "none"


async def test_a_required_call_that_does_not_come_is_told() -> None:
    result = await generate(
        Server(completion("no")).backend(), replace(NOTING, tool_choice="required")
    )
    assert result.warnings == ("a tool call was required, and the server answered without one",)


# --- Structured outputs ---


async def test_what_the_server_enforced_is_believed_only_after_a_look() -> None:
    valid = '{"city": "Bern", "sunny": true}'
    for profile, enforcement in (("openai", "native"), ("generic", "validated")):
        server = Server(streamed(valid))
        assert (
            await generate(server.backend(profile=profile), STRUCTURED)
        ).enforcement == enforcement
    server = Server(streamed("It is sunny in Bern."))
    events: list[Event] = []
    with pytest.raises(OutputInvalid, match="openai:tiny: the output is not JSON") as caught:
        async with server.backend(profile="openai").stream(STRUCTURED) as stream_:
            events += [event async for event in stream_]
    assert events == []  # nothing is committed that is not known to be valid
    assert "Bern" not in str(caught.value)
    assert caught.value.usage == Usage(input_tokens=7, output_tokens=3)
    assert caught.value.text == "It is sunny in Bern."


async def test_what_is_wrong_with_an_output_is_listed_for_a_repair() -> None:
    server = Server(streamed('{"city": 7, "sunny": "yes"}'))
    with pytest.raises(OutputInvalid) as caught:
        await generate(server.backend(), STRUCTURED)
    assert sorted(caught.value.faults) == [
        "`$.city` does not satisfy the schema: 7 is not of type 'string'",
        "`$.sunny` does not satisfy the schema: 'yes' is not of type 'boolean'",
    ]


async def test_a_code_fence_around_an_output_is_taken_off() -> None:
    server = Server(streamed('```json\n{"city": "Bern", "sunny": true}\n```'))
    result = await generate(server.backend(profile="openai"), STRUCTURED)
    assert result.text == '{"city": "Bern", "sunny": true}'
    assert result.enforcement == "validated"  # an engine that decodes by a schema writes no fence


async def test_an_output_cut_at_the_cap_is_no_invalid_output() -> None:
    cut = '{"city": "Be'
    result = await generate(Server(completion(cut, finish="length")).backend(), STRUCTURED)
    assert (result.reason, result.enforcement, result.text) == ("length", "none", cut)


async def test_a_server_that_says_stop_at_the_cap_is_not_believed() -> None:
    budget = Budget(target=3, ceiling=3)  # the completion counts 3 tokens
    result = await generate(
        Server(completion('{"city": "Be')).backend(), replace(STRUCTURED, budget=budget)
    )
    assert (result.reason, result.enforcement, result.budget) == ("length", "none", budget)


async def test_a_call_instead_of_the_output_needs_no_schema() -> None:
    server = Server(completion(None, tool_calls=[call("add_note", '{"text": "a"}')]))
    result = await generate(server.backend(), replace(STRUCTURED, tools=(NOTE,)))
    assert result.reason == "tool_calls"


# --- Answers that are wrong ---

HALF = chunk(content="half of it")


@pytest.mark.parametrize(
    "reply",
    [
        stream(HALF),
        stream(HALF, b'data: {"choices": [{"delta": {"content": "cut'),
        stream(HALF, httpx.RemoteProtocolError("incomplete chunked read")),
        stream(HALF, httpx.ReadError("reset")),
        stream(HALF, frame({"choices": None})),
    ],
    ids=["no end", "in a chunk", "in the body", "reset", "choices null"],
)
async def test_a_stream_that_is_cut_is_an_error_after_what_came(reply: Reply) -> None:
    server = Server(reply)
    events: list[Event] = []
    with pytest.raises(ProtocolError):
        async with server.backend().stream(ASK) as stream_:
            events += [event async for event in stream_]
    async with server.backend().stream(ASK) as stream_:
        assert await anext(stream_) == Commit("half of it")
    assert len(server.requests) == 2  # not tried again: its text had been handed on
    assert server.open_streams == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply(parts=[b"<html>gateway</html>"], headers={"content-type": "text/html"}),
        Reply(parts=[b""]),
        Reply(parts=[b"[]"], headers={"content-type": "application/json"}),
        Reply(parts=[b'{"choi'], headers={"content-type": "application/json"}),
        whole({"object": "chat.completion"}),
        whole({"choices": None}),
        whole({"choices": []}),
        whole(
            {"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": [{"id": "a"}]}}]}
        ),
    ],
    ids=["html", "nothing", "list", "cut", "no choices", "null", "empty", "call without a name"],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_is_no_completion_is_a_protocol_error(reply: Reply, streaming: bool) -> None:
    server = Server(reply)
    with pytest.raises(ProtocolError):
        await generate(server.backend(streaming=streaming, max_attempts=1), ASK)
    assert server.open_streams == 0


async def test_what_a_content_filter_stopped_is_rejected() -> None:
    with pytest.raises(Rejected, match="content filter"):
        await generate(Server(completion(None, finish="content_filter")).backend(), ASK)
