"""A run in the trace: a span for the run, spans for its tools inside; nothing if nobody looks."""

import json
import threading

import anyio
import pytest

from agentdiff.agent import Agent, Price, RunState, tool
from agentdiff.errors import ModelRetry, OutOfScope, RunPaused
from agentdiff.generation import Event
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


def test_calls_at_once_in_tasks_and_threads_each_have_the_run_as_parent(spans) -> None:
    @tool
    def in_thread(n: int) -> str:
        return threading.current_thread().name

    turn = calls(
        *(("add", {"a": n, "b": 1}) for n in range(4)), *(("in_thread", {"n": n}) for n in range(4))
    )
    Agent(Double(turn, says("done")), tools=[add, in_thread]).run_sync("Go")
    *tools, run = spans()
    assert len(tools) == 8
    assert {span.parent.span_id for span in tools} == {run.context.span_id}
    assert run.attributes["agentdiff.tool_calls"] == 8


def test_a_run_inside_a_tool_is_a_span_inside_the_span_of_the_tool(spans) -> None:
    inner = Agent(Double(says("inner")), name="inner")
    Agent(
        Double(calls(("inner", {"prompt": "x"})), says("done")), tools=[inner.as_tool()]
    ).run_sync("Go")
    inside, tool_span, outside = spans()
    assert [s.name for s in (inside, tool_span, outside)] == [
        "invoke_agent inner",
        "execute_tool inner",
        "invoke_agent agent",
    ]
    assert inside.parent.span_id == tool_span.context.span_id
    assert outside.attributes["agentdiff.requests"] == 3


def test_cuts_budgets_and_cost_are_told(spans) -> None:
    backend = Double(ends("length", "half"), says("whole"))
    Agent(backend, price=Price(input=1e6, output=0)).run_sync("Go")
    (run,) = spans()
    (event,) = run.events
    assert (event.name, event.attributes["agentdiff.then"]) == ("agentdiff.truncation", "again")
    assert event.attributes["agentdiff.budget.ceiling"] > 0
    assert run.attributes["agentdiff.truncations"] == 1
    assert run.attributes["agentdiff.cost"] == 20
    assert run.attributes["agentdiff.run.budget.fill"] > 0


def test_approvals_and_retries_are_told(spans) -> None:
    @tool(approval=True)
    async def pay(n: int) -> None:
        if n < 2:
            raise ModelRetry("more")

    backend = Double(calls(("pay", {"n": 1})), calls(("pay", {"n": 2})), says("done"))
    Agent(backend, tools=[pay], approve=lambda call: True).run_sync("Go")
    first, second, _ = spans()
    assert first.attributes["agentdiff.approval"] == "approved"
    assert "agentdiff.tool.attempt" not in first.attributes
    assert second.attributes["agentdiff.tool.attempt"] == 2


def test_a_pause_and_a_resumed_run_are_told(spans) -> None:
    @tool(approval=True)
    async def pay() -> None: ...

    with pytest.raises(RunPaused) as caught:
        Agent(Double(calls(("pay", {}))), tools=[pay]).run_sync("Go")
    waiting, run = spans()
    assert waiting.attributes["agentdiff.approval"] == "waiting"
    assert waiting.status.is_unset
    agent = Agent(Double(says("done")), tools=[pay])
    state = caught.value.state
    assert isinstance(state, RunState)
    anyio.run(lambda: agent.resume(state, approvals={"c1": False}))
    _, _, denied, run = spans()
    assert denied.attributes["agentdiff.approval"] == "denied"
    assert run.attributes["agentdiff.resumed"] == 1


def test_a_plan_that_is_made_anew_is_told(spans) -> None:
    @tool
    async def fail() -> None:
        raise ValueError

    def plan(name: str, **arguments: int) -> list[Event]:
        return says(json.dumps({"steps": [{"id": "s1", "tool": name, "arguments": arguments}]}))

    backend = Double(plan("fail"), plan("add", a=1, b=2), says("3"))
    Agent(backend, tools=[add, fail]).run_sync("Go", mode="plan")
    first, second = (span for span in spans() if span.name == "plan")
    assert "agentdiff.plan.replan" not in first.attributes
    assert first.attributes["agentdiff.plan.failed"] == 1
    assert second.attributes["agentdiff.plan.replan"] == 1


@pytest.mark.parametrize("captures", [True, False])
def test_the_whole_error_of_a_tool_is_in_the_trace_where_content_is(
    spans, captures, monkeypatch
) -> None:
    monkeypatch.setenv("AGENTDIFF_CAPTURE_CONTENT", "1" if captures else "0")

    @tool
    async def fail() -> None:
        raise ValueError("a secret")

    backend = Double(calls(("fail", {})), says("done"))
    Agent(backend, tools=[fail], on_tool_error="hide").run_sync("Go")
    failed, _ = spans()
    assert ("a secret" in str([event.attributes for event in failed.events])) is captures
    assert backend.told() == ["error: the tool failed"]
