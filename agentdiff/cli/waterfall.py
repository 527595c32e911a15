"""A trace as a waterfall: a line for each span, its place in the tree and its place in time.

Pure drawing: spans and a width in, lines out. The shape of a bar tells what the span is, so nothing
is lost without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from agentdiff.telemetry import names
from agentdiff.telemetry.otlp_reader import SpanRecord

MODEL_OPERATIONS = ("chat", "text_completion", "generate_content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters to draw with."""

    branch: str = "├ "
    last: str = "└ "
    pipe: str = "│ "
    frame: str = "─"
    """Bars of spans that only contain others."""
    wait: str = "╌"
    """The part of a generation before its first commit."""
    model: str = "━"
    tool: str = "═"
    grid: str = "┊"
    cut: str = "…"
    at_least: str = "≥ "
    failed: str = "✗ "
    separator: str = " · "


UNICODE = Glyphs()
ASCII = Glyphs(
    branch="|-",
    last="`-",
    pipe="| ",
    frame="-",
    wait=".",
    model="#",
    tool="=",
    grid=" ",
    cut="~",
    at_least=">= ",
    failed="x ",
    separator=", ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A span and where it stands in the tree."""

    span: SpanRecord
    ancestry: tuple[bool, ...]
    """Whether the span is its parent's last child, and before that the same for its ancestors."""

    def guide(self, glyphs: Glyphs) -> str:
        """The lines of the tree that lead to this row."""
        if not self.ancestry:
            return ""
        *outer, own = self.ancestry
        return "".join("  " if is_last else glyphs.pipe for is_last in outer) + (
            glyphs.last if own else glyphs.branch
        )


def tree(spans: Sequence[SpanRecord]) -> list[Row]:
    """The spans of one trace in the order of a tree, siblings by start.

    A span whose parent is not there, or is its own descendant, stands as a root: no span is lost.
    """
    children: dict[str | None, list[SpanRecord]] = {}
    ids = {span.span_id for span in spans}
    for span in spans:
        parent = span.parent_id if span.parent_id in ids else None
        children.setdefault(parent, []).append(span)
    rows: list[Row] = []
    seen: set[str] = set()
    for root in (*children.get(None, ()), *spans):
        stack: list[tuple[SpanRecord, tuple[bool, ...]]] = [(root, ())]
        while stack:
            span, ancestry = stack.pop()
            if span.span_id in seen:
                continue
            seen.add(span.span_id)
            rows.append(Row(span=span, ancestry=ancestry))
            below = children.get(span.span_id, [])
            stack.extend((child, (*ancestry, child is below[-1])) for child in reversed(below))
    return rows


def is_generation(span: SpanRecord) -> bool:
    """Whether the span is a call of a model."""
    return span.text(names.OPERATION) in MODEL_OPERATIONS


def is_tool_call(span: SpanRecord) -> bool:
    """Whether the span is the execution of a tool."""
    return span.text(names.OPERATION) == "execute_tool"


def waterfall(rows: Sequence[Row], *, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """The time axis, then a line for each row of one trace; none is wider than `width` cells."""
    start_ns = min(row.span.start_ns for row in rows)
    total_ns = max(max(row.span.end_ns for row in rows) - start_ns, 1)
    labels = _labels(rows, glyphs)
    times = [ms(row.span.duration_ms) for row in rows]
    time_width = max(map(len, times))
    label_width = min(max(label.cell_len for label in labels), max(width * 42 // 100, 16))
    scale = _Scale(start_ns, total_ns, max(width - label_width - time_width - 4, 8))

    yield Text(" " * (label_width + time_width + 4)) + Text(scale.axis(), style="dim")
    for row, label, time in zip(rows, labels, times, strict=True):
        fit(label, label_width, glyphs)
        line = label + Text(f"  {time:>{time_width}}  ") + _bar(row.span, scale, glyphs)
        line.rstrip()
        yield line


def legend(glyphs: Glyphs) -> Text:
    """What the bars mean."""
    return Text("").append_tokens(
        [
            (glyphs.wait * 3, "dim cyan"),
            (" until the first commit   ", "dim"),
            (glyphs.model * 3, "cyan"),
            (" generation   ", "dim"),
            (glyphs.tool * 3, "green"),
            (" tool", "dim"),
        ]
    )


def ms(value: float) -> str:
    """Milliseconds for people: three digits or so, seconds from ten seconds on."""
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    if value >= 99.95:
        return f"{value:,.0f} ms"
    return f"{value:.1f} ms" if value >= 0.995 else f"{value:.2f} ms"


def printable(text: str) -> str:
    """`text` without control characters: a file from elsewhere must not steer the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def fit(label: Text, width: int, glyphs: Glyphs) -> None:
    """Cut or pad `label` to exactly `width` cells."""
    if label.cell_len > width:
        label.truncate(width - 1)
        label.append(glyphs.cut, style="dim")
    label.pad_right(width - label.cell_len)


def _labels(rows: Sequence[Row], glyphs: Glyphs) -> list[Text]:
    labels: list[Text] = []
    generations = 0
    for row in rows:
        generations += is_generation(row.span)
        label = Text().append(row.guide(glyphs), style="dim")
        title, subtitle = _title(row.span, generations)
        label.append(printable(title))
        if row.span.is_error:
            error = printable(row.span.text(names.ERROR_TYPE) or "error")
            label.append(f" {glyphs.failed}{error}", style="bold red")
        elif row.span.flag(names.CANCELLED):
            label.append(" cancelled", style="yellow")
        if subtitle:
            label.append(f"  {printable(subtitle)}", style="dim")
        labels.append(label)
    return labels


def _title(span: SpanRecord, number: int) -> tuple[str, str]:
    """What stands in a label first, and what may be cut from it."""
    if is_generation(span):
        return f"#{number} {span.text(names.STEP_KIND) or ''}".rstrip(), span.name
    known = span.text(names.TOOL) or span.text(names.AGENT)
    operation = span.text(names.OPERATION)
    return (known, operation) if known and operation else (span.name or "(no name)", "")


def _bar(span: SpanRecord, scale: _Scale, glyphs: Glyphs) -> Text:
    left, right = scale.cells(span.start_ns, span.end_ns)
    cells = Text().append(scale.grid(glyphs.grid), style="dim")
    before, after = cells[:left], cells[right:]
    color = "red" if span.is_error else "yellow" if span.flag(names.CANCELLED) else None
    bar = Text()
    if is_generation(span):
        waited = 0
        if (first_ms := span.number(names.FIRST_COMMIT_MS)) is not None:
            _, until = scale.cells(span.start_ns, span.start_ns + int(first_ms * 1e6))
            waited = min(max(until - left, 0), right - left - 1)
        bar.append(glyphs.wait * waited, style=color or "dim cyan")
        bar.append(glyphs.model * (right - left - waited), style=color or "cyan")
    elif is_tool_call(span):
        bar.append(glyphs.tool * (right - left), style=color or "green")
    else:
        bar.append(glyphs.frame * (right - left), style=color or "dim")
    return before + bar + after


@dataclass(frozen=True, slots=True)
class _Scale:
    """The time axis: nanoseconds to cells."""

    start_ns: int
    total_ns: int
    width: int

    def cells(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """The cells of a bar, at least one, all within the axis."""
        left = min(self._cell(start_ns), self.width - 1)
        return left, min(max(self._cell(end_ns), left + 1), self.width)

    def grid(self, mark: str) -> str:
        """A row with a mark at each tick but the first."""
        ticks = {cell for cell, _ in self._ticks()} - {0}
        return "".join(mark if cell in ticks else " " for cell in range(self.width))

    def axis(self) -> str:
        """The labels of the ticks, each beginning at its tick; what does not fit is left out."""
        line = ""
        for cell, label in self._ticks():
            if len(line) < max(cell, 1) and cell + len(label) <= self.width:
                line = line.ljust(cell) + label
        return line

    def _cell(self, time_ns: int) -> int:
        return round((time_ns - self.start_ns) * self.width / self.total_ns)

    def _ticks(self) -> list[tuple[int, str]]:
        """Cell and label of the ticks, which are 1, 2 or 5 times a power of ten apart."""
        total_ms = self.total_ns / 1e6
        least_ms = total_ms * 6 / self.width
        power = 10.0 ** math.floor(math.log10(least_ms))
        step_ms = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least_ms)
        ticks = range(int(total_ms / step_ms) + 1)
        cells = [round(tick * step_ms * self.width / total_ms) for tick in ticks]
        if step_ms >= 1000:
            return [
                (cell, f"{tick * step_ms / 1000:g}" if tick else "0 s")
                for cell, tick in zip(cells, ticks, strict=True)
            ]
        digits = max(-math.floor(math.log10(step_ms)), 0)
        return [
            (cell, f"{tick * step_ms:,.{digits}f}" if tick else "0 ms")
            for cell, tick in zip(cells, ticks, strict=True)
        ]
