"""A run in the trace: a span for the run, spans for its tools inside; nothing if nobody looks."""

import pytest

from agentdiff.agent import Agent, tool
from agentdiff.errors import OutOfScope
from agentdiff.telemetry.spans import tracing_with
from tests.agent.doubles import Double, calls, ends, says

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing_with(provider.get_tracer("test")):
        yield exporter.get_finished_spans


def test_tools_are_spans_inside_the_span_of_the_run(spans) -> None:
    turn = calls(("add", {"a": 1, "b": 2}), ("add", {"a": "x"}))
    result = Agent(Double(turn, says("3")), tools=[add], name="adder").run_sync("Go")
    *tools, run = spans()
    assert [span.name for span in tools] == ["execute_tool add"] * 2
    assert {span.parent.span_id for span in tools} == {run.context.span_id}
    assert sorted(span.status.is_ok for span in tools) == [False, True]
    assert (run.name, run.attributes["agentdiff.steps"]) == ("invoke_agent adder", 2)
    assert run.attributes["gen_ai.usage.output_tokens"] == 10
    assert result.trace_id == f"{run.context.trace_id:032x}"


def test_a_run_that_fails_says_what_it_used(spans) -> None:
    with pytest.raises(OutOfScope):
        Agent(Double(ends("refused")), tools=[add]).run_sync("Go")
    (run,) = spans()
    assert not run.status.is_ok
    assert run.attributes["agentdiff.requests"] == 1


def test_without_a_tracer_there_is_no_trace_id() -> None:
    assert Agent(Double(says("3"))).run_sync("Go").trace_id is None
