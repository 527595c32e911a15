"""The span around a generation."""

from contextlib import asynccontextmanager

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from agentdiff.errors import ConfigurationError, ProtocolError, RateLimited
from agentdiff.generation import Budget, Commit, Finish, Sampling, collect
from agentdiff.telemetry import invoke_agent, traced
from tests.telemetry.recorder import CANARY, Played, finish, play, recording, request, script


async def test_events_pass_through_untouched():
    with recording():
        assert await play(Played(script()), request()) == script()


async def test_without_an_sdk_events_pass_and_nothing_is_recorded():
    assert await play(Played(script()), request()) == script()
    with invoke_agent(agent="a", model="m") as run:
        assert run.trace_id is None


async def test_a_generation_says_what_was_asked_and_what_came_back():
    asked = request(
        kind="route",
        schema={"type": "object"},
        budget=Budget(target=24, ceiling=48),
        sampling=Sampling(temperature=0.5, seed=7),
    )
    with recording() as spans:
        await play(Played(script()), asked)
    span = spans.named("chat embedded")
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "agentdiff.embedded",
        "gen_ai.request.model": "embedded",
        "gen_ai.request.max_tokens": 48,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.output.type": "json",
        "gen_ai.response.model": "agentdiff-router-1",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 180,
        "gen_ai.usage.output_tokens": 24,
        "agentdiff.backend": "embedded",
        "agentdiff.step.kind": "route",
        "agentdiff.effort": "balanced",
        "agentdiff.budget.target": 32,
        "agentdiff.budget.ceiling": 64,
        "agentdiff.budget.source": "prior",
        "agentdiff.budget.used": 24,
        "agentdiff.budget.fill": 0.75,
        "agentdiff.forwards": 6,
        "agentdiff.positions": 900,
        "agentdiff.tokens_per_forward": 4.0,
        "agentdiff.blocks": 2,
        "agentdiff.forced_tokens": 9,
        "agentdiff.constraint_ms": 4.0,
        "agentdiff.decode_ms": 50.0,
        "agentdiff.time_to_first_commit_ms": 30.0,
        "agentdiff.cache": "block",
        "agentdiff.extensions": 0,
        "agentdiff.confidence": 0.91,
        "agentdiff.drafts": 2,
        "agentdiff.attempts": 1,
        "agentdiff.enforcement": "in_block",
        "agentdiff.warnings": 1,
    }


async def test_what_a_backend_does_not_know_is_absent_and_the_first_commit_is_measured():
    with recording() as spans:
        await play(
            Played([Commit("a"), Finish(reason="stop")], name="mercury:mercury-2"), request()
        )
    attributes = spans.named("chat mercury-2").attributes or {}
    assert attributes["gen_ai.provider.name"] == "inception"
    assert isinstance(attributes["agentdiff.time_to_first_commit_ms"], float)
    assert attributes.keys() == {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.output.type",
        "gen_ai.response.finish_reasons",
        "agentdiff.backend",
        "agentdiff.step.kind",
        "agentdiff.effort",
        "agentdiff.time_to_first_commit_ms",
        "agentdiff.attempts",
        "agentdiff.enforcement",
    }


async def test_an_error_of_the_backend_gives_its_class_and_never_its_message():
    backend = Played([Commit("a"), RateLimited(CANARY)])
    with recording() as spans, pytest.raises(RateLimited):
        await play(backend, request())
    span = spans.named("chat embedded")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "RateLimited"
    assert "agentdiff.cancelled" not in (span.attributes or {})
    assert CANARY not in spans.everything()


async def test_a_stream_that_cannot_be_opened_is_an_error():
    class Closed:
        async def __aenter__(self):
            raise RateLimited("no")

        async def __aexit__(self, *_: object):
            raise AssertionError

    with recording() as spans, pytest.raises(RateLimited):
        async with traced(Played([]), request(), Closed()):
            raise AssertionError
    assert (spans.named("chat embedded").attributes or {})["error.type"] == "RateLimited"


