"""What these tests share: a folder with tools in it, and a clock that stands still."""

from datetime import datetime
from pathlib import Path
from typing import Any

import agentdiff.embedded
from agentdiff.embedded.tools import shipped_tools

NOW = datetime(2026, 11, 30, 14, 22, 10)  # a monday
CORPUS = Path(agentdiff.embedded.__file__).parent / "training" / "corpus"


class Bench:
    """The shipped tools by name, called as a model calls them."""

    def __init__(self, root: Path, now: datetime = NOW) -> None:
        self.root = root
        self.tools = {tool.name: tool for tool in shipped_tools(root, now=lambda: now)}

    async def __call__(self, name: str, **arguments: Any) -> str:
        return await self.tools[name].call(arguments)
