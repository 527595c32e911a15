"""A trace file in the terminal: for each run its waterfall, what each generation cost, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentdiff.cli.waterfall import (
    ASCII,
    UNICODE,
    Glyphs,
    is_generation,
    is_tool_call,
    legend,
    ms,
    printable,
    tree,
    waterfall,
)
from agentdiff.telemetry import names
from agentdiff.telemetry.otlp_reader import SpanFile, SpanRecord


def print_file(found: SpanFile, console: Console) -> None:
    """Print every trace, oldest first, and how much of the file was left out."""
    glyphs = UNICODE if console.encoding.lower().startswith("utf") else ASCII
    for spans in found.traces():
        _print_trace(spans, console, glyphs)
    if found.broken_lines:
        console.print(Text(_broken(found), style="yellow"))


def _broken(found: SpanFile) -> str:
    few = found.broken_lines == 1
    return (
        f"{found.broken_lines} of {found.lines} lines {'is' if few else 'are'} not OTLP JSON"
        f" and {'was' if few else 'were'} left out"
    )


def _print_trace(spans: Sequence[SpanRecord], console: Console, glyphs: Glyphs) -> None:
    rows = tree(spans)
    ordered = [row.span for row in rows]
    generations = [span for span in ordered if is_generation(span)]
    console.print(_heading(ordered, glyphs), no_wrap=True, overflow="ellipsis")
    console.print()
    for line in waterfall(rows, width=console.width, glyphs=glyphs):
        console.print(line, no_wrap=True, overflow="crop")
    console.print()
    if generations:
        console.print(legend(glyphs))
        console.print()
        console.print(_generations(generations, console))
        console.print()
    for line in _totals(ordered, glyphs):
        console.print(line)
    console.print()


def _heading(spans: Sequence[SpanRecord], glyphs: Glyphs) -> Text:
    heading = Text(f"trace {printable(spans[0].trace_id)}", style="bold")
    try:
        started = datetime.fromtimestamp(min(span.start_ns for span in spans) / 1e9, UTC)
    except (OverflowError, ValueError, OSError):  # a clock that a calendar does not know
        return heading
    return heading.append(
        f"{glyphs.separator}{started:%Y-%m-%d %H:%M:%S} UTC", style="not bold dim"
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table of generations; an empty cell means that the backend did not say."""

    title: str
    cell: Callable[[SpanRecord], str | Text]
    is_left: bool = False


def _generations(spans: Sequence[SpanRecord], console: Console) -> Table:
    """What each generation cost, in one line each if that fits, else in two.

    What nobody said has no column.
    """
    groups = [
        [column for column in group if any(column.cell(span) for span in spans)]
        for group in _GROUPS
    ]
    groups = [group for group in groups if group]
    wide = _table(spans, [[column] for group in groups for column in group])
    unbounded = console.options.update(max_width=10_000)
    fits = Measurement.get(console, unbounded, wide).maximum <= console.width
    return wide if fits else _table(spans, groups)


def _table(spans: Sequence[SpanRecord], groups: Sequence[Sequence[_Column]]) -> Table:
    """A table with a column for each group, the columns of a group below each other."""
    deepest = max(map(len, groups))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("#" + "\n" * (deepest - 1), justify="right")
    for group in groups:
        titles = [column.title for column in group] + [""] * (deepest - len(group))
        justify = "left" if group[0].is_left else "right"
        table.add_column("\n".join(titles), justify=justify, no_wrap=True)
    for number, span in enumerate(spans, start=1):
        table.add_row(str(number), *(_stacked(span, group) for group in groups))
    return table


def _stacked(span: SpanRecord, group: Sequence[_Column]) -> Text:
    first, *rest = (Text.assemble(column.cell(span)) for column in group)
    return Text("\n").join([first, *(Text.assemble(cell, style="dim") for cell in rest)])


def _step(span: SpanRecord) -> str:
    return printable(span.text(names.STEP_KIND) or span.name)


def _tries(span: SpanRecord) -> str:
    attempts = span.number(names.ATTEMPTS) or 1
    return f"{attempts:.0f} tries" if attempts > 1 else ""


def _budget(span: SpanRecord) -> str:
    target, ceiling = span.number(names.BUDGET_TARGET), span.number(names.BUDGET_CEILING)
    return "" if target is None or ceiling is None else f"{target:.0f}, max {ceiling:.0f}"


def _fill(span: SpanRecord) -> Text:
    fill = span.number(names.BUDGET_FILL)
    if fill is None:
        return Text("")
    return Text(f"{fill:.0%}", style="yellow" if fill > 1 else "")


def _constraint(span: SpanRecord) -> str:
    spent = span.number(names.CONSTRAINT_MS)
    if spent is None:
        return ""
    share = f" {spent / span.duration_ms:.0%}" if span.duration_ms else ""
    return ms(spent) + share


