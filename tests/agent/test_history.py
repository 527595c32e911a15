"""Conversations with gaps: what a server would refuse is closed before it is sent."""

import anyio
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.agent import Agent, ToolStarted, repaired, tool
from agentdiff.agent.history import INTERRUPTED
from agentdiff.messages import Message, ToolCall, assistant, system, tool_result, user
from tests.agent.doubles import Double, calls, says


def a_call(id: str, name: str = "f") -> ToolCall:
    return ToolCall(id=id, name=name, arguments={})


WHOLE = (
    system("s"),
    user("u"),
    assistant("x", tool_calls=[a_call("1"), a_call("2")]),
    tool_result(a_call("1"), "one"),
    tool_result(a_call("2"), "two"),
    assistant("done"),
)


def test_a_conversation_without_gaps_stays_as_it_is() -> None:
    assert repaired(WHOLE) == WHOLE


def test_a_tail_of_calls_without_results_is_closed() -> None:
    fixed = repaired(WHOLE[:4])
    assert fixed[:4] == WHOLE[:4]
    assert fixed[4] == tool_result(a_call("2"), INTERRUPTED)


def test_a_gap_in_the_middle_is_closed_where_it_is() -> None:
    fixed = repaired([*WHOLE[:3], user("and?")])
    assert [message.role for message in fixed] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]


def test_results_without_a_call_and_second_results_are_left_out() -> None:
    stray = tool_result(a_call("9"), "nine")
    assert repaired([stray, *WHOLE[:5], tool_result(a_call("1"), "again"), *WHOLE[5:]]) == WHOLE


def test_an_empty_assistant_message_is_left_out() -> None:
    assert repaired([user("u"), assistant(""), user("v")]) == (user("u"), user("v"))


def test_ids_that_servers_count_anew_belong_to_the_newest_call() -> None:
    turn = [assistant(tool_calls=[a_call("call_0")]), tool_result(a_call("call_0"), "r")]
    assert repaired([user("u"), *turn, *turn]) == (user("u"), *turn, *turn)


def test_calls_of_one_id_get_ids_of_their_own_and_keep_their_results() -> None:
    twice = [a_call("x"), a_call("x")]
    fixed = repaired(
        [assistant(tool_calls=twice), tool_result(twice[0], "one"), tool_result(twice[1], "two")]
    )
    first, second = fixed[0].tool_calls
    assert first.id == "x" != second.id
    assert [(m.call_id, m.content) for m in fixed[1:]] == [("x", "one"), (second.id, "two")]


IDS = st.sampled_from(["", "a", "b", "c"])
MESSAGES = st.one_of(
    st.builds(user, st.just("u")),
    st.builds(
        lambda text, ids: assistant(text, tool_calls=[a_call(id) for id in ids]),
        st.sampled_from(["", "text"]),
        st.lists(IDS, max_size=3),
    ),
    st.builds(lambda id: tool_result(a_call(id), "r"), IDS),
)


@given(st.lists(MESSAGES, max_size=12))
def test_whatever_comes_in_a_server_would_take_what_comes_out(history: list[Message]) -> None:
    fixed = repaired(history)
    open_calls: list[str] = []
    for message in fixed:
        if message.role == "tool":
            assert message.call_id == open_calls.pop(0)
            continue
        assert not open_calls
        open_calls = [call.id for call in message.tool_calls]
        assert "" not in open_calls
        assert len(set(open_calls)) == len(open_calls)
        assert message.role != "assistant" or message.content or message.tool_calls
    assert not open_calls
    assert repaired(fixed) == fixed
    assert [m for m in fixed if m.role == "user"] == [m for m in history if m.role == "user"]


async def test_a_history_that_was_broken_off_is_sent_whole() -> None:
    backend = Double(says("Yes."))
    await Agent(backend).run("Go on", history=WHOLE[:3])
    roles = [message.role for message in backend.requests[0].messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]


async def test_runs_that_are_cancelled_in_the_middle_leave_nothing_behind() -> None:
    """Many times with one backend: no stream stays open, no tool goes on."""
    running: set[str] = set()

    @tool
    async def work(context_free: str) -> None:
        running.add(context_free)
        try:
            await anyio.sleep_forever()
        finally:
            running.discard(context_free)

    backend = Double(
        calls(("work", {"context_free": "a"}), ("work", {"context_free": "b"})), repeat_last=True
    )
    agent = Agent(backend, tools=[work])
    for _ in range(50):
        async with agent.run_events("Go") as events:
            async for event in events:
                if isinstance(event, ToolStarted):
                    break
    assert (backend.open, running) == (0, set())
