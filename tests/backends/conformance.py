"""What every backend keeps to, whoever it is.

`CHECKS` are run by `test_conformance.py` over its subjects. A backend that needs more than the base
install makes its `Subject` in a test module of its own and runs them there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import jsonschema
import pytest

from agentdiff.errors import BackendError
from agentdiff.generation import (
    Backend,
    Commit,
    Draft,
    Event,
    Finish,
    Request,
    Result,
    collect,
    finish,
    generate,
)
from agentdiff.messages import ToolSpec, assistant, user

NOTE = ToolSpec(
    name="add_note",
    description="Save a note",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
TEXTS = (
    Request(messages=(user("the first of several questions"),)),
    Request(messages=(user("a second one, which is about something else"),)),
    Request(messages=(user("and a third, the longest of them all, so that they differ"),)),
)
STRUCTURED = Request(messages=(user("Where is it sunny?"),), schema=CITY)
CALL = Request(messages=(user("add a note that says buy milk"),), tools=(NOTE,), kind="route")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend to be held to the contract, and requests that it can answer."""

    name: str
    open: Callable[[], Backend]
    """A fresh backend that answers any number of the requests below, in any order."""
    texts: tuple[Request, ...] = TEXTS
    """Each asks for words; the same one is answered the same way each time."""
    structured: Request = STRUCTURED
    """Answered by an output of its schema."""
    call: Request = CALL
    """Answered by a tool call."""
    failing: Callable[[], Backend] | None = None
    """A backend whose every request fails with a `BackendError`."""
    held: Callable[[Backend], int] = lambda _: 0
    """How many streams the backend still holds something for."""


@asynccontextmanager
async def opened(subject: Subject) -> AsyncGenerator[Backend]:
    backend = subject.open()
    try:
        yield backend
    finally:
        await backend.aclose()


async def events_of(backend: Backend, request: Request) -> list[Event]:
    async with backend.stream(request) as events:
        return [event async for event in events]


async def replayed(events: Sequence[Event]) -> AsyncGenerator[Event]:
    for event in events:
        yield event


def said(result: Result) -> tuple[object, ...]:
    """What a result says, without ids and times, which differ from run to run."""
    calls = [(call.name, dict(call.arguments)) for call in result.tool_calls]
    return result.text, calls, result.reason, result.enforcement


async def it_is_a_backend(subject: Subject) -> None:
    async with opened(subject) as backend:
        assert isinstance(backend, Backend)
        assert backend.name
        assert backend.capabilities.quantum >= 1


async def a_stream_ends_with_its_only_finish(subject: Subject) -> None:
    async with opened(subject) as backend:
        for request in (*subject.texts, subject.structured, subject.call):
            events = await events_of(backend, request)
            assert [isinstance(event, Finish) for event in events] == [False] * (
                len(events) - 1
            ) + [True]


async def commits_make_the_text(subject: Subject) -> None:
    async with opened(subject) as backend:
        for request in (*subject.texts, subject.structured):
            events = await events_of(backend, request)
            last = events[-1]
            assert isinstance(last, Finish)
            committed = "".join(event.text for event in events if isinstance(event, Commit))
            assert committed
            result = finish(last, committed)
            assert result.text == (committed if last.text is None else last.text)
            assert result.text == (await generate(backend, request)).text


async def drafts_leave_no_trace(subject: Subject) -> None:
    async with opened(subject) as backend:
        events = await events_of(backend, subject.texts[0])
        kept = [event for event in events if not isinstance(event, Draft)]

        assert backend.capabilities.drafts or kept == events
        async with aclosing(replayed(events)) as played, aclosing(replayed(kept)) as without:
            assert await collect(played) == await collect(without)


async def generate_is_a_fold_over_the_stream(subject: Subject) -> None:
    async with opened(subject) as backend:
        for request in (subject.texts[0], subject.structured, subject.call):
            async with backend.stream(request) as events:
                folded = await collect(events)
            assert said(await generate(backend, request)) == said(folded)


async def a_structured_reply_parses_and_validates(subject: Subject) -> None:
    async with opened(subject) as backend:
        result = await generate(backend, subject.structured)
        assert result.reason == "stop"
        assert subject.structured.schema is not None
        jsonschema.validate(json.loads(result.text), dict(subject.structured.schema))
        assert result.enforcement != "none"


