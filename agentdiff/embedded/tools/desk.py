"""The desk of one working folder: its calendar, its notes, its timers, and what day it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date as Date
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Final

from agentdiff.embedded.tools.clock import read_time
from agentdiff.embedded.tools.dates import read_day
from agentdiff.embedded.tools.days import Day
from agentdiff.embedded.tools.numerals import write_number
from agentdiff.embedded.tools.store import Record, Store
from agentdiff.errors import ToolFailed

MAX_CHARS: Final = 10_000
"""Of a title or a note."""
MAX_LISTED: Final = 20
MAX_TIMER_MINUTES: Final = 7 * 24 * 60


class Event(Record):
    """An entry of the calendar."""

    title: str
    date: Date
    time: str = ""
    """HH:MM, a word like `sunset`, or empty: the whole day."""


class Note(Record):
    """A note."""

    text: str
    written: datetime


class Timer(Record):
    """A timer; nothing rings, it says when the time is over."""

    minutes: float
    label: str = ""
    ends: datetime


class Desk:
    """Tools that know the day and remember things in `<root>/.agentdiff`."""

    def __init__(self, root: Path, *, now: Callable[[], datetime]) -> None:
        self._now = now
        self._events = Store(root, "events", Event)
        self._notes = Store(root, "notes", Note)
        self._timers = Store(root, "timers", Timer)

    # --- days -----------------------------------------------------------------------------------

    def days_between(self, start: str = "today", end: str = "today") -> str:
        """Count the days between two dates.

        Args:
            start: The first date, for example `2027-03-01`, `march 3`, `last friday`.
            end: The second date, for example `christmas`, `next friday`, `in two weeks`.
        """
        first, second = _two_days(start, end, today=self._now().date())
        days = (second.first - first.first).days
        back = "to" if days >= 0 else "back to"
        alike = first.kind == second.kind == "yearless"
        one, other = (
            day.said if alike or day.kind == "exact" else day.start.resolved
            for day in (first, second)
        )
        return f"{_counted(abs(days), 'day')} from {one} {back} {other}"

    # --- calendar -------------------------------------------------------------------------------

    def add_event(self, title: str, date: str, time: str = "") -> str:
        """Add an event to the calendar.

        Args:
            title: What happens.
            date: The day, for example `friday`, `march 3`, `2027-03-01`.
            time: The time of day, for example `3pm`, `14:30`, `noon`; empty for the whole day.
        """
        title = _text(title, "the title of an event")
        day_said, at, time_said = date.partition(" at ")
        if at and not time:
            date, time = day_said, time_said
        day = read_day(date, today=self._now().date())
        clock = read_time(time, part=day.part) if time.strip() else None
        self._events.add(Event(title=title, date=day.first, time=clock.text if clock else ""))
        at_time = f" at {clock.text}" if clock else ""
        return f"added: {title} {day.start.phrase}{at_time}"

    def list_events(self, date: str = "today") -> str:
        """List the calendar events of a day.

        Args:
            date: The day, for example `today`, `friday`, `march 3`; `this week` lists them all.
        """
        day = read_day(date, today=self._now().date())
        found = [event for event in self._events.read() if day.first <= event.date <= day.last]
        if not found:
            return f"no events {day.phrase}"
        found.sort(key=lambda event: (event.date, _minute(event)))
        is_one_day = day.first == day.last
        lines = [_line(event, with_date=not is_one_day) for event in found]
        return f"{_counted(len(found), 'event')} {day.phrase}: {_listed(lines, '; ')}"

    # --- notes ----------------------------------------------------------------------------------

    def add_note(self, text: str) -> str:
        """Save a note.

        Args:
            text: What to write down.
        """
        text = _text(text, "a note")
        self._notes.add(Note(text=text, written=self._now().replace(microsecond=0)))
        return f"noted: {text}"

    def search_notes(self, query: str) -> str:
        """Search the saved notes.

        Args:
            query: Words that the note has; empty for all notes.
        """
        words = _search_words(query)
        found = [note.text for note in self._notes.read() if _has_all(words, note.text)]
        if not found:
            return f"no notes about {query.strip()}" if words else "no notes yet"
        return f"{_counted(len(found), 'note')}: {_listed(found[::-1], '; ')}"

    # --- timers ---------------------------------------------------------------------------------

    def set_timer(self, minutes: float, label: str = "") -> str:
        """Start a timer.

        Args:
            minutes: How long, in minutes; 1.5 is 90 seconds.
            label: What it is for.
        """
        if not math.isfinite(minutes) or minutes <= 0:
            raise ToolFailed(f"a timer needs more than 0 minutes, got {minutes:g}")
        if minutes > MAX_TIMER_MINUTES:
            raise ToolFailed(
                f"a timer runs at most a week ({MAX_TIMER_MINUTES} minutes), got {minutes:g}; "
                "add an event instead"
            )
        now = self._now().replace(microsecond=0)
        ends = now + timedelta(seconds=round(minutes * 60))
        label = _text(label, "a label") if label.strip() else ""
        self._timers.add(Timer(minutes=minutes, label=label, ends=ends))
        length = write_number(Fraction(repr(minutes)), digits=6)
        unit = "minute" if minutes == 1 else "minutes"
        named = f" ({label})" if label else ""
        clock = f"{ends:%H:%M:%S}" if minutes % 1 else f"{ends:%H:%M}"
        when = clock if ends.date() == now.date() else f"{ends.date()} {clock}"
        return f"timer for {length} {unit}{named}, ends at {when}"


def _two_days(start: str, end: str, *, today: Date) -> tuple[Day, Day]:
    """The days that a question means by two names.

    `until christmas` is the next one, `since christmas` the last one; between two names without a
    year the second comes after the first.
    """
    first, second = read_day(start, today=today), read_day(end, today=today)
    if second.said == "today" and first.first > today:
        past = read_day(start, today=today, lean="last")
        return (past, second) if past.first <= today else (second, first)
    if _is_floating(second):
        second = read_day(end, today=today, near=max(first.first, today))
    if _is_floating(first) and first.first > second.first:
        first = read_day(start, today=today, near=second.first, lean="last")
    return first, second


def _is_floating(day: Day) -> bool:
    return day.kind in ("yearless", "recurring")


def _text(text: str, what: str) -> str:
    text = text.encode(errors="replace").decode().strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1].strip()
    if not text:
        raise ToolFailed(f"{what} cannot be empty")
    if len(text) > MAX_CHARS:
        raise ToolFailed(f"{what} has at most {MAX_CHARS} characters, got {len(text)}")
    return text


def _minute(event: Event) -> int:
    """For sorting: events of the whole day, and times that we cannot read, come first."""
    try:
        return read_time(event.time).minute if event.time else -1
    except ToolFailed:
        return -1


def _line(event: Event, *, with_date: bool) -> str:
    return " ".join(
        part for part in (str(event.date) if with_date else "", event.time, event.title) if part
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _listed(lines: Sequence[str], separator: str) -> str:
    more = f"{separator}and {len(lines) - MAX_LISTED} more" if len(lines) > MAX_LISTED else ""
    return separator.join(lines[:MAX_LISTED]) + more


_FILLERS: Final = frozenset(
    {"a", "an", "the", "my", "our", "of", "for", "about", "on", "in", "to", "and"}
)


def _search_words(query: str) -> list[str]:
    words = re.findall(r"\w+", query.lower().replace("'s", "").replace("’s", ""))
    return [word for word in words if word not in _FILLERS] or words


def _has_all(words: Sequence[str], text: str) -> bool:
    """Whether each word begins a word of `text`, its plural `s` aside."""
    there = re.findall(r"\w+", text.lower())
    return all(
        any(word.startswith(wanted) for word in there)
        for wanted in (word.removesuffix("s") if len(word) > 3 else word for word in words)
    )
