"""The body of a request: written part by part, the same as written at once, each part only once."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.backends import wire
from agentdiff.backends.profiles import PROFILES
from agentdiff.backends.rendering import PerObject, Rendering
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Budget, Request, generate
from agentdiff.messages import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from tests.backends.fakes import Server, completion

texts = st.text(max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(ToolCall, id=texts, name=texts, arguments=st.dictionaries(texts, values))
messages = st.one_of(
    st.builds(user, texts),
    st.builds(system, texts),
    st.builds(assistant, texts, tool_calls=st.lists(calls, max_size=2)),
    st.builds(tool_result, calls, texts),
)
tools = st.builds(
    ToolSpec, name=texts, description=texts, parameters=st.dictionaries(texts, values, max_size=3)
)


def as_said(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.call_id is not None:
        said["tool_call_id"] = message.call_id
    return said


@settings(max_examples=40)
@given(st.lists(messages, min_size=1, max_size=4), st.lists(tools, max_size=2))
def test_the_parts_make_the_body_however_often_it_is_written(
    said: list[Message], shown: list[ToolSpec]
) -> None:
    request = Request(messages=tuple(said), tools=tuple(shown), budget=Budget(target=3, ceiling=9))
    asked = wire.ask(request, model='a "model"', profile=PROFILES["generic"], streamed=True)
    rendering = Rendering()
    body = asked.body(rendering)
    assert asked.body(rendering) == body == asked.body(Rendering())
    sent = json.loads(body.decode("utf-8"))
    assert sent.pop("model") == 'a "model"'
    assert sent.pop("messages") == json.loads(
        json.dumps([as_said(message) for message in said]).encode("utf-8", "replace")
    )
    named = [one["function"]["name"] for one in sent.pop("tools", [])]
    assert named == [tool.name for tool in shown]
    assert sent == {
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_part_is_written_once_and_forgotten_with_its_message() -> None:
    made: list[str] = []

    def write(message: Message) -> str:
        made.append(message.content)
        return message.content

    written = PerObject(write)
    one, same = user("hello"), user("hello")
    assert [written(one), written(one), written(same)] == ["hello"] * 3
    assert made == ["hello"] * 2  # equal is not the same: what differs in identity may be mutable
    assert len(written) == 2
    del one
    gc.collect()
    assert len(written) == 1


async def test_half_of_a_surrogate_pair_does_not_end_a_run() -> None:
    server = Server(completion("hi"))
    request = Request(messages=(user("broken \ud83d text"),))
    assert (await generate(server.backend(streaming=False), request)).text == "hi"
    assert server.bodies[0]["messages"][0]["content"] == "broken ? text"


async def test_what_is_no_json_is_said_before_anything_is_sent() -> None:
    server = Server(completion("hi"))
    request = Request(messages=(user("x"),), schema={"type": "number", "minimum": float("nan")})
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        await generate(server.backend(streaming=False), request)
    assert server.requests == []
