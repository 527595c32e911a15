"""What goes wrong, as one line on stderr and an exit code."""

from __future__ import annotations

import sys

from agentdiff.errors import AgentDiffError, ConfigurationError, OutOfScope


def complain(problem: object, *, style: str = "bold red") -> None:
    """Print one line on stderr, whatever line breaks and control characters `problem` holds.

    A terminal that is too narrow for it breaks it between words.
    """
    line = " ".join(str(problem).split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    if not sys.stderr.isatty():
        print(f"agentdiff: {line}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, highlight=False).print(Text.assemble(("agentdiff: ", style), line))


def warn(problem: object) -> None:
    """Print one line on stderr about what went wrong and did not stop the run."""
    complain(f"warning: {problem}", style="bold yellow")


def exit_code(error: AgentDiffError) -> int:
    """The exit code that stands for an error."""
    match error:
        case ConfigurationError():
            return 2
        case OutOfScope():
            return 3
        case _:
            return 1
