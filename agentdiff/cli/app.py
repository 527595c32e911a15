"""The commands, and the way from a list of arguments to an exit code.

Each command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from agentdiff.cli import bench, budgets, doctor, run, trace
from agentdiff.cli.complaints import complain, exit_code
from agentdiff.errors import AgentDiffError

_USAGE_ERRORS: tuple[Any, ...] = typer.BadParameter.__bases__
"""What typer raises for a wrong command line; it has no public name of its own."""

app = typer.Typer(
    name="agentdiff",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Try: [bold]agentdiff run "what is 17% of 2340?"[/bold]',
)
app.command("run")(run.run)
app.command("doctor")(doctor.doctor)
app.add_typer(trace.app)
app.add_typer(bench.app)
app.add_typer(budgets.app)


def _version(is_asked: bool) -> None:
    if is_asked:
        from agentdiff._version import __version__

        print(f"agentdiff {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def agentdiff(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Agents on diffusion language models."""
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")


def invoke(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; an error that has a name is told in one line."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal without `░` shows `?`
    command = typer.main.get_command(app)
    try:
        code = command.main(list(arguments), prog_name="agentdiff", standalone_mode=False)
        sys.stdout.flush()
    except AgentDiffError as error:
        complain(error)
        return exit_code(error)
    except typer.Abort:
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _USAGE_ERRORS as error:
        return _usage(error)
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # `agentdiff bench`, say
        error.show()
        return 0
    context = error.ctx
    path = context.command_path if context else "agentdiff"
    complain(f"{error.format_message()} See: {path} --help")
    return 2
