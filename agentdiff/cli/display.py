"""A run on the terminal, while it goes on.

On a terminal the block that is being denoised is redrawn in place and disappears when its step is
done; elsewhere the same lines come without it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, assert_never

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from agentdiff.agent import (
    Committed,
    Drafting,
    RunEvent,
    RunFinished,
    StepFinished,
    StepRecord,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from agentdiff.cli import picture
from agentdiff.generation import Backend
from agentdiff.messages import ToolCall

FRAME_S = 0.03
"""Seconds that a frame stands, so that an eye can follow a model that is faster."""
HELD_FRAMES = 16
"""Frames of a step that are held. A run may be that far ahead of its picture and does not wait."""


class Display(Protocol):
    """Shows a run; a context manager around all of it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was. Calling it twice is safe."""
        ...

    def loading(self, spec: str) -> AbstractContextManager[None]:
        """Around what takes time before the run."""
        ...

    def begin(self, backend: Backend) -> None:
        """The run is about to begin."""
        ...

    def show(self, event: RunEvent) -> float:
        """Show an event; returns the seconds for which the picture should stand."""
        ...


def open_display(trace: Path | None) -> Display:
    """The display for this process's stdout."""
    console = Console(highlight=False)
    is_live = console.is_terminal and not console.is_dumb_terminal
    return (LiveDisplay if is_live else PlainDisplay)(console, trace)


class PlainDisplay:
    """Lines, one after the other."""

    def __init__(self, console: Console, trace: Path | None) -> None:
        self.console = console
        self._trace = None if trace is None else str(trace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Display`."""

    @contextmanager
    def loading(self, spec: str) -> Generator[None]:
        """See `Display.loading`."""
        yield

    def begin(self, backend: Backend) -> None:
        """See `Display.begin`."""
        self.print(picture.introduction(backend))
        self.print()

    def show(self, event: RunEvent) -> float:
        """See `Display.show`."""
        match event:
            case StepStarted() | Drafting() | Committed() | ToolStarted() | ToolFinished():
                return 0.0
            case StepFinished(record=record):
                self._finish_step(record)
            case RunFinished(result=result):
                self.print()
                self.print(Text(picture.printable(str(result.output)), style="bold"))
                self.print()
                self.print(picture.summary(result.steps, trace=self._trace))
            case _:
                assert_never(event)
        return 0.0

    def print(self, text: Text | str = "") -> None:
        """Print text; without a terminal lines are as long as they are."""
        self.console.print(text, soft_wrap=not self.console.is_terminal)

    def _finish_step(self, step: StepRecord) -> None:
        for line in lines_of(step, self.console.width if self.console.is_terminal else None):
            self.print(line)


class LiveDisplay(PlainDisplay):
    """The same, and the block while it is denoised, redrawn in place."""

    def __init__(self, console: Console, trace: Path | None) -> None:
        super().__init__(console, trace)
        self._step: StepStarted | None = None
        self._committed = ""
        self._draft = ""
        self._running: dict[str, ToolCall] = {}
        self._spinner = Spinner("dots", style="cyan")
        self._held_frames = 0
        self._frame_ends = 0.0
        self._live = Live(console=console, transient=True, get_renderable=self._picture)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Display`."""
        self._live.stop()

    @contextmanager
    def loading(self, spec: str) -> Generator[None]:
        """See `Display.loading`."""
        what = "the embedded model" if spec == "embedded" else picture.printable(spec)
        with self.console.status(Text(f"loading {what}…", style="dim"), spinner_style="cyan"):
            yield

    def begin(self, backend: Backend) -> None:
        """See `Display.begin`."""
        super().begin(backend)
        self._live.start()

    def show(self, event: RunEvent) -> float:
        """See `Display.show`."""
        match event:
            case StepStarted():
                self._step, self._held_frames = event, 0
                self._committed, self._draft = "", picture.MASK * event.budget.target
            case Drafting(text=text):
                self._draft = text
            case Committed(text=text):
                self._committed, self._draft = self._committed + text, ""
            case ToolStarted(call=call):
                self._running[call.id] = call
            case ToolFinished(call=call):
                self._running.pop(call.id, None)
            case StepFinished():
                self._step = None
                self._running.clear()
            case RunFinished():
                self._live.stop()
            case _:
                assert_never(event)
        super().show(event)
        self._live.refresh()
        return self._hold() if isinstance(event, StepStarted | Drafting | Committed) else 0.0

    def _hold(self) -> float:
        """The rest of the time of a frame that has just been drawn."""
        now = time.monotonic()
        if self._held_frames == HELD_FRAMES:
            return 0.0
        self._held_frames += 1
        self._frame_ends = max(now, self._frame_ends) + FRAME_S
        return self._frame_ends - now

    def _picture(self) -> RenderableType:
        if self._running:
            return Group(
                *(
                    self._beside_spinner(picture.call(call.name, call.arguments))
                    for call in list(self._running.values())
                )
            )
        if self._step is None:
            return Text()
        label = f"{self._step.kind} · budget {self._step.budget.target}"
        text = picture.block(self._committed, self._draft)
        return self._beside_spinner(self._tail(text, len(label)), label)

    def _tail(self, text: Text, label_cells: int) -> Text:
        """The last lines of a text that is longer than the screen."""
        width = max(10, self.console.width - label_cells - 4)
        lines = text.wrap(self.console, width)
        return Text("\n").join(lines[-max(1, self.console.height - 4) :])

    def _beside_spinner(self, text: Text, label: str = "") -> Table:
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(width=1)
        row.add_column(ratio=1)
        row.add_column(justify="right", no_wrap=True)
        row.add_row(self._spinner, text, Text(label, style="dim"))
        return row


def lines_of(step: StepRecord, width: int | None) -> Iterator[Text]:
    """A step that is done: its calls, each with its result below it, and at the right what it cost.

    The figures stand on the first line that has room for them, else on one of their own.
    """
    lines = [Text.assemble(("● ", "cyan"), picture.outcome(step))]
    if step.calls:
        lines.clear()
        for record in step.calls:
            lines.append(Text.assemble(("● ", "cyan"), picture.call(record.tool, record.arguments)))
            for number, line in enumerate(picture.result(record)):
                lines.append(Text.assemble("    " if number else ("  → ", "dim"), line))
    figures = picture.figures(step)
    if width is None:
        lines[0].append("  ").append(figures)
    else:
        room = width - figures.cell_len - 2
        fitting = next((line for line in lines if line.cell_len <= room), None)
        if fitting is None:
            fitting = Text()
            lines.append(fitting)
        fitting.pad_right(width - figures.cell_len - fitting.cell_len)
        fitting.append(figures)
    yield from lines
    for warning in step.warnings:
        yield Text(f"  ! {picture.printable(warning)}", style="yellow")
