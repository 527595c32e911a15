"""What servers really send: every nasty reply has one right outcome, and none is silent or endless.

Each test lets an agent talk to a real client over a scripted transport.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import httpx
import pytest

from agentdiff.agent import Agent, RunResult, UsageLimits, tool
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.errors import (
    BudgetExceeded,
    LimitExceeded,
    OutputInvalid,
    RateLimited,
    Rejected,
)
from agentdiff.messages import Usage

Reply = httpx.Response | Callable[[httpx.Request], httpx.Response]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


class Server:
    """Answers with its replies in order, the last of them for ever; keeps what it was sent."""

    def __init__(self, *replies: httpx.Response) -> None:
        self.sent: list[dict[str, Any]] = []
        self._replies = list(replies)
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(json.loads(request.content))
        reply = self._replies[min(len(self.sent), len(self._replies)) - 1]
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    def agent(self, tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
        backend = OpenAIBackend("http://server/v1", "m", client=self.client, streaming=False)
        return Agent(backend, tools=tools, **options)

    def told(self, request: int = -1) -> list[str]:
        """The tool results in a request."""
        return [m["content"] for m in self.sent[request]["messages"] if m["role"] == "tool"]


def reply(
    text: str | None = None,
    *calls: tuple[str, str],
    finish: str | None = None,
    usage: Any = USAGE,
    ids: Sequence[str] = (),
) -> httpx.Response:
    wanted = [
        {
            "id": ids[at] if ids else f"c{at}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for at, (name, arguments) in enumerate(calls)
    ]
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if wanted:
        said["tool_calls"] = wanted
    choice = {
        "index": 0,
        "message": said,
        "finish_reason": finish or ("tool_calls" if wanted else "stop"),
    }
    body = {"model": "m", "choices": [choice]} | ({"usage": usage} if usage else {})
    return httpx.Response(200, json=body)


def call(arguments: str = '{"key": 1}', *, finish: str | None = None) -> httpx.Response:
    return reply(None, ("lookup", arguments), finish=finish)


def fails(status: int, **headers: str) -> httpx.Response:
    head = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=head, json={"error": {"message": "no"}})


@tool
async def lookup(key: int, note: str | None = None) -> str:
    """Look up a key."""
    return f"value {key}"


@tool
async def broken(key: int) -> str:
    """Fail."""
    raise ValueError("no disk")


def texts(result: RunResult[str]) -> str:
    return repr((result.messages, result.steps))


async def test_a_tool_call_that_is_cut_is_asked_for_again_with_more_room_and_leaves_no_trace():
    server = Server(call('{"key": 1', finish="length"), call(), reply("done"))
    result = await server.agent([lookup]).run("Go")
    assert result.output == "done"
    assert server.told() == ["value 1"]
    assert server.sent[0]["messages"] == server.sent[1]["messages"]
    assert server.sent[1]["max_tokens"] == 2 * server.sent[0]["max_tokens"]
    assert '{"key": 1\'' not in texts(result)
    assert result.usage.requests == 3


async def test_a_tool_call_that_is_always_cut_ends_the_run_with_the_numbers():
    server = Server(call('{"key": 1', finish="length"))
    agent = server.agent([lookup])
    with pytest.raises(BudgetExceeded) as caught:
        await agent.run("Go")
    assert len(server.sent) == 2
    error = caught.value
    assert error.predicted is not None
    assert error.allocated == server.sent[1]["max_tokens"]
    assert error.used == 5
    assert isinstance(error.usage, Usage)
    assert error.usage.output_tokens == 10


async def test_after_an_overflow_the_same_agent_runs_again():
    server = Server(call("{", finish="length"), call("{", finish="length"), reply("done"))
    agent = server.agent([lookup])
    with pytest.raises(BudgetExceeded):
        await agent.run("Go")
    assert (await agent.run("Go")).output == "done"


async def test_fail_fast_is_a_choice():
    server = Server(call("{", finish="length"))
    with pytest.raises(BudgetExceeded):
        await server.agent([lookup], cut_retries=0).run("Go")
    assert len(server.sent) == 1


async def test_malformed_arguments_are_told_with_what_was_written():
    server = Server(call('{"key": 1'), call(), reply("done"))
    result = await server.agent([lookup]).run("Go")
    assert result.output == "done"
    assert server.told(1) == [
        "error: the arguments of `lookup` are not a JSON object: '{\"key\": 1'"
    ]


@pytest.mark.parametrize("written", ["{key: 1}", "[]", "[1]", '"text"', "x" * 5000])
async def test_arguments_that_are_no_object_are_told_in_a_bounded_preview(written):
    server = Server(call(written), call(), reply("done"))
    assert (await server.agent([lookup]).run("Go")).output == "done"
    (told,) = server.told(1)
    assert told.startswith("error: the arguments of `lookup` are not a JSON object")
    assert written[:40].strip("'\"") in told
    assert len(told) < 400


@pytest.mark.parametrize("written", ["", "null", "{}"])
async def test_empty_arguments_are_an_empty_object(written):
    server = Server(call(written), call(), reply("done"))
    await server.agent([lookup]).run("Go")
    assert "`key`: Field required" in server.told(1)[0]


async def test_a_malformed_call_beside_a_good_one_loses_neither():
    turn = reply(None, ("lookup", '{"key": 1}'), ("lookup", "{oops"))
    server = Server(turn, reply("done"))
    await server.agent([lookup]).run("Go")
    good, bad = server.told()
    assert good == "value 1"
    assert "not a JSON object" in bad


async def test_an_unknown_tool_is_told_with_the_names_there_are():
    server = Server(reply(None, ("nope", "{}")), reply("done"))
    assert (await server.agent([lookup, broken]).run("Go")).output == "done"
    assert server.told() == ["error: there is no tool 'nope'; the tools are lookup, broken"]


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('{"key": "x"}', "`key`: Input should be a valid integer"),
        ('{"kee": 1}', "`key`: Field required"),
        ('{"key": 1, "extra": 2}', "`extra`: Extra inputs are not permitted, got 2"),
        ('{"key": null}', "`key`: Input should be a valid integer"),
    ],
)
async def test_wrong_arguments_are_told_field_by_field(written, fault):
    server = Server(call(written), call(), reply("done"))
    assert (await server.agent([lookup]).run("Go")).output == "done"
    assert fault in server.told(1)[0]


@pytest.mark.parametrize("written", ['{"key": "1"}', '{"key": 1.0}', '{"key": 1, "note": null}'])
async def test_what_means_the_same_is_taken(written):
    server = Server(call(written), reply("done"))
    await server.agent([lookup]).run("Go")
    assert server.told() == ["value 1"]


async def test_a_tool_that_raises_is_told_and_the_run_goes_on():
    server = Server(reply(None, ("broken", '{"key": 1}')), reply("done"))
    assert (await server.agent([broken]).run("Go")).output == "done"
    assert server.told() == ["error: ValueError: no disk"]


@pytest.mark.parametrize("ids", [["a", "a"], ["", ""]])
async def test_calls_with_one_id_or_none_both_run_and_are_answered_in_order(ids):
    turn = reply(None, ("lookup", '{"key": 1}'), ("lookup", '{"key": 2}'), ids=ids)
    server = Server(turn, reply("done"))
    await server.agent([lookup]).run("Go")
    asked = [c["id"] for m in server.sent[1]["messages"] for c in m.get("tool_calls", ())]
    answered = [m["tool_call_id"] for m in server.sent[1]["messages"] if m["role"] == "tool"]
    assert asked == answered
    assert len(set(asked)) == 2
    assert server.told() == ["value 1", "value 2"]


@pytest.mark.parametrize("text", ["", None, "  \n"])
async def test_an_empty_reply_is_asked_for_again(text):
    server = Server(reply(text), reply("done"))
    assert (await server.agent([lookup]).run("Go")).output == "done"


async def test_a_reply_that_stays_empty_is_an_error():
    server = Server(reply(""))
    with pytest.raises(OutputInvalid, match="empty"):
        await server.agent([lookup]).run("Go")
    assert len(server.sent) == 2


async def test_usage_that_was_not_sent_is_unknown():
    result = await Server(reply("done", usage=None)).agent().run("Go")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (None, None)
    assert result.usage.requests == 1


async def test_a_server_that_is_busy_is_asked_again_after_the_time_it_named():
    server = Server(fails(429, retry_after_ms="5"), fails(429, retry_after_ms="5"), reply("done"))
    result = await server.agent().run("Go")
    assert result.output == "done"
    assert result.usage.requests == 3
    assert result.steps[0].stats.attempts == 3


async def test_a_wait_longer_than_the_run_may_last_is_not_begun():
    server = Server(fails(429, retry_after="30"))
    with anyio.fail_after(10), pytest.raises(RateLimited):
        await server.agent(limits=UsageLimits(wall_s=5)).run("Go")
    assert len(server.sent) == 1


async def test_a_server_that_fails_once_is_asked_again():
    server = Server(fails(500, retry_after_ms="1"), reply("done"))
    assert (await server.agent().run("Go")).output == "done"


async def test_a_request_that_is_refused_is_an_error_that_says_so():
    server = Server(fails(400))
    with pytest.raises(Rejected) as caught:
        await server.agent([lookup]).run("Go")
    assert caught.value.status == 400
    assert len(server.sent) == 1


async def test_calls_of_one_reply_run_at_once():
    meeting = [anyio.Event() for _ in range(3)]

    @tool
    async def meet(number: int) -> str:
        meeting[number].set()
        for event in meeting:
            await event.wait()
        return f"met {number}"

    turn = reply(None, *(("meet", f'{{"number": {n}}}') for n in range(3)))
    server = Server(turn, reply("done"))
    with anyio.fail_after(10):
        await server.agent([meet]).run("Go")
    assert server.told() == ["met 0", "met 1", "met 2"]


async def test_an_endless_loop_of_calls_ends_at_a_limit():
    keys = iter(range(1000))

    class Endless(Server):
        def _answer(self, request: httpx.Request) -> httpx.Response:
            self.sent.append(json.loads(request.content))
            return call(f'{{"key": {next(keys)}}}')

    server = Endless()
    with pytest.raises(LimitExceeded, match="limit of 25 requests") as caught:
        await server.agent([lookup]).run("Go")
    assert len(server.sent) == 25
    assert len(caught.value.steps) == 25


async def test_text_beside_a_call_is_kept_and_does_not_end_the_run():
    server = Server(reply(" \n", ("lookup", '{"key": 1}')), reply("done"))
    result = await server.agent([lookup]).run("Go")
    assert (result.output, server.told()) == ("done", ["value 1"])


async def test_a_cut_reply_does_not_grow_the_prompt():
    server = Server(reply("half", finish="length"), reply("whole"))
    await server.agent().run("Go")
    assert server.sent[0]["messages"] == server.sent[1]["messages"]


async def test_the_words_of_a_cut_answer_are_no_answer():
    server = Server(reply("half an ans", finish="length"))
    with pytest.raises(BudgetExceeded) as caught:
        await server.agent().run("Go")
    assert "half an ans" not in repr((caught.value.messages, caught.value.steps))
