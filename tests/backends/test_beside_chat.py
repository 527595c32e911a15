"""What is asked of a backend beside a chat, decisions and infilling: its spans, and who passes it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from agentdiff.backends.hedging import ENOUGH, Hedged
from agentdiff.backends.latency import Taken
from agentdiff.backends.mercury import mercury
from agentdiff.backends.repair import Repairing
from agentdiff.backends.router import Router
from agentdiff.backends.scripted import FunctionBackend
from agentdiff.errors import BudgetTooSmall, ConfigurationError, Rejected, Unavailable
from agentdiff.generation import (
    Budget,
    Capabilities,
    Decides,
    Decision,
    Infills,
    Question,
    Request,
    Result,
    Stats,
    generate,
)
from agentdiff.messages import Usage, user
from tests.backends.fakes import Server, completion, streamed, whole
from tests.telemetry.recorder import CANARY, recording

QUESTION = Question(messages=(user(CANARY),), instructions="?", options={"yes": "", "no": ""})
DOWN = Unavailable("down", backend="a")
DECIDED = whole(
    {
        "model": "decider",
        "answers": [{"type": "choice", "choice": "no", "confidence": 0.5}],
        "usage": {"input_tokens": 9, "output_tokens": 0},
    }
)
CODED = whole(
    {
        "model": "coder",
        "choices": [{"index": 0, "finish_reason": "stop", "text": "between"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5},
    }
)


def answering(request: Request) -> str:
    return '"yes"'


class Writer(FunctionBackend):
    """Writes between two texts; so slowly that nobody waits, where it is told so."""

    def __init__(self, name: str, *, fails: Exception | None = None, is_slow: bool = False) -> None:
        super().__init__(answering, name=name, capabilities=Capabilities())
        self.asked: list[tuple[str, str, float | None]] = []
        self._fails = fails
        self._is_slow = is_slow

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        self.asked.append((prefix, suffix, deadline_s))
        if self._is_slow:
            await anyio.sleep_forever()
        if self._fails is not None:
            raise self._fails
        return Result(
            text=self.name,
            tool_calls=(),
            reason="stop",
            usage=Usage(input_tokens=3),
            stats=Stats(),
            enforcement="none",
            budget=budget,
            model="",
        )


# --- spans ---


async def test_a_decision_of_the_servers_own_is_one_span_with_its_tokens() -> None:
    with recording() as spans:
        await Server(DECIDED).backend(profile="vllm").decide(QUESTION)
    (span,) = spans.all()
    attributes = span.attributes or {}
    assert (span.name, span.kind.name) == ("decide tiny", "CLIENT")
    assert attributes["gen_ai.operation.name"] == "decide"
    assert attributes["gen_ai.usage.input_tokens"] == 9
    assert attributes["gen_ai.response.model"] == "decider"
    assert attributes["agentdiff.enforcement"] == "native"
    assert CANARY not in spans.everything()


async def test_a_decision_in_writing_leaves_the_tokens_to_the_chat_inside() -> None:
    with recording() as spans:
        await Server(streamed('"no"')).backend().decide(QUESTION)
    chat, decide = spans.named("chat tiny"), spans.named("decide tiny")
    assert chat.parent is not None
    assert decide.context is not None
    assert chat.parent.span_id == decide.context.span_id
    assert "gen_ai.usage.input_tokens" in (chat.attributes or {})
    assert "gen_ai.usage.input_tokens" not in (decide.attributes or {})


async def test_infilling_and_edits_have_a_span_of_their_own() -> None:
    server = Server(CODED, CODED)
    backend = mercury(api_key="key", client=server.client())
    with recording() as spans:
        await backend.infill("a", "b")
        await backend.edit({"current_file_content": CANARY})
    assert [span.name for span in spans.all()] == ["infill mercury-2", "edit mercury-2"]
    for span in spans.all():
        attributes = span.attributes or {}
        assert attributes["gen_ai.operation.name"] == "text_completion"
        assert attributes["gen_ai.usage.output_tokens"] == 5
        assert attributes["gen_ai.response.model"] == "coder"
    assert CANARY not in spans.everything()


async def test_what_fails_is_a_failed_span() -> None:
    backend = mercury(
        api_key="key",
        client=Server(whole({"error": {"message": "no"}}, status=400)).client(),
    )
    with recording() as spans, pytest.raises(Rejected):
        await backend.infill("a", "b")
    (span,) = spans.all()
    assert (span.attributes or {})["error.type"] == "Rejected"


# --- who passes it on ---

Wrapped = Callable[[Writer], Any]
WRAPPERS: list[Wrapped] = [
    Repairing,
    lambda one: Router([one]),
    lambda one: Hedged(one, Writer("b")),
    lambda one: Router([Hedged(Repairing(one), Writer("b"))]),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
async def test_a_wrapper_keeps_what_its_backend_can(wrap: Wrapped) -> None:
    one = Writer("a")
    backend = wrap(one)
    assert isinstance(backend, Infills)
    assert isinstance(backend, Decides)
    budget = Budget(target=3, ceiling=6)
    result = await backend.infill("before", "behind", budget=budget, deadline_s=5.0)
    assert (result.text, result.budget, result.warnings) == ("a", budget, ())
    ((prefix, suffix, left_s),) = one.asked
    assert (prefix, suffix) == ("before", "behind")
    assert left_s is not None
    assert 4 < left_s <= 5
    decision = await backend.decide(QUESTION)
    assert isinstance(decision, Decision)
    assert decision.choice == "yes"


async def test_infilling_goes_to_whoever_can_and_on_to_the_next() -> None:
    chats = FunctionBackend(answering, name="chats", capabilities=Capabilities())
    blind = Writer("blind", fails=ConfigurationError("sees no suffix"))
    router = Router([chats, Writer("down", fails=DOWN), blind, Writer("last")])
    with recording() as spans:
        result = await router.infill("a", "b")
    assert result.text == "last"
    assert result.usage == Usage(input_tokens=3, requests=3)
    assert [warning.partition(" was")[0] for warning in result.warnings] == ["`down`", "`blind`"]
    chosen = spans.named("route answer").events[0].attributes or {}
    assert chosen["agentdiff.route.rejected"] == ("chats: does not write between two texts",)
    assert chats.requests == []
    with pytest.raises(ConfigurationError, match="does not write between two texts"):
        await Router([chats]).infill("a", "b")
    with pytest.raises(ConfigurationError, match="sees no suffix"):
        await Router([blind]).infill("a", "b")


async def test_slow_infilling_and_slow_decisions_are_made_twice() -> None:
    class Ponders(Writer):
        async def decide(self, question: Question) -> Decision:
            await anyio.sleep_forever()
            raise AssertionError

    backend = Hedged(Ponders("a", is_slow=True), Writer("b"), at_most=1.0)
    for kind in ("answer", "route"):
        for _ in range(ENOUGH):
            backend.latencies.observe("a", kind, Taken(total_s=0.01))
    with anyio.fail_after(10):
        result = await backend.infill("x", "y", deadline_s=9.0)
        decision = await backend.decide(QUESTION)
    assert (result.text, result.warnings) == ("b", ("`a` was asked too: it was slow",))
    assert result.usage.requests == 2
    assert (decision.choice, decision.usage.requests) == ("yes", 2)


@pytest.mark.parametrize("wrap", [Repairing, lambda one: Hedged(one, Writer("b"))])
async def test_what_a_backend_cannot_is_said(wrap: Callable[[Any], Any]) -> None:
    chats = FunctionBackend(answering, name="chats", capabilities=Capabilities())
    with pytest.raises(ConfigurationError, match="does not write between two texts"):
        await wrap(chats).infill("a", "b")


async def test_a_budget_that_is_too_small_for_one_may_do_for_another() -> None:
    def refuse(request: Request) -> Exception:
        return BudgetTooSmall(budget=4, needed=30)

    first = FunctionBackend(refuse, name="a", capabilities=Capabilities())
    second = Server(completion("hi")).backend(streaming=False)
    request = replace(Request(messages=(user("x"),)), budget=Budget(target=4, ceiling=4))
    assert (await generate(Router([first, second]), request)).text == "hi"
