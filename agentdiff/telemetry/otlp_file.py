"""A trace in a file, as OTLP JSON lines: one ExportTraceServiceRequest on each.

Every span is a line of its own, written by one unbuffered write when the span ends, so the file can
be read at any moment: after Ctrl-C it holds what had ended, after a full disk what fitted. Ids are
hex, 64-bit integers are strings, as OTLP/JSON says. Knows the shape of a finished span, not the
SDK; `sdk.py` brings the two together.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from os import PathLike, fspath
from threading import Lock
from typing import TYPE_CHECKING

from opentelemetry.trace import NoOpTracer

from agentdiff.errors import MissingExtra, TraceError
from agentdiff.messages import Json
from agentdiff.telemetry.spans import tracing_with

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext
    from opentelemetry.util.types import AnyValue


class TraceFile:
    """A file that spans are appended to.

    Writing never raises: the first problem ends it and is kept in `problem`.
    """

    def __init__(self, path: str, file: FileIO) -> None:
        self.path = path
        self.problem: str | None = None
        """One line on why spans are missing from the file; None while all is well."""
        self.spans = 0
        """Spans written so far."""
        self._file = file
        self._lock = Lock()

    def append(self, span: ReadableSpan) -> None:
        """Write one finished span. Of a line that does not fit, nothing stays in the file."""
        request = json.dumps(_export_request(span), ensure_ascii=False, separators=(",", ":"))
        line = f"{request}\n".encode(errors="replace")  # a lone surrogate has no UTF-8
        with self._lock:
            if self.problem is not None or self._file.closed:
                return
            end = 0
            try:
                end = self._file.tell() if self._file.seekable() else 0
                while line:
                    line = line[self._file.write(line) :]
                self.spans += 1
            except OSError as error:
                self.problem = (
                    f"the trace in {self.path!r} is incomplete: {error.strerror or error}"
                )
                with suppress(OSError):
                    self._file.truncate(end)

    def close(self) -> None:
        """Close the file. Spans that end later are left out."""
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self.problem = self.problem or (
                    f"the trace in {self.path!r} may be incomplete: {error.strerror or error}"
                )


@contextmanager
def trace_to_file(path: str | PathLike[str]) -> Generator[TraceFile]:
    """Write the spans of this block to `path`; a file that is there is replaced.

    The application's own tracer provider is left alone and does not see these spans.

    Raises:
        MissingExtra: `opentelemetry-sdk` is not installed; the file is not touched.
        TraceError: the file cannot be opened for writing. Later failures do not raise: see
            `TraceFile.problem`.
    """
    try:
        from agentdiff.telemetry.sdk import tracer_into
    except ImportError as error:
        raise MissingExtra("--trace", extra="otel") from error
    name = fspath(path)
    try:
        file = open(name, "wb", buffering=0)  # noqa: SIM115 - closed by `TraceFile.close`
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(
            f"cannot write the trace to {name!r}: {reason}; choose another file"
        ) from error
    trace_file = TraceFile(name, file)
    try:
        tracer = tracer_into(trace_file)
        if isinstance(tracer, NoOpTracer):
            trace_file.problem = f"the trace in {name!r} is empty: `OTEL_SDK_DISABLED` is set"
        with tracing_with(tracer):
            yield trace_file
    finally:
        trace_file.close()


def _export_request(span: ReadableSpan) -> dict[str, Json]:
    scope = span.instrumentation_scope
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _key_values(span.resource.attributes)},
                "scopeSpans": [
                    {
                        "scope": {
                            "name": scope.name if scope else "",
                            "version": (scope.version if scope else None) or "",
                        },
                        "spans": [_span(span)],
                    }
                ],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Json]:
    """The span as OTLP has it. Events and links are left out: agentdiff writes none."""
    encoded = {
        **_ids(span.get_span_context()),
        "name": span.name,
        "kind": span.kind.value + 1,  # OTLP counts from 1, the API from 0
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _key_values(span.attributes or {}),
        "status": {"code": span.status.status_code.value} if span.status.status_code.value else {},
    }
    if span.parent is not None:
        encoded["parentSpanId"] = f"{span.parent.span_id:016x}"
    return encoded


def _ids(context: SpanContext | None) -> dict[str, Json]:
    assert context is not None  # the SDK gives one to every span that it records
    ids = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "flags": int(context.trace_flags),
    }
    return {**ids, "traceState": state} if (state := context.trace_state.to_header()) else ids


def _key_values(attributes: Mapping[str, AnyValue]) -> list[Json]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: AnyValue) -> dict[str, Json]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value if math.isfinite(value) else _non_finite(value)}
        case str():
            return {"stringValue": value}
        case bytes():
            return {"bytesValue": b64encode(value).decode()}
        case Mapping():
            return {"kvlistValue": {"values": _key_values(value)}}
        case Sequence():
            return {"arrayValue": {"values": [_any_value(item) for item in value]}}
        case None:
            return {}


def _non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
