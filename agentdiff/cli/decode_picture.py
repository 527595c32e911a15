"""Ways to decode as pictures: a table, the frontier in the terminal, the same as SVG. Prints nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from agentdiff.embedded.sweep import Point

ROWS = 13
"""Lines of the picture in the terminal."""
_MARKS = "●▲◆■□★✚○"
_COLORS = ("cyan", "green", "magenta", "yellow", "yellow", "blue", "red", "white")
_PAINTS = ("#0891b2", "#16a34a", "#c026d3", "#ca8a04", "#a16207", "#2563eb", "#dc2626", "#555")
"""The same for SVG."""


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both tokens per forward and exact replies; the most exact first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.tokens_per_forward, -p.exact)):
        if not best or point.exact > best[-1].exact:
            best.append(point)
    return best[::-1]


def table(points: Sequence[Point]) -> Table:
    """A line for each setting; those that no other beats are bold and ticked."""
    best = frontier(points)
    drawn = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    drawn.add_column("setting")
    for title in ("exact", "tokens/\nforward", "forwards", "positions", "CPU ms", "frontier"):
        drawn.add_column(title, justify="right", vertical="bottom")
    drawn.add_column("effort")
    for point in points:
        mark, color = _sign(points, point)
        drawn.add_row(
            Text.assemble((f"{mark} ", color), point.setting.name),
            f"{point.exact:.1%}",
            f"{point.tokens_per_forward:.2f}",
            f"{point.forwards:.1f}",
            f"{point.positions:,.0f}",
            f"{point.cpu_ms:.0f}",
            "✓" if point in best else "",
            point.setting.effort or "",
            style="bold" if point in best else "",
        )
    return drawn


def plot(points: Sequence[Point], *, width: int) -> Iterator[Text]:
    """Exact replies (upwards) against tokens per forward (to the right), and the line that no setting passes."""
    axes = _Axes(points)
    columns = max(20, width - 9)
    cells = [[(" ", "")] * columns for _ in range(ROWS)]

    def cell(speed: float, exact: float) -> tuple[int, int]:
        across, up = axes.place(speed, exact)
        return round((1 - up) * (ROWS - 1)), round(across * (columns - 1))

    for column in range(columns):  # the most that is had at this speed or above
        speed = axes.speed(column / (columns - 1))
        reached = [point.exact for point in points if point.tokens_per_forward >= speed]
        if reached:
            row, _ = cell(speed, max(reached))
            cells[row][column] = ("·", "dim")
    for point in (*points, *frontier(points)):  # the frontier's last, on top of what lies there
        row, column = cell(point.tokens_per_forward, point.exact)
        cells[row][column] = _sign(points, point)
    for point in points:
        if point.setting.effort:
            _label(cells, *cell(point.tokens_per_forward, point.exact), point.setting.effort)
    yield Text("  exact", style="dim")
    for row, line in enumerate(cells):
        tick = f"{axes.exact(1 - row / (ROWS - 1)):>6.1%}" if row % 3 == 0 else " " * 6
        drawn = Text(f"{tick} │", style="dim")
        for char, style in line:
            drawn.append(char, style=style)
        drawn.rstrip()
        yield drawn
    axis = ""
    for quarter in range(5):
        label = f"{axes.speed(quarter / 4):.2f}"
        axis = axis.ljust(min(round(quarter / 4 * (columns - 1)), columns - len(label))) + label
    yield Text(f"{'':7}└{'─' * columns}", style="dim")
    yield Text(f"{'':8}{axis}", style="dim")
    yield Text(f"{'':8}tokens per forward", style="dim")
    yield Text()
    legend = Text(" " * 8)
    for kind in _kinds(points):
        mark, color = _sign(points, next(p for p in points if p.setting.kind == kind))
        legend.append(f"{mark} ", style=color).append(f"{kind}  ", style="dim")
    yield legend


def as_svg(points: Sequence[Point], *, title: str) -> str:
    """The same picture: a dot for each setting, names for the frontier and the efforts, a line for the frontier."""
    axes = _Axes(points)
    left, top, across, down = 64, 56, 640, 380

    def at(point: Point) -> tuple[float, float]:
        x, y = axes.place(point.tokens_per_forward, point.exact)
        return left + x * across, top + (1 - y) * down

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 500" width="800" height="500"'
        ' font-family="system-ui, sans-serif" font-size="12" fill="#555">',
        '<rect width="800" height="500" fill="#fff"/>',
        f'<text x="{left}" y="26" font-size="16" fill="#222">What speed costs</text>',
        f'<text x="{left}" y="44">{escape(title)}</text>',
    ]
    for quarter in range(5):
        share = quarter / 4
        x, y = left + share * across, top + (1 - share) * down
        parts += [
            f'<path d="M{x:.1f} {top}V{top + down}M{left} {y:.1f}H{left + across}" stroke="#eee"/>',
            f'<text x="{x:.1f}" y="{top + down + 16}" text-anchor="middle">{axes.speed(share):.2f}</text>',
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{axes.exact(share):.1%}</text>',
        ]
    best = frontier(points)
    corners = [at(point) for point in best]
    path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(
        f"V{y:.1f}H{x:.1f}" for x, y in corners[1:]
    )
    parts.append(f'<path d="{path}" fill="none" stroke="#999" stroke-dasharray="4 4"/>')
    kinds = _kinds(points)
    for point in points:
        x, y = at(point)
        paint = _PAINTS[kinds.index(point.setting.kind) % len(_PAINTS)]
        name = escape(point.setting.name)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{paint}"><title>{name}</title></circle>'
        )
        if point.setting.effort:
            parts.append(f'<text x="{x + 6:.1f}" y="{y + 14:.1f}">{point.setting.effort}</text>')
        if point in best:
            parts.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}" fill="#222">{name}</text>')
    for number, kind in enumerate(kinds):
        x, paint = left + 100 * number, _PAINTS[number % len(_PAINTS)]
        parts.append(f'<circle cx="{x}" cy="{top + down + 52}" r="4" fill="{paint}"/>')
        parts.append(f'<text x="{x + 8}" y="{top + down + 56}">{escape(kind)}</text>')
    parts += [
        f'<text x="{left + across // 2}" y="{top + down + 38}" text-anchor="middle">tokens per forward</text>',
        f'<text transform="translate(16 {top + down // 2}) rotate(-90)" text-anchor="middle">'
        "exact replies</text>",
        "</svg>\n",
    ]
    return "\n".join(parts)


class _Axes:
    """The range of both figures, a little wider than the points."""

    def __init__(self, points: Sequence[Point]) -> None:
        speeds = [point.tokens_per_forward for point in points]
        shares = [point.exact for point in points]
        self._slow, self._fast = math.floor(2 * min(speeds)) / 2, math.ceil(2 * max(speeds)) / 2
        self._low, self._high = (
            math.floor(20 * min(shares)) / 20,
            math.ceil(20 * max(shares)) / 20,
        )
        if self._fast == self._slow:
            self._fast += 0.5
        if self._high == self._low:
            self._low, self._high = max(0.0, self._low - 0.05), min(1.0, self._high + 0.05)

    def place(self, speed: float, exact: float) -> tuple[float, float]:
        """Both in 0..1."""
        return (
            (speed - self._slow) / (self._fast - self._slow),
            (exact - self._low) / (self._high - self._low),
        )

    def speed(self, share: float) -> float:
        """The tokens per forward at a share of the axis."""
        return self._slow + share * (self._fast - self._slow)

    def exact(self, share: float) -> float:
        """The exact replies at a share of the axis."""
        return self._low + share * (self._high - self._low)


def _kinds(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.setting.kind for point in points))


def _sign(points: Sequence[Point], point: Point) -> tuple[str, str]:
    """The mark of a point's policy, and its colour."""
    number = _kinds(points).index(point.setting.kind) % len(_MARKS)
    return _MARKS[number], _COLORS[number]


def _label(cells: list[list[tuple[str, str]]], row: int, column: int, word: str) -> None:
    """Write a word beside a point, where it hides no other point; above or below where it must."""
    width = len(word)
    for near in (row, row - 1, row + 1, row - 2, row + 2):
        for start in (column + 2, column - width - 1):
            span = range(start, start + width)
            is_inside = 0 <= near < len(cells) and start >= 0 and span.stop <= len(cells[near])
            if is_inside and all(cells[near][place][0] in " ·" for place in span):
                for place, char in zip(span, word, strict=True):
                    cells[near][place] = (char, "bold")
                return
