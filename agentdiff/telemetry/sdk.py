"""What needs `opentelemetry-sdk`: a tracer of our own that ends in a `TraceFile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from agentdiff._version import __version__
from agentdiff.telemetry import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from agentdiff.telemetry.otlp_file import TraceFile


class _ToFile(SpanProcessor):
    def __init__(self, file: TraceFile) -> None:
        self._file = file

    def on_end(self, span: ReadableSpan) -> None:
        self._file.append(span)


def tracer_into(file: TraceFile) -> Tracer:
    """A tracer whose spans all go to `file`.

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` count, samplers do not. A no-op tracer
    if `OTEL_SDK_DISABLED` is set.
    """
    provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(_ToFile(file))
    return provider.get_tracer(names.SCOPE, __version__)


def _resource() -> Resource:
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: names.SCOPE}))
    return resource
