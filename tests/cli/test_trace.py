"""`agentdiff trace show`: files of many kinds, drawn in many widths."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from agentdiff.cli.trace import app, render_trace
from agentdiff.cli.waterfall import UNICODE, ms, tree, waterfall
from agentdiff.errors import TraceError
from agentdiff.telemetry.otlp_reader import SpanRecord, load_spans

START_NS = 1_790_000_000_000_000_000


def span(
    name: str,
    start_ms: float,
    end_ms: float,
    *,
    id: str,
    parent: str = "",
    error: bool = False,
    **more,
) -> dict:
    """An OTLP span; `more` are attributes, with `__` for a dot."""
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    return {
        "traceId": more.pop("trace_id", "5b8efff798038103d269b633813fc60c"),
        "spanId": id,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(START_NS + int(start_ms * 1e6)),
        "endTimeUnixNano": str(START_NS + int(end_ms * 1e6)),
        "attributes": [
            {"key": key.replace("__", "."), "value": {kinds[type(value)]: value}}
            for key, value in more.items()
        ],
        "status": {"code": 2} if error else {},
    }


def chat(kind: str, start_ms: float, end_ms: float, **more) -> dict:
    return span(
        "chat embedded",
        start_ms,
        end_ms,
        gen_ai__operation__name="chat",
        agentdiff__step__kind=kind,
        **more,
    )


def decoded(
    first: float, used: int, target: int, ceiling: int, forwards: int, forced: int, cost: float
) -> dict:
    return {
        "agentdiff__time_to_first_commit_ms": first,
        "gen_ai__usage__input_tokens": 180,
        "gen_ai__usage__output_tokens": used,
        "agentdiff__budget__target": target,
        "agentdiff__budget__ceiling": ceiling,
        "agentdiff__budget__fill": used / target,
        "agentdiff__forwards": forwards,
        "agentdiff__tokens_per_forward": used / forwards,
        "agentdiff__forced_tokens": forced,
        "agentdiff__constraint_ms": cost,
        "agentdiff__enforcement": "in_block",
    }


def tool(name: str, start_ms: float, end_ms: float, **more) -> dict:
    return span(
        f"execute_tool {name}",
        start_ms,
        end_ms,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=name,
        **more,
    )


RUN = [
    span(
        "invoke_agent assistant",
        0,
        250,
        id="a",
        gen_ai__operation__name="invoke_agent",
        gen_ai__agent__name="assistant",
    ),
    chat("route", 1, 62, id="b", parent="a", **decoded(31, 24, 32, 64, 6, 9, 4.1)),
    tool("convert_units", 63, 65, id="c", parent="a"),
    chat("arguments", 66, 150, id="d", parent="a", **decoded(40, 41, 32, 64, 9, 14, 6.3)),
    tool("add_note", 151, 155, id="e", parent="a"),
    tool("search_files", 151, 180, id="f", parent="a", error=True, error__type="FileNotFoundError"),
    chat("answer", 182, 249, id="g", parent="a", **decoded(22, 30, 32, 64, 5, 0, 0.4)),
]


def write(path: Path, spans: list[dict]) -> Path:
    path.write_text("".join(export([span]) + "\n" for span in spans))
    return path


def export(spans: list[dict]) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


def drawn(path: Path, width: int = 80, **settings) -> str:
    out = io.StringIO()
    render_trace(path, Console(file=out, width=width, **settings))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_a_run_in_120_columns(tmp_path: Path):
    assert drawn(write(tmp_path / "t", RUN), 120) == snapshot("""\
trace 5b8efff798038103d269b633813fc60c · 2026-09-21 14:13:20 UTC

                                                           0 ms        50          100          150         200
assistant  invoke_agent                            250 ms  ─────────────────────────────────────────────────────────────
├ #1 route  chat embedded                         61.0 ms  ╌╌╌╌╌╌╌╌━━━━━━━         ┊            ┊           ┊
├ convert_units  execute_tool                      2.0 ms              ┊  ═        ┊            ┊           ┊
├ #2 arguments  chat embedded                     84.0 ms              ┊   ╌╌╌╌╌╌╌╌╌╌━━━━━━━━━━━┊           ┊
├ search_files ✗ FileNotFoundError  execute_tool  29.0 ms              ┊           ┊            ═══════     ┊
├ add_note  execute_tool                           4.0 ms              ┊           ┊            ═           ┊
└ #3 answer  chat embedded                        67.0 ms              ┊           ┊            ┊      ╌╌╌╌╌╌━━━━━━━━━━━

╌╌╌ until the first commit   ━━━ generation   ═══ tool

