"""What the telemetry tests share: spans in memory, and streams that play a script."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import pytest

from agentdiff.generation import Budget, Capabilities, Commit, Draft, Event, Finish, Request, Stats
from agentdiff.messages import ToolCall, Usage, user
from agentdiff.telemetry import traced
from agentdiff.telemetry.spans import tracing_with

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CANARY = "canary-7f3a"
"""Stands in every text that must not leave the process."""


def _exporter() -> "InMemorySpanExporter":
    pytest.importorskip("opentelemetry.sdk")  # an install without it runs the other tests
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@dataclass
class Spans:
    exporter: "InMemorySpanExporter" = field(default_factory=_exporter)

    def named(self, name: str) -> "ReadableSpan":
        (span,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return span

    def all(self) -> "Sequence[ReadableSpan]":
        return self.exporter.get_finished_spans()

    def everything(self) -> str:
        return "".join(span.to_json() for span in self.all())


@contextmanager
def recording() -> Generator[Spans]:
    spans = Spans()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    with tracing_with(provider.get_tracer("test")):
        yield spans


@dataclass
class Played:
    """A backend that plays `script`; an exception in it is raised at its turn."""

    script: Sequence[Event | Exception]
    name: str = "embedded"
    capabilities: Capabilities = field(default_factory=Capabilities)
    is_closed: bool = False

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        return self._play()

    @asynccontextmanager
    async def _play(self) -> AsyncGenerator[AsyncIterator[Event]]:
        async def events() -> AsyncGenerator[Event]:
            for event in self.script:
                await anyio.lowlevel.checkpoint()
                if isinstance(event, Exception):
                    raise event
                yield event

        async with aclosing(events()) as playing:
            try:
                yield playing
            finally:
                self.is_closed = True

    async def aclose(self) -> None:
        pass


async def play(backend: Played, request: Request) -> list[Event]:
    async with traced(backend, request, backend.stream(request)) as events:
        return [event async for event in events]


def request(**fields: object) -> Request:
    return Request(messages=(user(CANARY),), **fields)  # pyright: ignore[reportArgumentType] - fields of `Request`


def finish() -> Finish:
    return Finish(
        reason="tool_calls",
        tool_calls=(ToolCall(id="c1", name="add_note", arguments={"text": CANARY}),),
        usage=Usage(input_tokens=180, output_tokens=24),
        stats=Stats(
            forwards=6,
            positions=900,
            blocks=2,
            forced_tokens=9,
            constraint_s=0.004,
            decode_s=0.05,
            first_commit_s=0.03,
            cache="block",
            extensions=0,
            confidence=0.91,
        ),
        enforcement="in_block",
        budget=Budget(target=32, ceiling=64, source="prior"),
        model="agentdiff-router-1",
        warnings=(CANARY,),
    )


def script() -> list[Event]:
    return [Draft(f"{CANARY}␣"), Draft(CANARY), Commit(CANARY), finish()]
