"""The spans around a run and around a tool, and what all spans share.

The message of an error is never written, only its class: messages quote servers, and servers quote
prompts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider

from agentdiff.messages import Json, Usage
from agentdiff.telemetry import content, names
from agentdiff.telemetry.metrics import count_run, count_tool_call

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


class RunSpan:
    """The span of a run."""

    __slots__ = ("_span", "trace_id")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.trace_id = (
            trace.format_trace_id(span.get_span_context().trace_id) if span.is_recording() else None
        )
        """The trace's id in 32 hex digits, or None where nothing records this run."""

    def finish(
        self,
        usage: Usage,
        steps: int,
        *,
        tool_calls: int | None = None,
        cost: float | None = None,
        truncations: int | None = None,
        budget_fill: float | None = None,
        resumed: int | None = None,
    ) -> None:
        """Record what the run used and how many steps it took, also when it ends in an error."""
        if not self._span.is_recording():
            return
        self._span.set_attributes(
            names.spelled(
                {
                    names.INPUT_TOKENS: usage.input_tokens,
                    names.OUTPUT_TOKENS: usage.output_tokens,
                    names.REASONING_TOKENS: usage.reasoning_tokens,
                    names.REQUESTS: usage.requests,
                    names.STEPS: steps,
                    names.TOOL_CALLS: tool_calls,
                    names.COST: cost,
                    names.TRUNCATIONS: truncations,
                    names.RUN_BUDGET_FILL: budget_fill,
                    names.RESUMED: resumed,
                }
            )
        )

    def cut(self, *, step: int, ceiling: int | None, used: int | None, then: str) -> None:
        """Note that a budget cut a generation, and what is done about it: `again`, `continue`, `fail`."""
        if self._span.is_recording():
            attributes: Mapping[names.Name, names.AttributeValue | None] = {
                names.NUMBER: step,
                names.BUDGET_CEILING: ceiling,
                names.BUDGET_USED: used,
            }
            self._span.add_event(
                "agentdiff.truncation", {"agentdiff.then": then, **names.spelled(attributes)}
            )


class ToolSpan:
    """The span of a tool call."""

    __slots__ = ("_span", "error")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.error: str | None = None
        """The class of the error that the call failed with."""

    def fail(self, error: BaseException) -> None:
        """Mark the call as failed. An error that leaves the block does so by itself.

        The whole error, message and traceback, is written only if content capture is on.
        """
        self.error = error_type(error)
        fail(self._span, error)
        if self._span.is_recording() and names.captures_content():
            self._span.record_exception(error)

    def approved(self, is_approved: bool) -> None:
        """Note what a person said to the call."""
        self._span.set_attributes(
            names.spelled({names.APPROVAL: "approved" if is_approved else "denied"})
        )

    def waits(self) -> None:
        """Note that the run pauses until a person has said something to the call."""
        self._span.set_attributes(names.spelled({names.APPROVAL: "waiting"}))

    def again(self, attempt: int) -> None:
        """Note that the model was told to make this call again; `attempt` is from 2."""
        self._span.set_attributes(names.spelled({names.TOOL_ATTEMPT: attempt}))

    @property
    def wants_content(self) -> bool:
        """Whether `returned` would write what it is given."""
        return self._span.is_recording() and names.captures_content()

    def returned(self, result: str) -> None:
        """What the model is told; written only if content capture is on."""
        if names.captures_content():
            self._span.set_attributes(names.spelled({names.TOOL_RESULT: content.clipped(result)}))


@contextmanager
def invoke_agent(*, agent: str, model: str) -> Generator[RunSpan]:
    """A span `invoke_agent {agent}` around one run: the parent of all spans started inside.

    Raises:
        ConfigurationError: `AGENTDIFF_SEMCONV` is not one of its modes.
    """
    attributes: Mapping[names.Name, names.AttributeValue | None] = {
        names.OPERATION: "invoke_agent",
        names.AGENT: agent,
        names.REQUEST_MODEL: model,
    }
    with (
        _span(f"invoke_agent {agent}", attributes) as span,
        _counted(count_run, {names.AGENT: agent}, span=None),
    ):
        yield RunSpan(span)


@contextmanager
def execute_tool(
    *, tool: str, call_id: str, arguments: Mapping[str, Json] | None = None
) -> Generator[ToolSpan]:
    """A span `execute_tool {tool}` around one call.

    `arguments` are written only if content capture is on.

    Raises:
        ConfigurationError: `AGENTDIFF_SEMCONV` is not one of its modes.
    """
    captured = None
    if arguments is not None and names.captures_content():
        captured = content.arguments_json(arguments)
    attributes: Mapping[names.Name, names.AttributeValue | None] = {
        names.OPERATION: "execute_tool",
        names.TOOL: tool,
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: call_id,
        names.TOOL_ARGUMENTS: captured,
    }
    with _span(f"execute_tool {tool}", attributes) as span:
        made = ToolSpan(span)
        with _counted(count_tool_call, {names.TOOL: tool}, span=made):
            yield made


class PlanSpan:
    """The span of a plan that runs."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def finish(
        self,
        *,
        steps: int,
        critical_path_ms: float,
        sum_ms: float,
        parallel_gain: float,
        failed: int,
    ) -> None:
        """Record how it ran."""
        self._span.set_attributes(
            names.spelled(
                {
                    names.PLAN_STEPS: steps,
                    names.CRITICAL_PATH_MS: round(critical_path_ms, 3),
                    names.SUM_MS: round(sum_ms, 3),
                    names.PARALLEL_GAIN: round(parallel_gain, 3),
                    names.FAILED_STEPS: failed or None,
                }
            )
        )


@contextmanager
def carry_out_plan() -> Generator[PlanSpan]:
    """A span `plan` around the calls of a plan, and around the generation that writes it.

    Raises:
        ConfigurationError: `AGENTDIFF_SEMCONV` is not one of its modes.
    """
    with _span("plan", {}) as span:
        yield PlanSpan(span)


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


@contextmanager
def _counted(
    count: Callable[..., None],
    labels: Mapping[names.Name, names.AttributeValue | None],
    *,
    span: ToolSpan | None,
) -> Generator[None]:
    """Count what the block does: its time, and the class of the error that ends it."""
    started_s = time.perf_counter()
    error: str | None = None
    try:
        yield
    except Exception as raised:
        error = error_type(raised)
        raise
    except BaseException:
        error = "cancelled"
        raise
    finally:
        if span is not None:
            error = error or span.error
        count(labels, seconds=time.perf_counter() - started_s, error=error)


@contextmanager
def _span(
    name: str, attributes: Mapping[names.Name, names.AttributeValue | None]
) -> Generator[Span]:
    span = current_tracer().start_span(
        name, kind=SpanKind.INTERNAL, attributes=names.spelled(attributes)
    )
    try:
        with current(span):
            yield span
    except Exception as error:
        fail(span, error)
        raise
    except BaseException:  # cancellation, Ctrl-C, an abandoned stream
        cancel(span, by_error=True)
        raise
    finally:
        span.end()
