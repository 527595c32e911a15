"""A run of twenty steps in a process of its own, which is killed again and again until it is done.

The log in the folder says when a call begins and when it is finished, which is when its record is
in the journal. The output of the run is written to `output`.
"""

import json
import multiprocessing
import random
import time
from multiprocessing.process import BaseProcess
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
            log.flush()  # outlives the process; a journal outlives the machine too

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
        journal = Journal(folder / "runs.sqlite")
        async with agent.run_events("Go", journal=journal.run("r")) as events:
            async for event in events:
                if isinstance(event, ToolFinished):
                    note("finished", event.record.result)
                elif isinstance(event, RunFinished):
                    (folder / "part").write_text(event.result.output)
                    (folder / "part").replace(folder / "output")  # a kill leaves no half of it


def run(folder: Path) -> None:
    """Begin the run in this process, or go on with it."""
    anyio.run(main, folder)


def run_with_kills(folder: Path, *, chance: random.Random, kills: int) -> int:
    """Begin and kill the run, at most `kills` times, then let it end; how often it was killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # a child begins at once
    killed = 0
    while not (folder / "output").exists():
        process = context.Process(target=run, args=(folder,))
        process.start()
        if killed < kills:
            _wait_for_lines(folder / "log", chance.randint(0, 12), process)
            process.join(chance.uniform(0, 0.02))
        else:
            process.join()
        if process.exitcode is None:
            process.kill()
            killed += 1
        process.join()
        assert process.exitcode in (0, -9), process.exitcode
    return killed


def check(folder: Path) -> int:
    """Pass when no finished call ran again and no result was lost; how many calls were broken off."""
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    finished = [n for what, n in lines if what == "finished"]
    assert finished == sorted(set(finished)), "a finished call ran again"
    for at, (what, n) in enumerate(lines):
        assert what == "finished" or ["finished", n] not in lines[:at], "began again after its end"
    assert (folder / "output").read_text() == "done after " + ", ".join(map(str, range(CALLS)))
    return sum(what == "begun" for what, _ in lines) - CALLS


def _wait_for_lines(log: Path, more: int, process: BaseProcess) -> None:
    """Wait until the log has so many more lines, or the process has ended."""

    def lines() -> int:
        return log.read_bytes().count(b"\n") if log.exists() else 0

    enough = lines() + more
    while process.exitcode is None and lines() < enough:
        time.sleep(0.001)
