"""What all spans share: the tracer, the current span, and how one ends.

The message of an error is never written, only its class: messages quote servers, and servers quote
prompts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import ClassVar, Self

from opentelemetry import context, trace
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, Tracer, TracerProvider

from agentdiff.telemetry import names

_tracer: ContextVar[Tracer | None] = ContextVar("agentdiff_tracer", default=None)


def current_tracer() -> Tracer:
    """The tracer of the innermost `tracing_with`, or the application's own."""
    return _tracer.get() or _tracer_of(trace.get_tracer_provider())


@functools.lru_cache(maxsize=4)
def _tracer_of(provider: TracerProvider) -> Tracer:
    """A provider's tracer; an SDK takes longer to look one up than to start a span."""
    return provider.get_tracer(names.SCOPE)


@contextmanager
def tracing_with(tracer: Tracer) -> Generator[None]:
    """Send the spans of this block and of the tasks and threads it starts to `tracer`."""
    before = _tracer.get()
    _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.set(before)


class current:
    """Make `span` the parent of the spans that are started in this block.

    The context before is put back without a token, so that leaving in another task than the one
    that entered (a stream closed by a finalizer) is no error and leaks nothing. A class, since every
    event of a stream passes through it.
    """

    __slots__ = ("_before", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        self._before = context.get_current()
        context.attach(trace.set_span_in_context(self._span, self._before))

    def __exit__(self, *_: object) -> None:
        context.attach(self._before)


class SpanBlock:
    """A block of code inside a span, which is the current one there and ends with the block.

    An error that leaves the block marks the span and goes on; being cancelled is no failure of its
    own. A class and not a generator, since each step of a run passes through some.

    Raises:
        ConfigurationError: On entering, if `AGENTDIFF_SEMCONV` is not one of its modes.
    """

    __slots__ = ("_before", "_mode", "_name", "_span", "_started_s", "_values", "error")
    kind: ClassVar[SpanKind] = SpanKind.INTERNAL

    def __init__(self, name: str, values: names.Values) -> None:
        self._name = name
        self._values = values
        self._mode: names.Semconv = "latest"
        self._span = INVALID_SPAN
        self.error: str | None = None
        """The class of the error that the block failed with."""

    def __enter__(self) -> Self:
        self._mode = names.semconv()
        self._started_s = time.perf_counter()
        self._span = current_tracer().start_span(
            self._name,
            kind=self.kind,
            attributes=names.spelled(self._values, self._mode),
        )
        self._before = context.get_current()
        context.attach(trace.set_span_in_context(self._span, self._before))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        context.attach(self._before)
        if error is None:
            pass
        elif isinstance(error, Exception):
            self.error = error_type(error)
            fail(self._span, error)
        else:  # cancellation, Ctrl-C, an abandoned stream
            self.error = "cancelled"
            cancel(self._span, by_error=True)
        self._count(time.perf_counter() - self._started_s)
        self._span.end()

    def _set(self, values: names.Values) -> None:
        if self._span.is_recording():
            self._span.set_attributes(names.spelled(values, self._mode))

    def _count(self, seconds: float) -> None:
        """Count the block in the metrics; not every kind of block is counted."""


def fail(span: Span, error: BaseException | str) -> None:
    """Give the span the status ERROR and the class of `error` (or the name given)."""
    span.set_status(StatusCode.ERROR)
    span.set_attributes(names.spelled({names.ERROR_TYPE: error_type(error)}))


def cancel(span: Span, *, by_error: bool) -> None:
    """Mark work that was given up, no failure of its own; `by_error` if one around it was why."""
    span.set_attributes(
        names.spelled({names.CANCELLED: True, names.ERROR_TYPE: "cancelled" if by_error else None})
    )


def error_type(error: BaseException | str) -> str:
    """The class of an error; of a group of one, the class of that one."""
    if isinstance(error, str):
        return error
    match error:
        case BaseExceptionGroup(exceptions=(BaseException() as only,)):
            return error_type(only)
        case _:
            return type(error).__name__
