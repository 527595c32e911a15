"""`agentdiff run TASK`: from the words on the command line to the answer on the screen."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from agentdiff.cli.complaints import complain, warn
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Effort, Sampling

if TYPE_CHECKING:
    from agentdiff.agent import Agent, Tool
    from agentdiff.cli.display import Display
    from agentdiff.length import LengthPredictor
    from agentdiff.telemetry import TraceFile

STORE = Path(".agentdiff") / "lengths.sqlite"
"""Where a root keeps the lengths that its runs have taught; counts and names, no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the command line asks for."""

    task: str
    backends: tuple[str, ...]
    tools: str | None
    root: Path
    trace: Path | None
    sampling: Sampling
    instructions: str

    def __post_init__(self) -> None:
        if not self.task.strip():
            raise ConfigurationError('the task is empty; say what is to be done: agentdiff run "…"')
        for what, text in (("task", self.task), ("`--instructions`", self.instructions)):
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise ConfigurationError(f"the {what} is not valid UTF-8 text")
        if not self.root.is_dir():
            raise ConfigurationError(
                f"`--root` {str(self.root)!r} is not a folder; make it, or name another"
            )


def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done, in words.")],
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="Who answers: [cyan]embedded[/] (the default), [cyan]local:PATH-OR-ID[/], "
            "[cyan]openai:URL#MODEL[/], [cyan]mercury:MODEL[/]. Given again, another one "
            "that takes over when the first fails.",
        ),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help="A Python module or file with typed functions, in place of the shipped tools.",
        ),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder that the shipped tools work in.")
    ] = Path(),
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace; `agentdiff trace show FILE` draws it."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Same seed, same output.")
    ] = None,
    effort: Annotated[
        Effort,
        typer.Option(metavar="LEVEL", help="Speed or certainty: speed, balanced, quality."),
    ] = "balanced",
    instructions: Annotated[
        str, typer.Option(metavar="TEXT", help="A system message, for models that read one.")
    ] = "",
) -> None:
    """Do a task with tools, and show every step of it.

    A small block-diffusion model that ships with the package does it by default:
    no GPU, no key, no server.
    """
    with _display(trace, as_json=as_json) as display:
        job = Job(
            task=task,
            backends=tuple(backend or ("embedded",)),
            tools=tools,
            root=root,
            trace=trace,
            sampling=Sampling(effort=effort, seed=seed),
            instructions=instructions,
        )
        _do(job, display)


def _display(trace: Path | None, *, as_json: bool) -> Display:
    if as_json:
        from agentdiff.cli.as_json import JsonDisplay

        return JsonDisplay()
    from agentdiff.cli.display import open_display

    return open_display(trace)


def _do(job: Job, display: Display) -> None:
    # The trace is opened last: a wrong option must not empty a file.
    with display.loading(", ".join(job.backends)):
        from agentdiff.agent import Agent
        from agentdiff.backends import connect
        from agentdiff.length import LengthPredictor, Store
        from agentdiff.telemetry import trace_to_file

        tools = _tools(job)
        backend = connect(job.backends[0])
        if len(job.backends) > 1:
            from agentdiff.backends.router import Router

            backend = Router([backend, *map(connect, job.backends[1:])])
        gc.freeze()  # what is loaded stays: looking through it again takes 200 ms each time
    store = Store(job.root / STORE)
    predictor = LengthPredictor(store)
    agent = Agent(
        backend,
        tools=tools,
        instructions=job.instructions,
        name="agentdiff",
        predictor=predictor,
        sampling=job.sampling,
    )
    with ExitStack() as stack:
        stack.callback(_report, predictor)
        stack.callback(store.close)
        if job.trace is not None:
            stack.enter_context(_reported(trace_to_file(job.trace)))
        display.begin(backend)
        _follow(agent, job.task, display)


@contextmanager
def _reported(tracing: AbstractContextManager[TraceFile]) -> Generator[None]:
    """The trace, and a warning about what went wrong with its file once that is closed."""
    opened: TraceFile | None = None
    try:
        with tracing as opened:
            yield
    finally:
        if opened is not None and opened.problem:
            warn(opened.problem)


def _tools(job: Job) -> list[Tool[..., Any]]:
    if job.tools is not None:
        from agentdiff.agent import load_tools

        return load_tools(job.tools)
    from agentdiff.embedded.tools import shipped_tools

    return list(shipped_tools(job.root))


def _report(predictor: LengthPredictor) -> None:
    for problem in predictor.problems:
        warn(problem)


def _follow(agent: Agent[str], task: str, display: Display) -> None:
    """Run the task and show its events; `KeyboardInterrupt` after a Ctrl-C."""
    import anyio

    from agentdiff.cli.interrupt import interruptible, leave

    async def follow() -> None:
        try:
            async with agent.run_events(task) as events:
                async for event in events:
                    await anyio.sleep(display.show(event))
        except SystemExit:  # nobody reads any more (`| head`); rich has closed the pipe quietly
            return
        finally:
            with anyio.CancelScope(shield=True):
                await agent.backend.aclose()

    def give_up() -> NoReturn:
        display.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        complain("interrupted")
        leave(130)

    async def main() -> None:
        await interruptible(follow, give_up=give_up)

    anyio.run(main)
