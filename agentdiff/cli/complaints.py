"""What goes wrong, as one line on stderr and an exit code."""

from __future__ import annotations

import sys

from agentdiff.errors import AgentDiffError, ConfigurationError, OutOfScope


def complain(problem: object) -> None:
    """Print one line on stderr, whatever line breaks and control characters `problem` holds."""
    line = " ".join(str(problem).split())
    print(f"agentdiff: {''.join(c if c.isprintable() else '?' for c in line)}", file=sys.stderr)


def warn(problem: object) -> None:
    """Print one line on stderr about what went wrong and did not stop the run."""
    complain(f"warning: {problem}")


def exit_code(error: AgentDiffError) -> int:
    """The exit code that stands for an error."""
    match error:
        case ConfigurationError():
            return 2
        case OutOfScope():
            return 3
        case _:
            return 1