#  step          time  first commit  tokens      budget  fill  forwards  tok/fwd  forced  constraint  enforced
1  route      61.0 ms       31.0 ms      24  32, max 64   75%         6      4.0       9   4.1 ms 7%  in_block
2  arguments  84.0 ms       40.0 ms      41  32, max 64  128%         9      4.6      14   6.3 ms 8%  in_block
3  answer     67.0 ms       22.0 ms      30  32, max 64   94%         5      6.0       0  0.40 ms 1%  in_block

wall 250 ms   model 212 ms (85%)   tools 31.0 ms (12%)   other 7.0 ms (3%)
3 generations   3 tool calls
540 tokens in   95 tokens out   20 forwards   4.8 tokens/forward
""")


def test_a_run_in_80_columns(tmp_path: Path):
    assert drawn(write(tmp_path / "t", RUN), 80) == snapshot("""\
trace 5b8efff798038103d269b633813fc60c · 2026-09-21 14:13:20 UTC

                                            0 ms   50     100     150    200
assistant  invoke_agent             250 ms  ────────────────────────────────────
├ #1 route  chat embedded          61.0 ms  ╌╌╌╌╌━━━━     ┊       ┊      ┊
├ convert_units  execute_tool       2.0 ms         ┊ ═    ┊       ┊      ┊
├ #2 arguments  chat embedded      84.0 ms         ┊  ╌╌╌╌╌━━━━━━━┊      ┊
├ search_files ✗ FileNotFoundErr…  29.0 ms         ┊      ┊       ════   ┊
├ add_note  execute_tool            4.0 ms         ┊      ┊       ═      ┊
└ #3 answer  chat embedded         67.0 ms         ┊      ┊       ┊   ╌╌╌━━━━━━━

╌╌╌ until the first commit   ━━━ generation   ═══ tool

#  step               time  tokens      budget  forwards      forced  enforced
              first commit                fill   tok/fwd  constraint
1  route           61.0 ms      24  32, max 64         6           9  in_block
                   31.0 ms                 75%       4.0   4.1 ms 7%
2  arguments       84.0 ms      41  32, max 64         9          14  in_block
                   40.0 ms                128%       4.6   6.3 ms 8%
3  answer          67.0 ms      30  32, max 64         5           0  in_block
                   22.0 ms                 94%       6.0  0.40 ms 1%