async def test_a_stream_that_ends_without_finish_is_an_error_of_the_backend():
    backend = Played([Commit("a")])
    with recording() as spans, pytest.raises(ProtocolError):
        async with traced(backend, request(), backend.stream(request())) as events:
            await collect(events)
    assert (spans.named("chat embedded").attributes or {})["error.type"] == "ProtocolError"


async def test_a_consumer_that_leaves_early_ends_the_span_as_cancelled_and_frees_the_backend():
    backend = Played(script())
    with recording() as spans:
        async with traced(backend, request(), backend.stream(request())) as events:
            async for _ in events:
                break
    attributes = spans.named("chat embedded").attributes or {}
    assert attributes["agentdiff.cancelled"] is True
    assert "error.type" not in attributes
    assert backend.is_closed


async def test_an_error_of_the_consumer_is_not_the_backends():
    backend = Played(script())

    async def consume() -> None:
        async with traced(backend, request(), backend.stream(request())) as events:
            async for _ in events:
                raise ZeroDivisionError

    with recording() as spans, pytest.raises(ZeroDivisionError):
        await consume()
    span = spans.named("chat embedded")
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["agentdiff.cancelled"] is True
    assert (span.attributes or {})["error.type"] == "cancelled"


async def test_an_error_after_finish_leaves_the_span_as_it_was():
    backend = Played(script())

    async def consume() -> None:
        async with traced(backend, request(), backend.stream(request())) as events:
            await collect(events)
            raise ZeroDivisionError

    with recording() as spans, pytest.raises(ZeroDivisionError):
        await consume()
    attributes = spans.named("chat embedded").attributes or {}
    assert not {"error.type", "agentdiff.cancelled"} & attributes.keys()


async def test_cancellation_passes_through_and_ends_the_span():
    backend = Played(script())
    with recording() as spans:
        with anyio.CancelScope() as scope:
            async with traced(backend, request(), backend.stream(request())) as events:
                async for _ in events:
                    scope.cancel()
        assert scope.cancelled_caught
    span = spans.named("chat embedded")
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["agentdiff.cancelled"] is True


async def test_between_two_events_the_consumer_keeps_its_own_span():
    backend = Played(script())
    with recording(), invoke_agent(agent="a", model="m"):
        outside = trace.get_current_span()
        async with traced(backend, request(), backend.stream(request())) as events:
            assert trace.get_current_span() is outside
            async for _ in events:
                assert trace.get_current_span() is outside
        assert trace.get_current_span() is outside


async def test_spans_of_the_backend_are_children_of_the_generation():
    seen = []

    class Watching(Played):
        @asynccontextmanager
        async def stream(self, request):
            seen.append(trace.get_current_span())
            async with super().stream(request) as events:
                yield events
            seen.append(trace.get_current_span())

    with recording() as spans:
        await play(Watching(script()), request())
    own = spans.named("chat embedded").get_span_context()
    assert [span.get_span_context() for span in seen] == [own, own]


async def test_generations_in_parallel_have_the_run_as_their_parent():
    with recording() as spans, invoke_agent(agent="a", model="m"):
        async with anyio.create_task_group() as group:
            for name in ("mercury:x", "mercury:y"):
                group.start_soon(play, Played(script(), name=name), request())
    run = spans.named("invoke_agent a").get_span_context()
    for name in ("chat x", "chat y"):
        parent = spans.named(name).parent
        assert parent is not None
        assert run is not None
        assert parent.span_id == run.span_id


async def test_a_stream_closed_in_another_task_is_no_error(caplog: pytest.LogCaptureFixture):
    backend = Played([finish()])
    stream = traced(backend, request(), backend.stream(request()))
    with recording() as spans:
        await stream.__aenter__()

        async def close() -> None:
            await stream.__aexit__(None, None, None)

        async with anyio.create_task_group() as group:
            group.start_soon(close)
    assert spans.named("chat embedded")
    assert not caplog.records


async def test_a_wrong_convention_fails_before_the_backend_is_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("AGENTDIFF_SEMCONV", "newest")
    backend = Played(script())
    with pytest.raises(ConfigurationError, match="'newest'; use one of latest, legacy, both"):
        await play(backend, request())
    assert not backend.is_closed
