"""The ten tools that ship with the package. They really run, offline, inside one folder."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from agentdiff.agent.tools import tool
from agentdiff.embedded.tools.arithmetic import calculate
from agentdiff.embedded.tools.desk import Desk
from agentdiff.embedded.tools.files import Files
from agentdiff.embedded.tools.units import convert_units
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentdiff.agent.tools import AnyTool

__all__ = ["shipped_tools"]


def shipped_tools(root: Path, *, now: Callable[[], datetime] | None = None) -> list[AnyTool]:
    """The tools, in the order in which the embedded model has learned them.

    Args:
        root: The folder they work in. They read files below it and remember events, notes and
            timers in `.agentdiff` there; nothing else is read or written.
        now: The clock; by default that of this machine, in its time zone.

    Raises:
        ConfigurationError: `root` is not a folder.
    """
    if not root.is_dir():
        raise ConfigurationError(f"`root` must be a folder, got {str(root)!r}")
    desk, files = Desk(root, now=now or _local_time), Files(root)
    return [
        tool(calculate),
        tool(convert_units),
        tool(desk.days_between),
        tool(desk.add_event),
        tool(desk.list_events),
        tool(desk.add_note),
        tool(desk.search_notes),
        tool(files.search_files),
        tool(files.read_file),
        tool(desk.set_timer),
    ]


def _local_time() -> datetime:
    return datetime.now().astimezone()
