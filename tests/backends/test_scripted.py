import anyio.lowlevel
import pytest

from agentdiff.backends.scripted import Scripted
from agentdiff.errors import ConfigurationError, OutputInvalid, RateLimited, Unavailable
from agentdiff.generation import (
    Capabilities,
    Commit,
    Draft,
    Event,
    Finish,
    Request,
    generate,
)
from agentdiff.messages import ToolCall, user
from tests.backends.conformance import CITY, NOTE

ASK = Request(messages=(user("a question"),))
CALL = ToolCall(id="1", name="add_note", arguments={"text": "milk"})


async def events_of(backend: Scripted, request: Request = ASK) -> list[Event]:
    async with backend.stream(request) as events:
        return [event async for event in events]


async def test_a_text_comes_block_by_block_each_drafted_first() -> None:
    events = await events_of(Scripted(["twenty-one characters"]))
    assert events[:-1] == [
        Draft("twenty-o␣␣␣␣␣␣␣␣"),
        Commit("twenty-one chara"),
        Draft("ct␣␣␣"),
        Commit("cters"),
    ]
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.usage.output_tokens) == ("stop", 6)


async def test_without_drafts_there_are_only_commits() -> None:
    events = await events_of(Scripted(["hello"], capabilities=Capabilities()))
    assert events[:-1] == [Commit("hello")]


async def test_calls_come_alone_or_together() -> None:
    other = ToolCall(id="2", name="add_note", arguments={})
    backend = Scripted([CALL, [CALL, other]])
    request = Request(messages=(user("note it"),), tools=(NOTE,))
    one, two = await generate(backend, request), await generate(backend, request)
    assert (one.reason, one.tool_calls, one.enforcement) == ("tool_calls", (CALL,), "validated")
    assert (two.tool_calls, two.enforcement) == ((CALL, other), "none")


async def test_events_are_sent_as_they_are() -> None:
    script = [Draft("a"), Commit("b"), Finish(reason="length")]
    assert await events_of(Scripted([script])) == script


async def test_errors_are_raised_at_once_or_in_the_middle() -> None:
    backend = Scripted([RateLimited("wait"), [Commit("half"), Unavailable("gone")]])
    with pytest.raises(RateLimited):
        await generate(backend, ASK)
    async with backend.stream(ASK) as events:
        assert await anext(events) == Commit("half")
        with pytest.raises(Unavailable):
            await anext(events)


async def test_a_function_is_asked_with_the_request() -> None:
    async def slowly(request: Request) -> str:
        await anyio.lowlevel.checkpoint()
        return f"slow: {request.kind}"

    backend = Scripted([lambda request: f"fast: {request.kind}", slowly])
    assert (await generate(backend, ASK)).text == "fast: answer"
    assert (await generate(backend, ASK)).text == "slow: answer"
    assert backend.requests == [ASK, ASK]


async def test_a_structured_text_is_validated_like_any_other() -> None:
    request = Request(messages=(user("where?"),), schema=CITY)
    with pytest.raises(OutputInvalid, match="'sunny' is a required property"):
        await generate(Scripted(['{"city": "Bern"}']), request)


async def test_running_out_says_which_request_had_no_reply() -> None:
    backend = Scripted(["only one"], name="double")
    await generate(backend, ASK)
    with pytest.raises(ConfigurationError, match=r"double has no reply left for request 2"):
        await generate(backend, ASK)


async def test_replies_that_are_left_over_are_told() -> None:
    backend = Scripted(["one", "two"])
    await generate(backend, ASK)
    with pytest.raises(AssertionError, match="1 of its replies"):
        backend.assert_done()
    await generate(backend, ASK)
    backend.assert_done()
