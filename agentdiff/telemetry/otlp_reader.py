"""Reading OTLP JSON: our own trace files, and those of other exporters and collectors.

Tolerant about what the format leaves open or others write differently: JSON lines or one JSON
document, camelCase or snake_case, numbers or strings, enums by number or by name, unknown fields. A
line that is still not OTLP JSON is counted and left out; lines with metrics or logs are neither
spans nor broken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from agentdiff.errors import TraceError
from agentdiff.messages import Json
from agentdiff.telemetry.names import Name


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A span as a file has it."""

    trace_id: str
    span_id: str
    parent_id: str | None
    """None for the root of a trace; the parent need not be in the file."""
    name: str
    start_ns: int
    end_ns: int
    """Never before `start_ns`; equal to it where the file does not say."""
    is_error: bool
    attributes: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def duration_ms(self) -> float:
        """Milliseconds from start to end."""
        return (self.end_ns - self.start_ns) / 1e6

    def text(self, name: Name) -> str | None:
        """The attribute as a string, in either convention; None if it is absent or no string."""
        value = self._value(name)
        return value if isinstance(value, str) else None

    def number(self, name: Name) -> float | None:
        """The attribute as a number; None if it is absent, no number or not finite."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if math.isfinite(value) else None

    def flag(self, name: Name) -> bool:
        """Whether the attribute is there and true."""
        return self._value(name) is True

    def _value(self, name: Name) -> Json:
        for key in name:
            if (value := self.attributes.get(key)) is not None:
                return value
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFile:
    """What a file holds."""

    spans: tuple[SpanRecord, ...]
    """Without duplicates, by start."""
    lines: int
    """Lines that are not empty."""
    broken_lines: int
    """Lines that are not OTLP JSON."""

    def traces(self) -> list[list[SpanRecord]]:
        """The spans of each trace, in the order in which the traces begin."""
        traces: dict[str, list[SpanRecord]] = {}
        for span in self.spans:
            traces.setdefault(span.trace_id, []).append(span)
        return list(traces.values())


def load_spans(path: str | PathLike[str]) -> SpanFile:
    """Read all spans of an OTLP JSON file.

    Raises:
        TraceError: the file cannot be read, or holds not one span.
    """
    name = fspath(path)
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"cannot read the trace {name!r}: {reason}") from error
    lines = [line for line in text.split("\n") if line.strip()]
    spans, broken = _parse(lines)
    if broken and not spans:  # perhaps one document over many lines
        whole, is_broken = _parse([text])
        spans, broken = (whole, 0) if not is_broken else (spans, broken)
    if not spans:
        found = f"{broken} of {len(lines)} lines are not OTLP JSON" if broken else "it is empty"
        raise TraceError(
            f"there are no spans in {name!r} ({found});"
            " `agentdiff run TASK --trace FILE` writes a trace"
        )
    by_start = sorted(spans.values(), key=lambda span: (span.start_ns, -span.end_ns))
    return SpanFile(spans=tuple(by_start), lines=len(lines), broken_lines=broken)


def _parse(texts: list[str]) -> tuple[dict[tuple[str, str], SpanRecord], int]:
    """The spans of some JSON texts by their ids, and how many of the texts are no OTLP JSON."""
    spans: dict[tuple[str, str], SpanRecord] = {}
    broken = 0
    for text in texts:
        try:
            exports = _EXPORTS.validate_json(text)
            for export in exports if isinstance(exports, list) else [exports]:
                spans |= {(span.trace_id, span.span_id): span for span in export.spans()}
        except ValueError:  # not JSON, or JSON of another kind
            broken += 1
    return spans, broken


class _Otlp(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class _Any(_Otlp):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    array_value: _Array | None = None
    kvlist_value: _KeyValues | None = None

    def plain(self) -> Json:
        if self.array_value is not None:
            return [value.plain() for value in self.array_value.values]
        if self.kvlist_value is not None:
            return {item.key: item.plain() for item in self.kvlist_value.values}
        scalars = (self.string_value, self.bool_value, self.int_value, self.double_value)
        return next((scalar for scalar in scalars if scalar is not None), None)


class _Array(_Otlp):
    values: list[_Any] = []


class _KeyValue(_Otlp):
    key: str = ""
    value: _Any | None = None

    def plain(self) -> Json:
        return None if self.value is None else self.value.plain()


class _KeyValues(_Otlp):
    values: list[_KeyValue] = []


class _Status(_Otlp):
    code: int | str = 0


class _Span(_Otlp):
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    name: str = ""
    start_time_unix_nano: int = 0
    end_time_unix_nano: int = 0
    attributes: list[_KeyValue] = []
    status: _Status | None = None

    def record(self) -> SpanRecord:
        code = self.status.code if self.status else 0
        return SpanRecord(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent_span_id or None,
            name=self.name,
            start_ns=self.start_time_unix_nano,
            end_ns=max(self.end_time_unix_nano, self.start_time_unix_nano),
            is_error=code in (2, "2", "STATUS_CODE_ERROR", "ERROR"),
            attributes={item.key: item.plain() for item in self.attributes},
        )


class _ScopeSpans(_Otlp):
    spans: list[_Span] = []


class _ResourceSpans(_Otlp):
    scope_spans: list[_ScopeSpans] = []


class _Export(_Otlp):
    resource_spans: list[_ResourceSpans] | None = None
    resource_metrics: Json = None
    resource_logs: Json = None

    def spans(self) -> Iterator[SpanRecord]:
        if self.resource_spans is self.resource_metrics is self.resource_logs is None:
            raise ValueError("neither spans nor metrics nor logs")
        for resource in self.resource_spans or ():
            for scope in resource.scope_spans:
                for span in scope.spans:
                    yield span.record()


_EXPORTS: TypeAdapter[_Export | list[_Export]] = TypeAdapter(_Export | list[_Export])