async def a_tool_call_has_an_id_and_an_object(subject: Subject) -> None:
    async with opened(subject) as backend:
        result = await generate(backend, subject.call)
        assert result.reason == "tool_calls"
        assert result.tool_calls
        assert all(call.id for call in result.tool_calls)
        assert len({call.id for call in result.tool_calls}) == len(result.tool_calls)
        for call in result.tool_calls:
            assert call.name in {tool.name for tool in subject.call.tools}
            assert isinstance(call.arguments, dict)


async def usage_is_unknown_or_positive(subject: Subject) -> None:
    async with opened(subject) as backend:
        result = await generate(backend, subject.texts[0])
        usage = result.usage
        assert usage.input_tokens is None or usage.input_tokens > 0
        assert usage.output_tokens is None or usage.output_tokens > 0
        assert usage.requests == result.stats.attempts >= 1


async def leaving_early_frees_what_was_held(subject: Subject) -> None:
    async with opened(subject) as backend:
        async with backend.stream(subject.texts[0]) as events:
            await anext(events)
        assert subject.held(backend) == 0
        async with backend.stream(subject.texts[0]):
            pass  # nothing was read at all
        assert subject.held(backend) == 0
        assert (await generate(backend, subject.texts[0])).text


async def cancelling_frees_what_was_held(subject: Subject) -> None:
    async with opened(subject) as backend:
        with anyio.CancelScope() as scope:
            async with backend.stream(subject.texts[0]) as events:
                await anext(events)
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert subject.held(backend) == 0
        assert (await generate(backend, subject.texts[0])).text


async def an_error_of_the_caller_passes_unchanged(subject: Subject) -> None:
    async with opened(subject) as backend:
        mine = RuntimeError("the caller's own")
        with pytest.raises(RuntimeError) as caught:
            async with backend.stream(subject.texts[0]):
                raise mine
        assert caught.value is mine
        assert subject.held(backend) == 0


async def concurrent_streams_do_not_mix(subject: Subject) -> None:
    async with opened(subject) as backend:
        alone = [said(await generate(backend, request)) for request in subject.texts]
        together: dict[int, tuple[object, ...]] = {}

        async def run(number: int, request: Request) -> None:
            together[number] = said(await generate(backend, request))

        async with anyio.create_task_group() as tasks:
            for number, request in enumerate(subject.texts):
                tasks.start_soon(run, number, request)
        assert [together[number] for number in range(len(alone))] == alone
        assert len(set(map(str, alone))) > 1, "the subject answers all texts alike"


async def what_continues_writes_on_from_where_it_was_cut(subject: Subject) -> None:
    async with opened(subject) as backend:
        if not backend.capabilities.continues:
            return
        for request in (*subject.texts, subject.structured):
            text = (await generate(backend, request)).text
            for cut in (1, len(text) // 2, text.rfind(" ") + 1 or 1, len(text) - 1):
                before = assistant(text[:cut])
                rest = await generate(
                    backend, replace(request, messages=(*request.messages, before))
                )
                assert rest.reason == "stop"
                if request.schema is None:
                    assert before.content + rest.text == text
                else:
                    assert json.loads(before.content + rest.text) == json.loads(text)
                    assert rest.enforcement == "validated"


async def closing_twice_is_safe(subject: Subject) -> None:
    backend = subject.open()
    await generate(backend, subject.texts[0])
    await backend.aclose()
    await backend.aclose()


async def a_failure_names_the_backend(subject: Subject) -> None:
    if subject.failing is None:
        pytest.skip("has no way to fail")
    backend = subject.failing()
    with pytest.raises(BackendError) as caught:
        await generate(backend, subject.texts[0])
    assert caught.value.backend == backend.name
    assert backend.name in str(caught.value)
    assert subject.held(backend) == 0
    await backend.aclose()


CHECKS: Sequence[Callable[[Subject], Awaitable[None]]] = (
    it_is_a_backend,
    a_stream_ends_with_its_only_finish,
    commits_make_the_text,
    drafts_leave_no_trace,
    generate_is_a_fold_over_the_stream,
    a_structured_reply_parses_and_validates,
    a_tool_call_has_an_id_and_an_object,
    usage_is_unknown_or_positive,
    leaving_early_frees_what_was_held,
    cancelling_frees_what_was_held,
    an_error_of_the_caller_passes_unchanged,
    concurrent_streams_do_not_mix,
    what_continues_writes_on_from_where_it_was_cut,
    closing_twice_is_safe,
    a_failure_names_the_backend,
)
