"""The command line.

`main` is the entry point. Whatever goes wrong in a way that has a name becomes one line on stderr
and an exit code:

    2    the request cannot be done as written (`ConfigurationError`, a wrong option)
    3    no tool fits (`OutOfScope`)
    130  Ctrl-C
    1    everything else

A bug keeps its traceback.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the one of this process, and return its exit code."""
    try:
        from agentdiff.cli.app import invoke

        code = invoke(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        from agentdiff.cli.complaints import complain

        complain("interrupted")
    if arguments is None and any(_is_at_work(thread) for thread in threading.enumerate()):
        from agentdiff.cli.interrupt import leave

        leave(code)  # a tool that was left to itself must not hold up the exit
    return code


def _is_at_work(thread: threading.Thread) -> bool:
    return thread is not threading.main_thread() and not thread.daemon
