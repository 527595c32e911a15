"""A run on the terminal, while it goes on.

On a terminal the block that is being denoised is redrawn in place and disappears when its step is
done; elsewhere the same lines come without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
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
SPIN_S = 0.1
"""Seconds between two pictures of the spinner."""
WIDEST = 110
"""Columns beyond which figures are not moved to the right any more."""
_RULER = Console(width=80)
"""What `Text.wrap` asks for; it draws nothing."""


class Display(Protocol):
    """Shows a run; a context manager around all of it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was, whatever ended the run."""
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
    console = OneAtATime()
    is_live = console.is_terminal and not console.is_dumb_terminal
    return (LiveDisplay if is_live else PlainDisplay)(console, trace)


class OneAtATime(Console):
    """A console that one thread at a time may print on.

    A `Live` measures its picture and erases it in two moves; a thread that printed in between (the
    picture's, a tool's) would have its lines erased, or those above.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False)
        self._turn = threading.RLock()

    def __enter__(self) -> Self:
        self._turn.acquire()
        super().__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(exc_type, exc_value, traceback)
        finally:
            self._turn.release()


class PlainDisplay:
    """Lines, one after the other."""

    def __init__(self, console: Console, trace: Path | None) -> None:
        self.console = console
        self._trace = None if trace is None else str(trace)
        self._has_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Display`."""
        if error is not None and self._has_begun:
            self.print()  # a line of air before the error

    @contextmanager
    def loading(self, spec: str) -> Generator[None]:
        """See `Display.loading`."""
        yield

    def begin(self, backend: Backend) -> None:
        """See `Display.begin`."""
        self._has_begun = True
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
                self.print(picture.summary(result.steps))
                if self._trace is not None:
                    self.print(Text(f"agentdiff trace show {self._trace}", style="dim"))
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
        self._live = Live(
            console=console, transient=True, auto_refresh=False, get_renderable=self._picture
        )
        self._has_ended = threading.Event()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Display`."""
        self._end()
        super().__exit__(kind, error, traceback)

    @contextmanager
    def loading(self, spec: str) -> Generator[None]:
        """See `Display.loading`."""
        what = "the embedded model" if spec == "embedded" else picture.printable(spec)
        with self.console.status(Text(f"loading {what}…", style="dim"), spinner_style="cyan"):
            yield

    def begin(self, backend: Backend) -> None:
        """See `Display.begin`."""
        super().begin(backend)
        with self.console:
            self._live.start()
        threading.Thread(target=self._animate, daemon=True).start()

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
                self._end()
            case _:
                assert_never(event)
        super().show(event)
        self._redraw()
        return self._hold() if isinstance(event, StepStarted | Drafting | Committed) else 0.0

    def _end(self) -> None:
        self._has_ended.set()
        with self.console:
            self._live.stop()

    def _animate(self) -> None:
        """Turn the spinner while nothing happens."""
        while not self._has_ended.wait(SPIN_S):
            self._redraw()

    def _redraw(self) -> None:
        with self.console:  # always before the lock of `Live`, in this thread and in others
            if self._live.is_started:
                self._live.refresh()

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


def lines_of(step: StepRecord, width: int | None) -> list[Text]:
    """A step that is done: its calls, each with its result below it, and at the right what it cost.

    The figures stand on the first line that has room for them, else on one of their own. Without a
    width (no terminal), lines are as long as they are.
    """
    lines: list[Text] = []

    def add(text: Text, *, first: tuple[str, str]) -> None:
        rows = [text] if width is None else text.wrap(_RULER, max(width - 4, 10))
        for number, row in enumerate(rows):
            row.rstrip()
            lines.append(Text.assemble("    " if number else first, row))

    if not step.calls:
        add(picture.outcome(step), first=("● ", "cyan"))
    for record in step.calls:
        add(picture.call(record.tool, record.arguments), first=("● ", "cyan"))
        for number, line in enumerate(picture.result(record)):
            add(line, first=("    ", "") if number else ("  → ", "dim"))
    figures = picture.figures(step)
    if width is None:
        lines[0].append("  ").append(figures)
    else:
        _put_right(figures, lines, min(width, WIDEST))
    for warning in step.warnings:
        add(Text(picture.printable(warning), style="yellow"), first=("  ! ", "yellow"))
    return lines


def _put_right(figures: Text, lines: list[Text], width: int) -> None:
    room = width - figures.cell_len
    line = next((line for line in lines if line.cell_len + 2 <= room), None)
    if line is None:
        line = Text()
        lines.append(line)
    line.pad_right(max(0, room - line.cell_len))
    line.append(figures)
