"""The spans around runs and tools, content capture and the conventions."""

import json

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from agentdiff.errors import OutOfScope, ToolFailed
from agentdiff.generation import Request
from agentdiff.messages import ToolCall, Usage, assistant, system, tool_result, user
from agentdiff.telemetry import execute_tool, invoke_agent, names
from agentdiff.telemetry.content import MAX_CHARS, clipped
from tests.telemetry.recorder import CANARY, Played, play, recording, request, script


def test_a_run_says_its_agent_and_what_it_used():
    with recording() as spans, invoke_agent(agent="helper", model="embedded") as run:
        trace_id = run.trace_id
        run.finish(Usage(input_tokens=5, output_tokens=3, requests=2), 1)
    span = spans.named("invoke_agent helper")
    context = span.get_span_context()
    assert context is not None
    assert trace_id == f"{context.trace_id:032x}"
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.request.model": "embedded",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "agentdiff.requests": 2,
        "agentdiff.steps": 1,
    }


def test_a_tool_is_a_child_of_the_run():
    with (
        recording() as spans,
        invoke_agent(agent="a", model="m"),
        execute_tool(tool="add_note", call_id="c1", arguments={"text": CANARY}) as call,
    ):
        call.returned(CANARY)
    span, run = spans.named("execute_tool add_note"), spans.named("invoke_agent a")
    assert span.parent == run.get_span_context()
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add_note",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    }


def test_a_tool_that_fails_is_marked_and_the_run_goes_on():
    with recording() as spans, execute_tool(tool="t", call_id="c") as call:
        call.fail(ToolFailed(CANARY))
    span = spans.named("execute_tool t")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ToolFailed"
    assert CANARY not in spans.everything()


def test_an_error_that_leaves_a_run_is_marked_and_goes_on():
    with recording() as spans, pytest.raises(OutOfScope), invoke_agent(agent="a", model="m"):
        raise OutOfScope(CANARY)
    assert (spans.named("invoke_agent a").attributes or {})["error.type"] == "OutOfScope"
    assert CANARY not in spans.everything()


def test_a_group_of_one_error_is_named_for_that_one():
    with recording() as spans, pytest.raises(ExceptionGroup), execute_tool(tool="t", call_id="c"):
        raise ExceptionGroup("", [ToolFailed("x")])
    assert (spans.named("execute_tool t").attributes or {})["error.type"] == "ToolFailed"


def test_ctrl_c_ends_the_run_as_cancelled():
    with recording() as spans, pytest.raises(KeyboardInterrupt), invoke_agent(agent="a", model="m"):
        raise KeyboardInterrupt
    span = spans.named("invoke_agent a")
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["agentdiff.cancelled"] is True


async def test_content_stays_inside_by_default():
    with recording() as spans:
        await play(Played(script()), request())
        with execute_tool(tool="t", call_id="c", arguments={"a": CANARY}) as call:
            call.returned(CANARY)
    assert CANARY not in spans.everything()


async def test_content_is_written_on_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTDIFF_CAPTURE_CONTENT", "1")
    call = ToolCall(id="c0", name="f", arguments={"a": 1})
    messages = (system("s"), user("u"), assistant(tool_calls=[call]), tool_result(call, "r"))
    with recording() as spans:
        await play(Played(script()), Request(messages=messages))
        with execute_tool(tool="t", call_id="c", arguments={"a": "é"}) as tool:
            tool.returned("done")
    attributes = spans.named("chat embedded").attributes or {}
    assert json.loads(str(attributes["gen_ai.input.messages"])) == [
        {"role": "system", "parts": [{"type": "text", "content": "s"}]},
        {"role": "user", "parts": [{"type": "text", "content": "u"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c0", "name": "f", "arguments": '{"a": 1}'}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c0", "response": "r"}]},
    ]
    (said,) = json.loads(str(attributes["gen_ai.output.messages"]))
    assert said["finish_reason"] == "tool_calls"
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call"]
    assert said["parts"][0]["content"] == CANARY  # once: drafts are not content
    attributes = spans.named("execute_tool t").attributes or {}
    assert attributes["gen_ai.tool.call.arguments"] == '{"a": "é"}'
    assert attributes["gen_ai.tool.call.result"] == "done"


def test_long_content_is_cut_and_says_so():
    assert clipped("x" * MAX_CHARS) == "x" * MAX_CHARS
    assert clipped("x" * (MAX_CHARS + 5)) == "x" * MAX_CHARS + "… [5 more characters]"


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("latest", {"gen_ai.provider.name", "gen_ai.usage.reasoning.output_tokens"}),
        ("legacy", {"gen_ai.system"}),
        (
            "both",
            {"gen_ai.provider.name", "gen_ai.system", "gen_ai.usage.reasoning.output_tokens"},
        ),
    ],
)
def test_the_convention_is_chosen_by_the_environment(
    mode: str, keys: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AGENTDIFF_SEMCONV", mode)
    spelled = names.spelled({names.PROVIDER: "p", names.REASONING_TOKENS: 3, names.SEED: None})
    assert spelled.keys() == keys


@pytest.mark.parametrize(
    ("backend", "provider", "model"),
    [
        ("embedded", "agentdiff.embedded", "embedded"),
        ("scripted", "agentdiff.scripted", "scripted"),
        ("local:JetLM/SDAR-1.7B", "agentdiff.local", "JetLM/SDAR-1.7B"),
        ("mercury:mercury-2", "inception", "mercury-2"),
        ("openai:http://localhost:8000/v1#qwen", "openai", "qwen"),
    ],
)
def test_provider_and_model_come_from_the_backends_name(backend: str, provider: str, model: str):
    assert (names.provider_of(backend), names.model_of(backend)) == (provider, model)
