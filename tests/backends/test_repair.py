"""Repairs: no invalid output is delivered as a valid one, and every call is told of."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.agent import Agent
from agentdiff.backends.repair import Repairing
from agentdiff.backends.router import Router
from agentdiff.backends.scripted import FunctionBackend, Scripted
from agentdiff.errors import BackendError, ConfigurationError, OutputInvalid, Unavailable
from agentdiff.generation import (
    Backend,
    Capabilities,
    Commit,
    Draft,
    Event,
    Finish,
    Question,
    Request,
    Stats,
    generate,
)
from agentdiff.messages import ToolCall, ToolSpec, Usage, user
from tests.backends.conformance import CHECKS, CITY, Subject
from tests.backends.fakes import Server, completion
from tests.backends.test_conformance import VALID, scripted
from tests.telemetry.recorder import recording

ASK = Request(messages=(user("Where is it sunny?"),), schema=CITY)
WRONG = '{"city": 7, "sunny": "yes"}'
USAGE = Usage(input_tokens=7, output_tokens=3)


def raw(text: str, **fields: Any) -> list[Event]:
    """An output that nobody has validated."""
    return [Commit(text), Finish(reason="stop", usage=USAGE, stats=Stats(total_s=0.1), **fields)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(check: Callable[[Subject], Awaitable[None]]) -> None:
    down = Unavailable("down", backend="scripted")
    subject = Subject(
        name="repairing",
        open=lambda: Repairing(scripted()),
        failing=lambda: Repairing(Scripted([down])),
    )
    await check(subject)


async def test_an_invalid_output_is_shown_its_faults_and_asked_for_again() -> None:
    inner = Scripted([raw(WRONG), raw(VALID)])
    result = await generate(Repairing(inner), replace(ASK, deadline_s=30))
    assert (result.text, result.enforcement) == (VALID, "repaired")
    assert result.usage == Usage(input_tokens=14, output_tokens=6, requests=2)
    assert result.stats.attempts == 2
    assert result.stats.total_s is not None
    assert result.stats.total_s >= 0.1
    assert len(result.warnings) == 2
    first, second = inner.requests
    assert (first.kind, second.kind) == ("answer", "repair")
    question, shown, complaint = second.messages
    assert question == ASK.messages[0]
    assert (shown.role, shown.content) == ("assistant", WRONG)
    assert "`$.city` does not satisfy the schema: 7 is not of type 'string'" in complaint.content
    assert "`$.sunny`" in complaint.content
    assert second.deadline_s is not None
    assert second.deadline_s <= 30


async def test_nothing_is_committed_of_what_is_invalid() -> None:
    inner = Scripted([[Draft("dra░"), *raw(WRONG)], raw(VALID)])
    async with Repairing(inner).stream(ASK) as events:
        seen = [event async for event in events]
    assert seen[:2] == [Draft("dra░"), Commit(VALID)]


async def test_what_is_valid_at_once_is_one_call() -> None:
    inner = Scripted([raw(VALID)])
    result = await generate(Repairing(inner), ASK)
    assert (result.enforcement, result.usage) == ("validated", USAGE)
    native = Scripted([raw(VALID, enforcement="native")])
    assert (await generate(Repairing(native), ASK)).enforcement == "native"


async def test_repairs_are_bounded() -> None:
    inner = Scripted([raw(WRONG), raw("nonsense"), raw(WRONG), raw(VALID)])
    with pytest.raises(OutputInvalid) as caught:
        await generate(Repairing(inner, repairs=2), ASK)
    assert len(inner.requests) == 3
    assert caught.value.text == WRONG
    assert caught.value.usage == Usage(input_tokens=21, output_tokens=9, requests=3)
    never = Scripted([raw(WRONG)])
    with pytest.raises(OutputInvalid):
        await generate(Repairing(never, repairs=0), ASK)
    with pytest.raises(ConfigurationError):
        Repairing(never, repairs=-1)


async def test_a_backend_that_fails_while_repairing_says_what_was_spent() -> None:
    inner = Scripted([raw(WRONG), Unavailable("down", backend="scripted")])
    with pytest.raises(BackendError) as caught:
        await generate(Repairing(inner), ASK)
    assert caught.value.usage == Usage(input_tokens=7, output_tokens=3, requests=2)


async def test_words_calls_cuts_and_repairs_of_others_pass() -> None:
    inner = Scripted([raw("words"), raw(WRONG), [Finish(reason="length")]])
    repairing = Repairing(inner)
    assert (await generate(repairing, replace(ASK, schema=None))).text == "words"
    assert (await generate(repairing, replace(ASK, kind="repair"))).enforcement == "none"
    assert (await generate(repairing, ASK)).reason == "length"
    call = ToolCall(id="1", name="t", arguments={})
    asked = replace(ASK, tools=(ToolSpec(name="t"),))
    assert (await generate(Repairing(Scripted([call])), asked)).tool_calls == (call,)


async def test_a_server_that_ignores_the_schema_is_repaired() -> None:
    server = Server(completion("It is sunny in Zürich."), completion(VALID))
    result = await generate(Repairing(server.backend(streaming=False)), ASK)
    assert (result.text, result.enforcement) == (VALID, "repaired")
    assert result.usage == Usage(input_tokens=14, output_tokens=6, requests=2)
    assert server.bodies[1]["messages"][-2]["content"] == "It is sunny in Zürich."


async def test_in_a_router_it_is_repaired_before_another_one_is_asked() -> None:
    other = Scripted([], name="other")
    result = await generate(Router([Repairing(Scripted([raw(WRONG), raw(VALID)])), other]), ASK)
    assert result.enforcement == "repaired"
    assert other.requests == []


@dataclass
class City:
    city: str
    sunny: bool


async def test_under_an_agent_no_fault_is_mended_by_both() -> None:
    inner = Scripted([raw(WRONG), raw("[]"), raw("{}"), raw(VALID)])
    agent = Agent(Repairing(inner), output_type=City, max_output_repairs=2)
    result = await agent.run("Where is it sunny?")
    assert result.output == City(city="Zürich", sunny=True)
    assert [request.kind for request in inner.requests] == ["answer", "repair", "repair", "repair"]
    # The first repair is of the backend, the others are steps of the run.
    assert [step.kind for step in result.steps] == ["answer", "repair", "repair"]
    assert result.usage.requests == 4


async def test_the_span_around_it_is_told() -> None:
    inner = Scripted([raw(WRONG), raw(VALID)])
    with recording() as spans:
        await generate(Router([Repairing(inner)]), ASK)
    events = {event.name: event.attributes for event in spans.named("route answer").events}
    assert events["agentdiff.repair"] == {
        "agentdiff.backend": "scripted",
        "agentdiff.route.attempt": 1,
        "agentdiff.faults": 2,
    }
    kinds = [(s.attributes or {})["agentdiff.step.kind"] for s in spans.all() if "chat" in s.name]
    assert kinds == ["answer", "repair"]
    assert "Zürich" not in spans.everything()


async def test_it_claims_what_it_gives_and_decides() -> None:
    bare = FunctionBackend(lambda request: '"no"', capabilities=Capabilities())
    assert Repairing(bare).capabilities.enforcement == "repaired"
    strong: Backend = Scripted([], capabilities=Capabilities(enforcement="in_block"))
    assert Repairing(strong).capabilities.enforcement == "in_block"
    question = Question(messages=(user("hi"),), instructions="?", options={"yes": "", "no": ""})
    assert (await Repairing(bare).decide(question)).choice == "no"


@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.builds(
                lambda city, sunny: json.dumps({"city": city, "sunny": sunny}),
                st.one_of(st.text(max_size=14), st.integers()),
                st.one_of(st.booleans(), st.none()),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_invalid_output_is_ever_delivered(outputs: list[str]) -> None:
    import anyio

    async def ask() -> None:
        inner = Scripted([raw(text) for text in outputs])
        try:
            result = await generate(Repairing(inner, repairs=len(outputs) - 1), ASK)
        except OutputInvalid:
            assert len(inner.requests) == len(outputs)
        else:
            jsonschema.validate(json.loads(result.text), CITY)
            assert result.enforcement == ("repaired" if len(inner.requests) > 1 else "validated")
            assert result.usage.requests == len(inner.requests)

    anyio.run(ask)
