"""The span around a generation: `traced` wraps the stream of a backend in `chat {model}`.

The span is the current one while the code of the backend runs, never while the stream rests between
two events: a stream that is closed in another task, or left early, does not leak its span to
whoever consumed it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import assert_never

from opentelemetry.trace import INVALID_SPAN, SpanKind

from agentdiff.generation import Backend, Budget, Commit, Draft, Event, Finish, Request
from agentdiff.telemetry import content, names
from agentdiff.telemetry.metrics import count_generation
from agentdiff.telemetry.spans import cancel, current, current_tracer, error_type, fail


def traced(
    backend: Backend, request: Request, stream: AbstractAsyncContextManager[AsyncIterator[Event]]
) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
    """The same stream inside a span, which starts and ends when the stream is entered and left.

    Events pass through untouched and errors unchanged. A stream that is left before its `Finish` is
    marked `agentdiff.cancelled`; one that ends by itself without a `Finish` is an error of the
    backend.

    Raises:
        ConfigurationError: on entering, if `AGENTDIFF_SEMCONV` is not one of its modes.
    """
    return _TracedStream(backend, request, stream)


class _TracedStream(AbstractAsyncContextManager[AsyncIterator[Event]], AsyncIterator[Event]):
    def __init__(
        self,
        backend: Backend,
        request: Request,
        stream: AbstractAsyncContextManager[AsyncIterator[Event]],
    ) -> None:
        self._backend = backend
        self._request = request
        self._stream = stream
        self._span = INVALID_SPAN
        self._mode: names.Semconv = "latest"
        self._started_s = 0.0
        self._first_commit_s: float | None = None
        self._drafts = 0
        self._committed: list[str] | None = None
        """The text so far, kept only for content capture."""
        self._said: str | None = None
        """The reply as it is written, for content capture."""
        self._finish: Finish | None = None
        self._is_exhausted = False
        self._error: Exception | None = None
        """What the backend raised; an error of the consumer is not the backend's."""

    async def __aenter__(self) -> AsyncIterator[Event]:
        name, self._mode = self._backend.name, names.semconv()
        of_backend = names.generation_of(name)
        self._started_s = time.perf_counter()
        self._span = current_tracer().start_span(
            f"chat {of_backend[names.REQUEST_MODEL]}",
            kind=SpanKind.CLIENT,
            attributes=names.spelled({**of_backend, **_request(self._request)}, self._mode),
        )
        if self._span.is_recording() and names.captures_content():
            self._committed = []
            self._set({names.INPUT_MESSAGES: content.input_messages(self._request.messages)})
        try:
            with current(self._span):
                self._events = await self._stream.__aenter__()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else None
            self._end(error)
            raise
        return self

    async def __anext__(self) -> Event:
        try:
            with current(self._span):
                event = await self._events.__anext__()
        except StopAsyncIteration:
            self._is_exhausted = True
            raise
        except Exception as error:
            self._error = error
            raise
        if self._span.is_recording():
            self._note(event)
        elif isinstance(event, Finish):
            self._finish = event
        elif self._first_commit_s is None and isinstance(event, Commit):
            self._first_commit_s = time.perf_counter() - self._started_s
        return event

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            with current(self._span):
                return await self._stream.__aexit__(kind, error, traceback)
        except Exception as on_exit:
            # The backend's own, or its own in other words; what the consumer raised only passes
            # through here.
            if error is None or self._error is not None:
                self._error = on_exit
            raise
        finally:
            self._end(error)

    def _note(self, event: Event) -> None:
        match event:
            case Draft():
                self._drafts += 1
            case Commit(text):
                if self._first_commit_s is None:
                    self._first_commit_s = time.perf_counter() - self._started_s
                if self._committed is not None:
                    self._committed.append(text)
            case Finish():
                self._finish = event
                if event.stats.first_commit_s is not None:
                    self._first_commit_s = event.stats.first_commit_s
                if self._committed is not None:
                    text = "".join(self._committed) if event.text is None else event.text
                    self._said = content.output_messages(
                        text, event.tool_calls, finish_reason=event.reason
                    )
            case _:
                assert_never(event)

    def _end(self, left_with: BaseException | None) -> None:
        """End the span; `left_with` is the error that the block around the stream was left with."""
        if self._span.is_recording():
            # All at once: an SDK locks the span and looks through it each time.
            outcome: dict[names.Name, names.AttributeValue | None] = {
                names.OUTPUT_MESSAGES: self._said,
                names.DRAFTS: self._drafts or None,
                names.FIRST_COMMIT_MS: _ms(self._first_commit_s),
            }
            if self._finish is not None:
                outcome |= _outcome(self._finish, self._request.budget)
            self._set(outcome)
        error: str | None = None
        if self._error is not None:
            error = error_type(self._error)
        elif self._finish is None and self._is_exhausted:
            error = "ProtocolError"
        count_generation(
            self._request,
            self._finish,
            self._backend.name,
            self._mode,
            seconds=time.perf_counter() - self._started_s,
            first_commit_s=self._first_commit_s,
            error=error or ("cancelled" if self._finish is None else None),
        )
        if error is not None:
            fail(self._span, error)
        elif self._finish is None and self._span.is_recording():
            cancel(self._span, by_error=left_with is not None)
        self._span.end()

    def _set(self, values: names.Values) -> None:
        self._span.set_attributes(names.spelled(values, self._mode))


def _request(request: Request) -> names.Values:
    sampling = request.sampling
    budget = request.budget
    return {
        names.STEP_KIND: request.kind,
        names.EFFORT: sampling.effort,
        names.TEMPERATURE: sampling.temperature,
        names.TOP_P: sampling.top_p,
        names.SEED: sampling.seed,
        names.OUTPUT_TYPE: "text" if request.schema is None else "json",
        names.MAX_TOKENS: None if budget is None else budget.ceiling,
        **_budget(budget),
    }


def _budget(budget: Budget | None) -> names.Values:
    if budget is None:
        return {}
    return {
        names.BUDGET_TARGET: budget.target,
        names.BUDGET_CEILING: budget.ceiling,
        names.BUDGET_SOURCE: budget.source,
    }


def _outcome(finish: Finish, asked: Budget | None) -> names.Values:
    usage, stats, budget = finish.usage, finish.stats, finish.budget or asked
    used = usage.output_tokens
    return {
        names.RESPONSE_MODEL: finish.model or None,
        names.FINISH_REASONS: [finish.reason],
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: used,
        names.REASONING_TOKENS: usage.reasoning_tokens,
        **({} if budget is asked else _budget(budget)),
        names.BUDGET_USED: used if budget else None,
        names.BUDGET_FILL: used / budget.target if budget and used is not None else None,
        names.FORWARDS: stats.forwards,
        names.POSITIONS: stats.positions,
        names.TOKENS_PER_FORWARD: stats.tokens_per_forward(used),
        names.BLOCKS: stats.blocks,
        names.EXTENSIONS: stats.extensions,
        names.FORCED_TOKENS: stats.forced_tokens,
        names.CONSTRAINT_MS: _ms(stats.constraint_s),
        names.DECODE_MS: _ms(stats.decode_s),
        names.CACHE: stats.cache,
        names.CONFIDENCE: stats.confidence,
        names.ATTEMPTS: stats.attempts,
        names.ENFORCEMENT: finish.enforcement,
        names.WARNINGS: len(finish.warnings) or None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