def _ending(span: SpanRecord) -> Text:
    if span.is_error:
        return Text(printable(span.text(names.ERROR_TYPE) or "error"), style="bold red")
    if span.flag(names.CANCELLED):
        return Text("cancelled", style="yellow")
    held = span.text(names.ENFORCEMENT) or ""
    return Text(printable(held), style=_ENFORCEMENT_STYLES.get(held, ""))


def _count(name: names.Name) -> Callable[[SpanRecord], str]:
    def cell(span: SpanRecord) -> str:
        value = span.number(name)
        return "" if value is None else f"{value:,.0f}"

    return cell


def _ms(name: names.Name) -> Callable[[SpanRecord], str]:
    def cell(span: SpanRecord) -> str:
        value = span.number(name)
        return "" if value is None else ms(value)

    return cell


def _ratio(name: names.Name) -> Callable[[SpanRecord], str]:
    def cell(span: SpanRecord) -> str:
        value = span.number(name)
        return "" if value is None else f"{value:.1f}"

    return cell


_ENFORCEMENT_STYLES = {"in_block": "green", "pinned_canvas": "green", "none": "dim"}

_GROUPS = (
    (_Column("step", _step, is_left=True), _Column("tries", _tries, is_left=True)),
    (
        _Column("time", lambda span: ms(span.duration_ms)),
        _Column("first commit", _ms(names.FIRST_COMMIT_MS)),
    ),
    (_Column("tokens", _count(names.OUTPUT_TOKENS)),),
    (_Column("budget", _budget), _Column("fill", _fill)),
    (
        _Column("forwards", _count(names.FORWARDS)),
        _Column("tok/fwd", _ratio(names.TOKENS_PER_FORWARD)),
    ),
    (_Column("forced", _count(names.FORCED_TOKENS)), _Column("constraint", _constraint)),
    (_Column("enforced", _ending, is_left=True),),
)


def _totals(spans: Sequence[SpanRecord], glyphs: Glyphs) -> Iterable[Text]:
    """Where the time went, and what was made of it."""
    generations = [span for span in spans if is_generation(span)]
    tools = [span for span in spans if is_tool_call(span)]
    wall_ns = max(span.end_ns for span in spans) - min(span.start_ns for span in spans)

    def share(busy_ns: int) -> str:
        return f"{ms(busy_ns / 1e6)} ({busy_ns / wall_ns:.0%})" if wall_ns else ms(busy_ns / 1e6)

    def total(name: names.Name) -> str:
        """The sum over the generations, marked where some did not say; empty where none did."""
        known = [value for span in generations if (value := span.number(name)) is not None]
        mark = glyphs.at_least if len(known) < len(generations) else ""
        return f"{mark}{sum(known):,.0f}" if known else ""

    spent = [("wall", ms(wall_ns / 1e6))]
    if generations:
        spent.append(("model", share(_busy_ns(generations))))
    if tools:
        spent.append(("tools", share(_busy_ns(tools))))
    if generations or tools:
        spent.append(("other", share(wall_ns - _busy_ns([*generations, *tools]))))
    yield Text("   ").join(
        Text.assemble((f"{what} ", "dim"), (value, "bold")) for what, value in spent
    )

    if generations or tools:
        yield _made(_counted(generations, "generation"), _counted(tools, "tool call"))
    if generations:
        yield _made(
            (total(names.INPUT_TOKENS), "tokens in"),
            (total(names.OUTPUT_TOKENS), "tokens out"),
            (total(names.FORWARDS), "forwards"),
            (_per_forward(generations), "tokens/forward"),
        )


def _counted(spans: Sequence[SpanRecord], what: str) -> tuple[str, str]:
    return (f"{len(spans):,}" if spans else "", what if len(spans) == 1 else f"{what}s")


def _made(*facts: tuple[str, str]) -> Text:
    return Text("   ").join(
        Text.assemble((value, "bold"), (f" {what}", "dim")) for value, what in facts if value
    )


def _per_forward(generations: Sequence[SpanRecord]) -> str:
    """Tokens for each forward pass over all generations that know both; empty where none does."""
    known = [
        (tokens, forwards)
        for span in generations
        if (tokens := span.number(names.OUTPUT_TOKENS)) is not None
        and (forwards := span.number(names.FORWARDS))
    ]
    forwards = sum(forwards for _, forwards in known)
    return f"{sum(tokens for tokens, _ in known) / forwards:.1f}" if forwards else ""


def _busy_ns(spans: Sequence[SpanRecord]) -> int:
    """The time in which at least one of the spans was open."""
    busy_ns, until_ns = 0, 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        busy_ns += max(span.end_ns - max(span.start_ns, until_ns), 0)
        until_ns = max(until_ns, span.end_ns)
    return busy_ns
