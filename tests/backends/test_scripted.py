from datetime import date
from typing import Any, Literal

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentdiff.agent import Agent, StepSettings, tool
from agentdiff.backends.filling import shortest
from agentdiff.backends.scripted import FunctionBackend, Scripted, TestBackend
from agentdiff.backends.validation import validator
from agentdiff.errors import (
    ConfigurationError,
    OutputInvalid,
    RateLimited,
    SchemaError,
    Unavailable,
)
from agentdiff.generation import (
    Budget,
    Capabilities,
    Commit,
    Draft,
    Event,
    Finish,
    Request,
    generate,
    only_doubles,
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


# -- a function, and nothing at all ----


async def test_a_function_answers_every_request() -> None:
    async def answer(request: Request) -> str:
        await anyio.lowlevel.checkpoint()
        return request.messages[-1].content.upper()

    backend = FunctionBackend(answer)
    assert [(await generate(backend, ASK)).text for _ in range(2)] == ["A QUESTION"] * 2
    assert backend.requests == [ASK, ASK]


async def test_the_test_backend_calls_every_tool_and_then_answers() -> None:
    @tool
    async def pick(n: int, kind: Literal["a", "b"], when: date, tags: list[str]) -> str:
        return f"{n} {kind} {when} {tags}"

    @tool
    async def other() -> str:
        return "other"

    backend = TestBackend()
    result = await Agent(backend, tools=[pick, other]).run("Go")
    assert result.output == "done"
    assert [(call.tool, call.error) for call in result.steps[0].calls] == [
        ("pick", None),
        ("other", None),
    ]
    assert result.steps[0].calls[0].result == "0 a 2030-01-01 []"
    only = await Agent(TestBackend(calls=["other"], answer="ok"), tools=[pick, other]).run("Go")
    assert ([call.tool for call in only.steps[0].calls], only.output) == (["other"], "ok")


async def test_the_test_backend_fills_the_schema_of_an_output() -> None:
    class Item(BaseModel):
        name: str = Field(min_length=3)
        size: float = Field(gt=1, lt=2)
        parts: list["Item"] = Field(max_length=2)
        link: "Item | None"

    result = await Agent(TestBackend(), output_type=Item).run("Go")
    assert result.output == Item(name="aaa", size=1.5, parts=[], link=None)


SCHEMAS = st.recursive(
    st.one_of(
        st.builds(lambda low: {"type": "integer", "minimum": low}, st.integers(-9, 9)),
        st.builds(lambda high: {"type": "number", "exclusiveMaximum": high}, st.integers(-9, 9)),
        st.builds(lambda n: {"type": "integer", "minimum": n, "multipleOf": 7}, st.integers(0, 40)),
        st.builds(lambda n: {"type": "string", "minLength": n}, st.integers(0, 9)),
        st.builds(lambda values: {"enum": values}, st.lists(st.integers(), min_size=1)),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"a": 1}}]),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda item, n: {"type": "array", "items": item, "minItems": n},
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda properties, all_of_them: {
                "type": "object",
                "properties": properties,
                "required": [*properties] if all_of_them else [],
                "additionalProperties": False,
            },
            st.dictionaries(st.text(max_size=3), inner, max_size=3),
            st.booleans(),
        ),
    ),
    max_leaves=8,
)


@given(SCHEMAS)
def test_what_is_filled_in_satisfies_its_schema(schema) -> None:
    assert validator(schema).is_valid(shortest(schema))


def test_a_schema_that_refers_to_itself_is_filled_where_it_can_be() -> None:
    tree: dict[str, Any] = {
        "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}},
        "$ref": "#/$defs/t",
    }
    assert shortest(tree) == {}
    tree["$defs"]["t"]["required"] = ["t"]
    with pytest.raises(SchemaError, match="no value of this schema is finite"):
        shortest(tree)
    with pytest.raises(SchemaError, match="leads nowhere"):
        shortest({"$ref": "#/$defs/nope"})


# -- the switch ----


class Real(Scripted):
    """Claims to be no double."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()


async def test_real_backends_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with only_doubles():
        assert (await generate(Scripted(["yes"]), ASK)).text == "yes"
        with pytest.raises(ConfigurationError, match=r"`scripted` is real.*agent\.override"):
            await generate(Real(["no"]), ASK)
        with pytest.raises(ConfigurationError, match="allows only doubles"):
            await Agent(Real(["no"])).run("Go")
    assert (await generate(Real(["yes"]), ASK)).text == "yes"
    monkeypatch.setenv("AGENTDIFF_ONLY_DOUBLES", "1")
    with only_doubles():
        pass
    with pytest.raises(ConfigurationError, match="is real"):
        await generate(Real(["no"]), ASK)


async def test_an_agent_may_be_given_a_double_for_a_while() -> None:
    agent = Agent(Real(["real", "real again"]))
    assert (await agent.run("Go")).output == "real"
    with agent.override(backend=TestBackend(answer="double")):
        assert (await agent.run("Go")).output == "double"
    assert (await agent.run("Go")).output == "real again"


async def test_an_override_takes_tools_and_budgets_too() -> None:
    @tool
    def real() -> str:
        raise AssertionError

    @tool(name="real")
    def fake() -> str:
        return "fake"

    backend = TestBackend()
    agent = Agent(Real([]), tools=[real], steps={"route": StepSettings(backend=Real([]))})
    with agent.override(backend=backend, tools=[fake], budget=Budget.off()):
        assert (await agent.run("Go")).steps[0].calls[0].result == "fake"
    assert backend.requests[0].budget is None
    assert agent.tools == (real,)