wall 250 ms   model 212 ms (85%)   tools 31.0 ms (12%)   other 7.0 ms (3%)
3 generations   3 tool calls
540 tokens in   95 tokens out   20 forwards   4.8 tokens/forward
""")


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path):
    class Ascii(io.StringIO):
        encoding = "ascii"

    out = Ascii()
    render_trace(write(tmp_path / "t", RUN), Console(file=out, width=80))
    assert out.getvalue().isascii()


def test_colour_adds_only_colour(tmp_path: Path):
    path = write(tmp_path / "t", RUN)
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, no_color=False, record=True)
    render_trace(path, console)
    assert "\x1b[" in out.getvalue()
    plain = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    assert plain == drawn(path, 100)


def test_a_generation_of_another_exporter_has_no_columns_for_what_nobody_said(tmp_path: Path):
    spans = [span("chat gpt", 0, 900, id="a", gen_ai__operation__name="chat")]
    text = drawn(write(tmp_path / "t", spans))
    assert "#  step        time\n1  chat gpt  900 ms\n" in text
    assert "forwards" not in text


def test_sums_with_gaps_are_lower_bounds(tmp_path: Path):
    spans = [
        chat("route", 0, 10, id="a", gen_ai__usage__output_tokens=7),
        chat("answer", 5, 20, id="b"),
    ]
    text = drawn(write(tmp_path / "t", spans))
    assert "≥ 7 tokens out" in text
    assert "model 20.0 ms (100%)" in text  # the two overlap


def test_an_attempt_more_is_shown(tmp_path: Path):
    text = drawn(write(tmp_path / "t", [chat("route", 0, 10, id="a", agentdiff__attempts=2)]))
    assert "2 tries" in text


def test_every_trace_of_a_file_is_drawn_oldest_first(tmp_path: Path):
    spans = [span("late", 5, 6, id="b", trace_id="2"), span("early", 1, 2, id="a", trace_id="1")]
    text = drawn(write(tmp_path / "t", spans))
    assert text.index("trace 1 ") < text.index("early") < text.index("trace 2 ")


def test_broken_lines_are_counted_and_the_rest_is_drawn(tmp_path: Path):
    path = write(tmp_path / "t", RUN)
    half = path.read_text().splitlines()[0][:100]
    path.write_text(path.read_text() + half + '\n{"no": "spans"}\n\n')
    assert drawn(path).endswith("2 of 9 lines are not OTLP JSON and were left out")


def test_lines_with_metrics_or_logs_are_not_broken(tmp_path: Path):
    path = write(tmp_path / "t", RUN)
    path.write_text('{"resourceMetrics": []}\n{"resourceLogs": []}\n' + path.read_text())
    assert load_spans(path).broken_lines == 0


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("as_list", [False, True])
def test_one_document_is_read_like_lines(indent: int | None, as_list: bool, tmp_path: Path):
    document = json.loads(export(RUN))
    path = tmp_path / "t"
    path.write_text(json.dumps([document] if as_list else document, indent=indent))
    assert load_spans(path).spans == load_spans(write(tmp_path / "u", RUN)).spans
    assert load_spans(path).broken_lines == 0


def test_snake_case_numbers_and_names_of_enums_are_read(tmp_path: Path):
    path = tmp_path / "t"
    foreign = {
        "trace_id": "1",
        "span_id": "2",
        "name": "x",
        "start_time_unix_nano": 5,
        "end_time_unix_nano": 3,
        "attributes": [{"key": "n", "value": {"int_value": "7"}}, {"key": "empty"}],
        "status": {"code": "STATUS_CODE_ERROR"},
        "events": [{"unknown": True}],
    }
    path.write_text(json.dumps({"resource_spans": [{"scope_spans": [{"spans": [foreign]}]}]}))
    assert load_spans(path).spans == (
        SpanRecord(
            trace_id="1",
            span_id="2",
            parent_id=None,
            name="x",
            start_ns=5,
            end_ns=5,
            is_error=True,
            attributes={"n": 7, "empty": None},
        ),
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"not json\n", "1 of 1 lines are not OTLP JSON"),
        (b"\x00\xff\xfe\x1b[31m", "1 of 1 lines are not OTLP JSON"),
        (b'{"resourceSpans": []}', "it is empty"),
    ],
)
def test_a_file_without_spans_is_one_clear_line(content: bytes, why: str, tmp_path: Path):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=why):
        load_spans(path)


@pytest.mark.parametrize("name", ["missing", ".", "nul\0"])
def test_a_file_that_cannot_be_read_is_one_clear_line(name: str, tmp_path: Path):
    with pytest.raises(TraceError, match="cannot read the trace"):
        load_spans(f"{tmp_path}/{name}")


def test_the_command_draws_and_passes_errors_on(tmp_path: Path):
    runner = CliRunner()
    good = runner.invoke(app, ["show", str(write(tmp_path / "t", RUN))])
    assert good.exit_code == 0
    assert "convert_units" in good.output
    bad = runner.invoke(app, ["show", str(tmp_path / "missing")])
    assert isinstance(bad.exception, TraceError)


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path):
    spans = [tool("\x1b]0;owned\x07", 0, 1, id="a", error=True, error__type="\x1b[2J")]
    assert "\x1b" not in drawn(write(tmp_path / "t", spans))


def record(id: str, parent: str | None, start_ns: int = 0, end_ns: int = 1) -> SpanRecord:
    return SpanRecord(
        trace_id="t",
        span_id=id,
        parent_id=parent,
        name=id,
        start_ns=start_ns,
        end_ns=end_ns,
        is_error=False,
    )


def test_orphans_and_circles_stand_as_roots():
    spans = [record("a", "gone"), record("b", "c"), record("c", "b"), record("d", "a")]
    rows = tree(spans)
    assert [(row.span.span_id, row.guide(UNICODE)) for row in rows] == [
        ("a", ""),
        ("d", "└ "),
        ("b", ""),
        ("c", "└ "),
    ]


def test_a_tree_is_drawn_with_its_branches():
    spans = [record("a", None), record("b", "a"), record("c", "b"), record("d", "a")]
    guides = [row.guide(UNICODE) for row in tree(spans)]
    assert guides == ["", "├ ", "│ └ ", "└ "]


records = st.lists(
    st.builds(
        record,
        st.sampled_from("abcdefgh"),
        st.none() | st.sampled_from("abcdefgh"),
        st.integers(0, 10**11),
    ).map(
        lambda span: record(
            span.span_id * 9,
            span.parent_id and span.parent_id * 9,
            span.start_ns,
            span.start_ns * 2,
        )
    ),
    min_size=1,
    unique_by=lambda span: span.span_id,
)


@given(records, st.integers(40, 200))
def test_every_span_is_drawn_once_and_no_line_is_too_wide(spans: list[SpanRecord], width: int):
    rows = tree(spans)
    assert sorted(row.span.span_id for row in rows) == sorted(span.span_id for span in spans)
    lines = list(waterfall(rows, width=width, glyphs=UNICODE))
    assert len(lines) == len(rows) + 1
    assert all(cell_len(line.plain) <= width for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 ms"),
        (0.994, "0.99 ms"),
        (0.996, "1.0 ms"),
        (99.94, "99.9 ms"),
        (99.96, "100 ms"),
        (9999, "9,999 ms"),
        (12_345, "12.3 s"),
    ],
)
def test_milliseconds_have_about_three_digits(value: float, text: str):
    assert ms(value) == text
