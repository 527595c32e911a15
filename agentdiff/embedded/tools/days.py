"""A day as a value: what was said, when it is, and the arithmetic of the calendar."""

from __future__ import annotations

import calendar
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["exact", "numeric", "yearless", "recurring", "relative"]
Lean = Literal["next", "last"]
Part = Literal["", "am", "pm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day, or several in a row, with the words that named it."""

    said: str
    first: date
    last: date
    kind: Kind
    """exact: `2027-03-01`, `march 1 2027`. numeric: `3/1/2027`, which not everybody reads alike.
    yearless: `march 1`. recurring: `friday`, `easter`, `the 14th`. relative: `tomorrow`."""
    part: Part = ""
    """The half of the day that the words named (`tomorrow evening`)."""

    @property
    def resolved(self) -> str:
        """The words, and the date where they do not say it: `friday (2026-12-04)`."""
        if self.said == self.first.isoformat():
            return self.said
        until = "" if self.first == self.last else f" to {self.last}"
        return f"{self.said} ({self.first}{until})"

    @property
    def start(self) -> Day:
        """Its first day, under the same words."""
        return replace(self, last=self.first)

    @property
    def phrase(self) -> str:
        """`resolved` as it stands in a sentence: `on friday (…)`, `tomorrow (…)`, `in may (…)`."""
        if self.kind == "relative":
            return self.resolved
        return f"{'on' if self.first == self.last else 'in'} {self.resolved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a name is read against."""

    today: date
    near: date
    """Where names without a year are looked for."""
    lean: Lean
    """Whether those fall on or after `near`, or on or before it."""

    def turned(self, turn: str | None) -> Asked:
        """The same with `next`, `coming`, `last` or `this` in front of a yearly day."""
        match turn:
            case "next" | "coming":
                return replace(self, near=self.today + timedelta(days=1), lean="next")
            case "last":
                return replace(self, near=self.today - timedelta(days=1), lean="last")
            case "this":
                return replace(self, near=self.today.replace(month=1, day=1), lean="next")
            case _:
                return self


def one_day(day: date, kind: Kind) -> Day:
    """One day, not yet named."""
    return Day(said="", first=day, last=day, kind=kind)


def days_from(first: date, last: date, kind: Kind) -> Day:
    """Several days, not yet named."""
    return Day(said="", first=first, last=last, kind=kind)


def month_of(year: int, month: int) -> Day:
    """A whole month."""
    last = calendar.monthrange(year, month)[1]
    return days_from(date(year, month, 1), date(year, month, last), "exact")


def year_of(year: int) -> Day:
    """A whole year."""
    return days_from(date(year, 1, 1), date(year, 12, 31), "exact")


def moved(day: date, count: int, unit: str) -> date:
    """`day` moved by whole units; the 31st of a shorter month is its last day."""
    if unit in ("day", "week", "fortnight"):
        return day + timedelta(days=count * {"day": 1, "week": 7, "fortnight": 14}[unit])
    months = day.year * 12 + day.month - 1 + count * (1 if unit == "month" else 12)
    year, month = divmod(months, 12)
    last = month_of(year, month + 1).last.day
    return date(year, month + 1, min(day.day, last))


def monday_of(day: date) -> date:
    """The monday of the week of `day`."""
    return day - timedelta(days=day.weekday())


def recurring(
    rule: Callable[[int], date | None],
    asked: Asked,
    kind: Kind,
) -> Day | None:
    """The occurrence of a yearly day that `asked` looks for; None where none is known.

    A year for which `rule` raises ValueError has no such day.
    """
    step = 1 if asked.lean == "next" else -1
    for years in range(9):  # 29 february comes every eighth year at least
        try:
            on = rule(asked.near.year + step * years)
        except ValueError:
            continue
        if on is not None and (on >= asked.near if step > 0 else on <= asked.near):
            return one_day(on, kind)
    return None
