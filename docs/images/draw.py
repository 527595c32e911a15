"""Draw the pictures of the docs from real runs of the embedded model: `python docs/images/draw.py`.

Shows what `agentdiff run` shows, with the block after each forward pass of the first step left standing.
"""

from __future__ import annotations

import os
import tempfile
from io import StringIO
from pathlib import Path

import anyio
from rich.console import Console
from rich.text import Text

from agentdiff.agent import Agent, Committed, Drafting, StepFinished, StepStarted
from agentdiff.backends import connect
from agentdiff.cli import picture
from agentdiff.cli.display import PlainDisplay
from agentdiff.cli.trace import render_trace
from agentdiff.embedded.tools import shipped_tools
from agentdiff.telemetry import trace_to_file

HERE = Path(__file__).parent.resolve()
TASK = "convert 26.2 miles to km, then add a note with the result"


def console() -> Console:
    """A terminal of 104 columns that remembers what was printed on it."""
    return Console(record=True, width=104, file=StringIO(), force_terminal=True, highlight=False)


async def draw(run: Path, trace: Path) -> None:
    """Run once to warm up, then once for the pictures."""
    backend = connect("embedded")
    tools = shipped_tools(Path())
    await Agent(backend, tools=tools).run(TASK)
    screen = console()
    screen.print(Text(f'$ agentdiff run "{TASK}" --trace run.jsonl', style="bold"))
    display = PlainDisplay(screen, Path("run.jsonl"))
    with trace_to_file("run.jsonl"):
        display.begin(backend)
        number, committed = 0, ""
        async with Agent(backend, tools=tools, name="agentdiff").run_events(TASK) as events:
            async for event in events:
                match event:
                    case StepStarted():
                        number, committed = event.number, ""
                    case Committed(text=text):
                        committed += text
                    case Drafting(text=text) if number == 1:
                        screen.print(Text("    ").append_text(picture.block(committed, text)))
                    case StepFinished() if number == 1:
                        screen.print(Text("    ").append_text(picture.block(committed, "")))
                        screen.print()
                    case _:
                        pass
                display.show(event)
    screen.save_svg(str(run), title="agentdiff run")
    view = console()
    view.print(Text("$ agentdiff trace show run.jsonl", style="bold"))
    render_trace(Path("run.jsonl"), view)
    view.save_svg(str(trace), title="agentdiff trace show")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        anyio.run(draw, HERE / "run.svg", HERE / "trace.svg")
