"""`agentdiff bench embedded`: how good the embedded model is, measured here and now."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentdiff.cli.bench_constraint import constraint
from agentdiff.cli.bench_decode import decode
from agentdiff.cli.picture import printable
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.embedded.bench import Score
    from agentdiff.generation import Backend
    from agentdiff.messages import Json

app = typer.Typer(name="bench", help="Measure what the package claims.", no_args_is_help=True)
app.command()(constraint)
app.command()(decode)


@app.callback()
def bench() -> None:
    """Measure what the package claims."""


@app.command()
def embedded(
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Requests at a time; 1 for the time of a call.")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    show_wrong: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show up to N wrong replies of each set.")
    ] = 0,
    only: Annotated[
        str, typer.Option(metavar="NAME", help="Only the sets whose file has NAME in its name.")
    ] = "",
) -> None:
    """Put the embedded model to its evaluation sets: grammar and grounding on, one thread."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported, below
        os.environ[name] = "1"
    from agentdiff.backends import connect
    from agentdiff.embedded.bench import SETS, machine

    files = [file for file, _ in SETS.values() if only in file]
    if not files:
        known = ", ".join(file for file, _ in SETS.values())
        raise ConfigurationError(f"no set has {only!r} in its name; the sets are {known}")
    backend = connect("embedded")
    if as_json:
        scores = [score for file in files for score in measure(backend, file, jobs)]
        sets = [as_object(score) for score in scores]
        print(json.dumps({"machine": machine(), "jobs": jobs, "sets": sets}, indent=2))
        return
    _show(backend, files, jobs, show_wrong=show_wrong, machine=machine())


def measure(backend: Backend, file: str, jobs: int) -> list[Score]:
    """The scores of a set, measured in a folder that is gone afterwards."""
    import anyio

    from agentdiff.embedded.bench import bench

    async def main() -> list[Score]:
        with tempfile.TemporaryDirectory() as root:
            return await bench(backend, Path(root), jobs=jobs, only=file)

    return anyio.run(main)


def as_object(score: Score) -> dict[str, Any]:
    """A score with its shares, as in the table."""
    return {
        "title": score.title,
        "rows": score.rows,
        "bar": score.bar,
        "exact": score.accuracy,
        "right_tool": score.right_tool / max(1, score.rows),
        "refused": score.refused / max(1, score.rows),
        "tokens_per_forward": score.tokens_per_forward,
        "cpu_ms": score.cpu_ms,
    }


def _show(
    backend: Backend, files: Sequence[str], jobs: int, *, show_wrong: int, machine: str
) -> None:
    console = Console(highlight=False)
    scores: list[Score] = []
    console.print(f"[bold]{backend.name}[/] [dim]· one thread, {jobs} at a time · {machine}[/]\n")
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for file in files:
            live.update(Group(table(scores), f"[dim]{file} …[/]"), refresh=True)
            scores += measure(backend, file, jobs)
    console.print(table(scores))
    for score in scores:
        for line in wrong_lines(score, show_wrong):
            console.print(line)


def table(scores: Sequence[Score]) -> Table:
    """The scores; a share that misses its bar is red."""
    drawn = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    drawn.add_column("evaluation set")
    for title in ("rows", "exact", "bar", "right\ntool", "refused", "tokens/\nforward", "CPU ms"):
        drawn.add_column(title, justify="right", vertical="bottom")
    for score in scores:
        row = as_object(score)
        missed = score.bar is not None and score.accuracy < score.bar
        drawn.add_row(
            score.title,
            str(score.rows),
            Text(f"{score.accuracy:.1%}", style="bold red" if missed else "bold green"),
            "" if score.bar is None else f"{score.bar:.0%}",
            f"{row['right_tool']:.1%}",
            f"{row['refused']:.1%}",
            f"{score.tokens_per_forward:.1f}",
            f"{score.cpu_ms:.0f}",
        )
    return drawn


def wrong_lines(score: Score, most: int) -> list[Text]:
    """Up to `most` of the replies that are not exact: the request, what was expected, what came."""
    lines: list[Text] = []
    for request, expected, got, confidence in score.wrong[:most]:
        lines += [
            Text.assemble("\n", (score.title, "dim"), "\n", (printable(request), "bold")),
            Text.assemble(("  expected  ", "dim"), printable(_written(expected))),
            Text.assemble(
                ("  got       ", "dim"),
                (printable(_written(got)), "red"),
                (f"  at {confidence:.2f}", "dim"),
            ),
        ]
    return lines


def _written(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
