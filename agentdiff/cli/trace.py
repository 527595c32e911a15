"""`agentdiff trace show FILE`: where the time of a run went, drawn in the terminal."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(name="trace", help="Look at the traces of runs.", no_args_is_help=True)


@app.callback()
def trace() -> None:
    """Look at the traces of runs."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A trace written with `--trace`, or any OTLP JSON.")],
) -> None:
    """Draw the runs in FILE: their spans in time, what each generation cost, and the sums."""
    from rich.console import Console

    render_trace(file, Console())


def render_trace(path: str | PathLike[str], console: Console) -> None:
    """Print every trace of the file at `path`, oldest first, in the width and colours of `console`.

    Raises:
        TraceError: the file cannot be read, or holds not one span.
    """
    from agentdiff.cli.trace_report import print_file
    from agentdiff.telemetry.otlp_reader import load_spans

    print_file(load_spans(path), console)
