"""Traces in files: written, read back, and what goes wrong."""

import json
import math
import os
import sys
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from agentdiff.errors import MissingExtra, TraceError
from agentdiff.telemetry import TraceFile, execute_tool, invoke_agent, trace_to_file
from agentdiff.telemetry.otlp_file import _any_value
from agentdiff.telemetry.otlp_reader import _Any, load_spans
from agentdiff.telemetry.sdk import tracer_into
from agentdiff.telemetry.spans import current_tracer, tracing_with
from tests.telemetry.recorder import Played, play, request, script


async def test_a_run_is_read_back_as_it_was_written(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    with trace_to_file(path) as file, invoke_agent(agent="a", model="m") as run:
        await play(Played(script()), request())
        await anyio.to_thread.run_sync(tool_in_a_thread)
    assert (file.spans, file.problem) == (3, None)
    found = load_spans(path)
    assert found.broken_lines == 0
    root, chat, tool = found.spans
    assert (root.name, chat.name, tool.name) == (
        "invoke_agent a",
        "chat embedded",
        "execute_tool t",
    )
    assert {span.trace_id for span in found.spans} == {run.trace_id}
    assert (root.parent_id, chat.parent_id, tool.parent_id) == (None, root.span_id, root.span_id)
    assert root.start_ns <= chat.start_ns <= chat.end_ns <= tool.start_ns <= root.end_ns
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert chat.attributes["agentdiff.confidence"] == 0.91
    assert tool.is_error


def tool_in_a_thread() -> None:
    with execute_tool(tool="t", call_id="c") as call:
        call.fail(ValueError())


def test_each_line_is_one_otlp_json_request(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    with trace_to_file(path), invoke_agent(agent="a", model="m"):
        pass
    (line,) = path.read_text().splitlines()
    (resource,) = json.loads(line)["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "agentdiff"}} in resource["resource"][
        "attributes"
    ]
    (scope,) = resource["scopeSpans"]
    assert scope["scope"]["name"] == "agentdiff"
    (span,) = scope["spans"]
    assert len(span["traceId"]) == 32
    assert len(span["spanId"]) == 16
    assert span["kind"] == 1
    assert span["startTimeUnixNano"].isdigit()
    assert "parentSpanId" not in span


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(values)
def test_any_attribute_value_survives_the_file(value: object):
    line = json.dumps(_any_value(value), ensure_ascii=False)  # pyright: ignore[reportArgumentType] - made for it
    assert same(_Any.model_validate_json(line).plain(), value)


def same(read: object, written: object) -> bool:
    if isinstance(written, float) and math.isnan(written):
        return isinstance(read, float) and math.isnan(read)
    if isinstance(written, list):
        return isinstance(read, list) and all(map(same, read, written))
    if isinstance(written, dict):
        return isinstance(read, dict) and all(same(read[key], written[key]) for key in written)
    return read == written


def test_text_that_is_no_utf8_does_not_break_the_file(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    with trace_to_file(path) as file, invoke_agent(agent="\ud800", model="m"):
        pass
    assert file.problem is None
    assert load_spans(path).spans[0].name == "invoke_agent ?"


def test_the_applications_own_tracer_is_left_alone(tmp_path: Path):
    before = trace.get_tracer_provider()
    outside = type(current_tracer())
    with trace_to_file(tmp_path / "t.jsonl"):
        assert trace.get_tracer_provider() is before
        assert type(current_tracer()) is not outside
    assert type(current_tracer()) is outside


def test_after_ctrl_c_the_file_holds_what_had_ended(tmp_path: Path):
    path = tmp_path / "t.jsonl"

    def interrupted() -> None:
        with trace_to_file(path), invoke_agent(agent="a", model="m"):
            with execute_tool(tool="t", call_id="c"):
                pass
            assert [span.name for span in load_spans(path).spans] == ["execute_tool t"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(load_spans(path).spans) == 2


def test_an_old_trace_is_replaced(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    for _ in range(2):
        with trace_to_file(path), invoke_agent(agent="a", model="m"):
            pass
    assert len(load_spans(path).spans) == 1


@pytest.mark.parametrize("name", ["missing/t.jsonl", ".", "nul\0"])
def test_a_path_that_cannot_be_written_raises_at_once(name: str, tmp_path: Path):
    with (
        pytest.raises(TraceError, match="cannot write the trace to"),
        trace_to_file(str(tmp_path) + "/" + name),
    ):
        raise AssertionError


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
def test_a_full_disk_is_remembered_and_never_raised():
    with trace_to_file("/dev/full") as file, invoke_agent(agent="a", model="m"):
        pass
    assert file.spans == 0
    assert file.problem == "the trace in '/dev/full' is incomplete: No space left on device"


class SmallDisk(FileIO):
    """A file on a disk that takes 2,000 bytes."""

    def write(self, b: Any, /) -> int:
        room = 2000 - self.tell()
        if not room:
            raise OSError(28, "No space left on device")
        return super().write(b[:room])


def test_a_span_that_does_not_fit_leaves_no_half_line(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    file = TraceFile(str(path), SmallDisk(path, "wb"))
    with tracing_with(tracer_into(file)):
        for _ in range(5):
            with execute_tool(tool="t", call_id="c"):
                pass
    file.close()
    assert file.problem == f"the trace in {str(path)!r} is incomplete: No space left on device"
    found = load_spans(path)
    assert len(found.spans) == file.spans > 0
    assert found.broken_lines == 0


def test_a_disabled_sdk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with trace_to_file(tmp_path / "t.jsonl") as file, invoke_agent(agent="a", model="m"):
        pass
    assert file.problem is not None
    assert "OTEL_SDK_DISABLED" in file.problem


def test_without_the_sdk_the_extra_is_named_and_the_file_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "agentdiff.telemetry.sdk", raising=False)
    monkeypatch.delattr("agentdiff.telemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    path = tmp_path / "t.jsonl"
    with pytest.raises(MissingExtra, match=r"pip install 'agentdiff\[otel\]'"), trace_to_file(path):
        raise AssertionError
    assert not path.exists()
