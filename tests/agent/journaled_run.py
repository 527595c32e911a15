"""A run of twenty steps in a process of its own, which may be killed: `python -m … FOLDER`.

The log in the folder says when a call begins and when it is finished, which is when its record is
in the journal. The last line of the run is written to `output`.
"""

import json
import os
import sys
from pathlib import Path

import anyio

from agentdiff.agent import Agent, Journal, RunFinished, ToolFinished
from agentdiff.backends.scripted import FunctionBackend
from agentdiff.generation import Request
from agentdiff.messages import ToolCall

CALLS = 19
"""Each in a step of its own; one more step answers."""


async def main(folder: Path) -> None:
    with (folder / "log").open("a", encoding="utf-8") as log:

        def note(what: str, n: int) -> None:
            log.write(json.dumps([what, n]) + "\n")
            log.flush()
            os.fsync(log.fileno())

        async def work(n: int) -> int:
            note("begun", n)
            await anyio.sleep(0.0005)
            return n

        def answer(request: Request) -> str | ToolCall:
            results = [message.content for message in request.messages if message.role == "tool"]
            if len(results) < CALLS:
                return ToolCall(id="", name="work", arguments={"n": len(results)})
            return "done after " + ", ".join(results)

        agent = Agent(FunctionBackend(answer), tools=[work])
        print("ready", flush=True)
        journal = Journal(folder / "runs.sqlite")
        async with agent.run_events("Go", journal=journal.run("r")) as events:
            async for event in events:
                if isinstance(event, ToolFinished):
                    note("finished", event.record.result)
                elif isinstance(event, RunFinished):
                    (folder / "output").write_text(event.result.output)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
