"""Lengths and budgets as pictures: tables, histograms, predicted against actual. Prints nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentdiff.cli.picture import joined, printable

if TYPE_CHECKING:
    from agentdiff.length import Bounds, Explanation
    from agentdiff.length.learning import Outcome
    from agentdiff.length.lint import Unbounded
    from agentdiff.length.replay import Played
    from agentdiff.messages import Json

BARS = "▁▂▃▄▅▆▇█"
DENSITY = "·░▒▓█"
MARKED = 24
"""Lines of the histogram of an explanation at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A step that has been seen: its name, how often, and its newest outcomes."""

    name: tuple[str | None, ...]
    """Kind, agent, tool, model."""
    seen: int
    outcomes: Sequence[Outcome]

    @property
    def label(self) -> str:
        """The name in one word: `arguments/desk/add_note/small`."""
        return "/".join(part for part in self.name if part)

    @property
    def used(self) -> list[int]:
        """Lengths of the newest outcomes, sorted."""
        return sorted(outcome.used for outcome in self.outcomes)

    @property
    def coverage(self) -> float:
        """The share of first attempts that fit."""
        return sum(not outcome.missed for outcome in self.outcomes) / len(self.outcomes)

    @property
    def fill(self) -> float:
        """Tokens used for each one allocated."""
        return sum(self.used) / max(1, sum(outcome.target for outcome in self.outcomes))

    def as_object(self) -> dict[str, Json]:
        """The same for `--json`."""
        kind, agent, tool, model = self.name
        return {
            "key": self.label,
            "kind": kind,
            "agent": agent,
            "tool": tool,
            "model": model,
            "seen": self.seen,
            "recent": len(self.outcomes),
            "median": median(self.used),
            "p97": _rank(self.used, 0.97),
            "newest_target": self.outcomes[-1].target,
            "coverage": self.coverage,
            "fill": self.fill,
        }


def overview(known: Sequence[Learned], store: Path) -> Iterator[RenderableType]:
    """Every step: how often it was seen, how long it is, what it gets, and how that fits."""
    if not known:
        yield Text("nothing has been learned yet", style="dim")
        return
    models = {one.name[-1] for one in known}
    table = _table("step", ("seen", "median", "p97", "budget", "fits", "fill"))
    table.add_column("lengths")
    for one in known:
        table.add_row(
            _label(one.name[:-1] if len(models) == 1 else one.name),
            f"{one.seen:,}",
            f"{median(one.used):,.0f}",
            f"{_rank(one.used, 0.97):,}",
            Text(f"{one.outcomes[-1].target:,}", style="bold"),
            _share(one.coverage, bar=0.9),
            f"{one.fill:.0%}",
            Text(sparkline(one.used), style="cyan"),
        )
    yield table
    total = sum(one.seen for one in known)
    facts = [f"{total:,} steps", *sorted(filter(None, models if len(models) == 1 else ()))]
    facts += [str(store), "counts and names, no text"]
    yield Text("\n" + " · ".join(map(printable, facts)), "dim")


def explanation(one: Learned, why: Explanation, width: int) -> Iterator[RenderableType]:
    """Why a budget is what it is: levels, experts, price, and the lengths around it."""
    target = why.budget.target
    yield Text.assemble((printable(one.label), "bold"), ("  ", ""), (why.budget.source, "dim"))
    yield Text()
    facts = Table.grid(padding=(0, 2))
    facts.add_row(
        Text("budget", style="dim"),
        joined([(f"{target:,} tokens", "bold cyan"), (f"up to {why.budget.ceiling:,}", "dim")]),
    )
    facts.add_row(
        Text("expected", style="dim"),
        joined([(f"half end by {why.median:,}", ""), (f"97 % by {why.p97:,}", "")]),
    )
    facts.add_row(
        Text("a miss", style="dim"),
        joined(
            [
                (f"happens in {why.miss:.1%}", ""),
                (f"is worth {why.price:,.0f} positions and what is written again", ""),
            ]
        ),
    )
    facts.add_row(
        Text("learned from", style="dim"),
        joined((f"{name} {count:,}", "" if count else "dim") for name, count in why.levels),
    )
    facts.add_row(
        Text("looks at", style="dim"),
        joined((f"{name} {weight:.0%}", "") for name, weight in why.experts if weight >= 0.005),
    )
    yield facts
    yield Text(f"\nthe newest {len(one.outcomes):,} outputs, and where the budget lies", "dim")
    yield from _histogram(one.used, target, width)


def linted(
    found: Sequence[tuple[str, Bounds, Sequence[Unbounded]]],
) -> Iterator[RenderableType]:
    """Tools with their shortest and longest call, and the fields without a limit."""
    width = max((len(name) for name, _, _ in found), default=0)
    for name, bounds, fields in found:
        longest = f"to {bounds.max_tokens:,}" if bounds.max_tokens is not None else "without end"
        span = f"{bounds.min_tokens:,} {longest} tokens"
        mark = ("● ", "yellow" if fields else "green")
        yield Text.assemble(mark, (f"{printable(name):<{width}}  ", "bold"), (span, "dim"))
        paths = [printable(field.path) or "the value itself" for field in fields]
        longest_path = max(map(len, paths), default=0)
        for path, field in zip(paths, fields, strict=True):
            yield Text.assemble(
                "    ", (f"{path:<{longest_path}}", "cyan"), ("  ", ""), _code(field.advice)
            )
    unbounded = sum(bool(fields) for _, _, fields in found)
    yield Text(
        f"\n{unbounded} of {len(found)} tools can grow without limit" if found else "no tools",
        style="dim",
    )


def replayed(
    played: Sequence[Played],
    report: Mapping[str, Json],
    *,
    quantum: int,
    target: float,
    width: int,
) -> Iterator[RenderableType]:
    """The figures of a replay, and predicted against actual."""
    if not report["total"]["steps"]:
        yield Text("no steps to measure", style="dim")
        return
    table = _table("", ("steps", "fit", "overshoot", "lin", "calls", "wasted"))
    for name, figures in report["by_source"].items():
        _add_figures(table, printable(name), figures, bar=0.9)
    table.add_row()
    for name, figures in report["by_kind"].items():
        _add_figures(table, name, figures, bar=0.9)
    table.add_row()
    for name in ("first_sight", "beginning"):
        if report[name]["steps"]:
            _add_figures(table, name.replace("_", " "), report[name], bar=0.9)
    _add_figures(table, "total", report["total"], bar=target - 0.01, style="bold")
    yield table
    yield Text()
    yield from plot(played, width=min(width, 100))
    yield Text(
        f"\nmultiples of {quantum}, target {target:.0%} · fit: first attempts that were enough\n"
        "overshoot: allocated for each token needed · wasted: tokens a step\n"
        "lin: positions with retries, against knowing the length",
        style="dim",
    )


def plot(played: Sequence[Played], *, width: int) -> Iterator[Text]:
    """Budget (upwards) against actual length (to the right), both in powers of two."""
    steps = [step for step in played if not step.is_derived]
    columns = max(20, width - 12)
    high = math.ceil(max(math.log2(max(step.length, step.budget)) for step in steps))
    rows = max(2, high)  # a line for each doubling
    cells: Counter[tuple[int, int]] = Counter()
    for step in steps:
        column = min(columns - 1, int(math.log2(step.length) / high * columns))
        cells[rows - 1 - min(rows - 1, int(math.log2(step.budget) / high * rows)), column] += 1
    most = math.log(max(cells.values()) + 1)
    yield Text("  budget", style="dim")
    for row in range(rows):
        power = (rows - row) / rows * high
        tick = f"{2**power:>6,.0f}" if row % 3 == 0 else " " * 6
        line = Text(f"{tick} │", style="dim")
        for column in range(columns):
            is_below = (column + 0.5) / columns > (rows - row) / rows
            count = cells.get((row, column), 0)
            if count:
                level = int(math.log(count + 1) / most * (len(DENSITY) - 1) + 0.5)
                line.append(DENSITY[level], style="red" if is_below else "cyan")
            else:
                is_equal = int((column + 0.5) / columns * rows) == rows - 1 - row
                line.append("╱" if is_equal and column % 2 else " ", style="dim")
        line.rstrip()
        yield line
    ticks = [2**power for power in range(0, high + 1, 2)]
    axis = ""
    for value in ticks:
        at = int(math.log2(value) / high * columns)
        axis = axis.ljust(at) + f"{value:,}" if at >= len(axis) and at < columns - 3 else axis
    yield Text(f"{'':6} └{'─' * columns}", style="dim")
    yield Text(f"{'':8}{axis}", style="dim")
    yield Text.assemble(
        ("        actual length   ", "dim"), ("█ fits  ", "cyan"), ("█ too small", "red")
    )


def sparkline(lengths: Sequence[int], *, columns: int = 12) -> str:
    """A histogram of lengths in one line; each column is twice as long as the one before."""
    counts = Counter(min(columns - 1, length.bit_length()) for length in lengths)
    most = max(counts.values(), default=1)
    return "".join(
        BARS[math.ceil(counts[column] / most * (len(BARS) - 1))] if counts[column] else " "
        for column in range(columns)
    )


def _histogram(lengths: Sequence[int], target: int, width: int) -> Iterator[Text]:
    edges = _edges(max(*lengths, target))
    counts = Counter(next(i for i, edge in enumerate(edges) if n <= edge) for n in lengths)
    shown = range(
        min(counts), max(max(counts), next(i for i, e in enumerate(edges) if target <= e)) + 1
    )
    most, columns = max(counts.values()), max(10, min(width, 100) - 24)
    for place in shown:
        low = edges[place - 1] + 1 if place else 0
        is_over = low > target
        bar = "█" * math.ceil(counts[place] / most * columns)
        line = Text.assemble(
            (f"{low:>6,} – {edges[place]:<6,} ", "dim"), (bar, "red" if is_over else "cyan")
        )
        if counts[place]:
            line.append(f" {counts[place]:,}", style="dim")
        if low <= target <= edges[place]:
            line.append(f"  ◂ budget {target:,}", style="bold")
        yield line


def _edges(longest: int) -> list[int]:
    """Upper edges of bins, each a half longer than the one before."""
    edges = [8]
    while edges[-1] < longest:
        edges.append(math.ceil(edges[-1] * 1.5))
    return edges[-MARKED:]


def _table(first: str, others: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="right")
    return table


def _add_figures(
    table: Table, name: str, figures: Mapping[str, float], *, bar: float, style: str = ""
) -> None:
    table.add_row(
        name,
        f"{figures['steps']:,}",
        _share(figures["coverage"], bar=bar),
        f"{figures['overshoot']:.2f}",
        f"{figures['lin']:.2f}",
        f"{figures['calls']:.3f}",
        f"{figures['wasted']:,.0f}",
        style=style,
    )


def _label(name: Sequence[str | None]) -> Text:
    kind, *rest = (printable(part) for part in name if part)
    return Text.assemble((kind, "cyan"), ("/" + "/".join(rest), ""))


def _share(share: float, *, bar: float) -> Text:
    return Text(f"{share:.1%}", style="green" if share >= bar else "red")


def _code(advice: str) -> Text:
    """Advice with its quoted words set off."""
    text = Text()
    for number, part in enumerate(advice.split("`")):
        text.append(part, style="green" if number % 2 else "")
    return text


def _rank(ordered: Sequence[int], level: float) -> int:
    return ordered[min(len(ordered) - 1, math.ceil(level * len(ordered)) - 1)]
