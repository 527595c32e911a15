"""Days as people name them: `next friday`, `march 3`, `24.12.`, `in two weeks`, `christmas 2027`.

A name without a year falls on its next occurrence, or on its last one where the question looks
back. `next friday` is the friday of next week (weeks begin on monday); `friday` is never today.
With slashes the month comes first (12/24), with dots and dashes the day (24.12.), unless only the
other order is a date. A week, a month or a year is a day that lasts longer. What only its owner
knows (`my birthday`) is refused.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import replace
from datetime import date, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from agentdiff.embedded.tools.days import (
    Asked,
    Day,
    Kind,
    Lean,
    Part,
    days_from,
    monday_of,
    month_of,
    moved,
    one_day,
    recurring,
    year_of,
)
from agentdiff.embedded.tools.holidays import find_holiday, nth_weekday
from agentdiff.embedded.tools.numerals import ORDINALS, read_spelled
from agentdiff.errors import ToolFailed

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARS = 80


def read_day(text: str, *, today: date, near: date | None = None, lean: Lean = "next") -> Day:
    """The day that `text` names.

    Args:
        text: As people write it.
        today: What `tomorrow` and `next week` count from.
        near: Where names without a year are looked for; by default around today.
        lean: Whether those fall on or after `near`, or on or before it.

    Raises:
        ToolFailed: It names no day, or none that anyone else could know.
    """
    if len(text) > MAX_CHARS:
        raise ToolFailed(f"a date has at most {MAX_CHARS} characters, got {len(text)}")
    said = re.sub(r"\s+", " ", text.strip("\"'“”`?!,; "))
    said = re.sub(r"^(?:on|at|by|until|till|since|for|from) ", "", said, flags=re.IGNORECASE)
    said = (
        re.sub(r"^(today|tomorrow|yesterday|\w+day)['’]s$", r"\1", said, flags=re.IGNORECASE)
        or "today"
    )
    form = re.sub(r"[\s,]+", " ", said.lower().replace("’", "'")).strip()
    asked = Asked(today=today, near=near or today, lean=lean)
    try:
        for attempt in (form, _mended(form)):
            found = _read(attempt, asked)
            if found is not None:
                return replace(found, said=said)
            found, part = _with_part_of_day(attempt, asked)
            if found is not None:
                return replace(found, said=said, part=part)
    except (ValueError, OverflowError):
        raise ToolFailed(f"{said!r} is not a date of the calendar") from None
    raise ToolFailed(
        f"cannot tell which day {said!r} is; give a date like 2027-03-01, march 1 or next friday"
    )


# --- the rules ----------------------------------------------------------------------------------


def _read(text: str, asked: Asked) -> Day | None:
    for rule in _RULES:
        found = rule(text, asked)
        if found is not None:
            return found
    return None


def _with_part_of_day(text: str, asked: Asked) -> tuple[Day | None, Part]:
    found = re.fullmatch(r"(.+?) (?:in the )?(morning|afternoon|evening|night)", text)
    if found is None:
        return None, ""
    day = _read("today" if found[1] == "this" else found[1], asked)
    return day, "am" if found[2] == "morning" else "pm"


def _mended(text: str) -> str:
    """`text` with its misspelt words put right (`tommorow`, `wensday`)."""
    return " ".join(
        word
        if len(word) < 5 or word in _KNOWN_WORDS or not word.isalpha()
        else next(iter(get_close_matches(word, _KNOWN_WORDS, n=1, cutoff=0.75)), word)
        for word in text.split()
    )


_WEEKDAY_NAMES: Final = [name.lower() for name in calendar.day_name]
_WEEKDAYS: Final = (
    {name: n for n, name in enumerate(_WEEKDAY_NAMES)}
    | {name[:3]: n for n, name in enumerate(_WEEKDAY_NAMES)}
    | {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
)
_MONTH_NAMES: Final = [name.lower() for name in calendar.month_name[1:]]
_MONTHS: Final = (
    {name: n for n, name in enumerate(_MONTH_NAMES, start=1)}
    | {name[:3]: n for n, name in enumerate(_MONTH_NAMES, start=1)}
    | {"sept": 9}
)
_KNOWN_WORDS: Final = (*_WEEKDAY_NAMES, *_MONTH_NAMES, "today", "tomorrow", "yesterday", "weekend")

_WD: Final = rf"(?P<weekday>{'|'.join(_WEEKDAYS)})\.?"
_MONTH: Final = rf"(?P<month>{'|'.join(_MONTHS)})\.?"
_ORDINAL: Final = "|".join(sorted(ORDINALS, key=len, reverse=True))
_DAY: Final = rf"(?:the )?(?P<day>\d{{1,2}}|{_ORDINAL})(?:st|nd|rd|th|\.)?"
_YEAR: Final = r"(?: (?:of )?(?P<year>\d{4}))?"
_UNITS: Final = r"(?P<unit>day|week|fortnight|month|year)s?"
_COUNT: Final = r"(?P<count>\d{1,6}|[a-z][a-z -]*?)"


def _words(text: str, asked: Asked) -> Day | None:
    days = _NEAR_DAYS.get(text)
    if days is None:
        return None
    day = one_day(asked.today + timedelta(days=days), "relative")
    return replace(day, part="pm") if text == "tonight" else day


_NEAR_DAYS: Final = {
    **dict.fromkeys(("today", "now", "right now", "tonight", "this day"), 0),
    **dict.fromkeys(("tomorrow", "tmrw", "tmr", "tmw"), 1),
    **{"yesterday": -1, "overmorrow": 2},
}


def _numeric(text: str, asked: Asked) -> Day | None:
    found = re.fullmatch(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})", text)
    if found:
        return one_day(date(int(found[1]), int(found[3]), int(found[4])), "exact")
    found = re.fullmatch(r"(\d{1,2})([-/.])(\d{1,2})(?:\2(\d{4}|\d{2})?)?", text)
    if found is None:
        return None
    month, day = int(found[1]), int(found[3])
    if (found[2] == "/" and month > 12) or (found[2] != "/" and day <= 12):
        month, day = day, month
    if found[4] is None:
        return recurring(_every(month, day), asked, "recurring")
    year = int(found[4]) if len(found[4]) == 4 else 2000 + int(found[4])
    return one_day(date(year, month, day), "numeric")


def _offset(text: str, asked: Asked) -> Day | None:
    """`in 3 days`, `two weeks ago`, `a week from monday`, `the day after tomorrow`."""
    found = re.fullmatch(
        rf"(?:in )?(?:{_COUNT} )?{_UNITS}(?:'? time)?"
        r"(?: (?P<way>ago|from|after|before|later|hence|from now)(?: (?P<base>.+))?)?",
        text,
    )
    if found is None or not (found["way"] or text.startswith("in ")):
        return None
    count = _counted(found["count"] or "the")
    base = _read(found["base"], asked) if found["base"] else one_day(asked.today, "relative")
    if count is None or base is None:
        return None
    if found["way"] in ("ago", "before"):
        return one_day(moved(base.first, -count, found["unit"]), "relative")
    return one_day(moved(base.last, count, found["unit"]), "relative")


def _counted(text: str) -> int | None:
    if text in ("a", "an", "the", "one"):
        return 1
    if text in ("a couple of", "a couple", "couple of"):
        return 2
    words = text.replace("-", " ").split()
    if len(words) == 1 and words[0].isdigit():
        return int(words[0])
    spelled = read_spelled(words)
    return int(spelled[0]) if spelled and spelled[1] == len(words) else None


def _span(text: str, asked: Asked) -> Day | None:
    """`this weekend`, `next week`, `the month`, `last year`."""
    found = re.fullmatch(
        r"(?:(this|next|last|the|current|coming) )?(weekend|week|month|year)", text
    )
    if found is None:
        return None
    step = {"next": 1, "coming": 1, "last": -1}.get(found[1], 0)
    monday = monday_of(asked.today)
    match found[2]:
        case "weekend":
            step = 0 if found[1] == "coming" else step
            first = monday + timedelta(days=5 + 7 * step)
            return days_from(first, first + timedelta(days=1), "relative")
        case "week":
            first = monday + timedelta(days=7 * step)
            return days_from(first, first + timedelta(days=6), "relative")
        case "month":
            first = moved(asked.today.replace(day=1), step, "month")
            return replace(month_of(first.year, first.month), kind="relative")
        case _:
            return replace(year_of(asked.today.year + step), kind="relative")


def _edge(text: str, asked: Asked) -> Day | None:
    """`the end of the month`, `mid october`, `beginning of june`."""
    found = re.fullmatch(
        r"(?:the )?(end|beginning|start|middle|mid|early|late)[ -](?:(?:of|in) )?(.+)", text
    )
    whole = _read(found[2], asked) if found else None
    if found is None or whole is None or whole.first == whole.last:
        return None
    match found[1]:
        case "end" | "late":
            day = whole.last
        case "middle" | "mid":
            day = whole.first + (whole.last - whole.first - timedelta(days=1)) // 2
        case _:
            day = whole.first
    return one_day(day, "relative")


def _nth(text: str, asked: Asked) -> Day | None:
    """`the first monday in june`, `the last day of march`."""
    found = re.fullmatch(rf"(?:the )?({_ORDINAL}|last) (?:{_WD}|day) (?:in|of) (.+)", text)
    whole = _read(found[3], asked) if found else None
    if found is None or whole is None or whole.first.day != 1 or whole.first == whole.last:
        return None
    nth = -1 if found[1] == "last" else ORDINALS[found[1]]
    if found["weekday"] is None:
        day = whole.last if nth < 0 else whole.first + timedelta(days=nth - 1)
        return one_day(day, whole.kind)
    month = whole.last.month if nth < 0 else whole.first.month
    day = nth_weekday(whole.first.year, month, _WEEKDAYS[found["weekday"]], nth)
    return one_day(day, whole.kind)


def _holiday(text: str, asked: Asked) -> Day | None:
    """`easter`, `christmas 2027`, `next halloween`."""
    found = re.fullmatch(r"(?:(next|this|last|coming) )?(.+?)(?: (?:of |in )?(\d{4}))?", text)
    rule = find_holiday(found[2]) if found else None
    if found is None or rule is None:
        return None
    if found[3]:
        on = rule(int(found[3]))
        day = one_day(on, "exact") if on else None
    else:
        kind = "relative" if found[1] else "recurring"
        day = recurring(rule, asked.turned(found[1]), kind)
    if day is None:
        raise ToolFailed(f"I do not know when {text} is in that year; give the date itself")
    return day


def _month_day(text: str, asked: Asked) -> Day | None:
    """`march 3`, `3rd of march 2027`, `friday, april 16`."""
    for order in (rf"{_MONTH} {_DAY}", rf"{_DAY} (?:of )?{_MONTH}"):
        found = re.fullmatch(rf"(?:{_WD} (?:the )?)?{order}{_YEAR}", text)
        if found is not None:
            break
    else:
        return None
    month, day, weekday = _MONTHS[found["month"]], _day_number(found["day"]), found["weekday"]
    if found["year"]:
        return _fitting([date(int(found["year"]), month, day)], weekday, "exact")
    rule = _every(month, day)
    if weekday is None:
        return recurring(rule, asked, "yearless")
    other: Lean = "last" if asked.lean == "next" else "next"
    near = [recurring(rule, replace(asked, lean=lean), "exact") for lean in (asked.lean, other)]
    return _fitting([on.first for on in near if on], weekday, "recurring")


def _every(month: int, day: int) -> Callable[[int], date]:
    """The rule of a day with a date.

    Raises:
        ValueError: No year has it.
    """
    date(2000, month, day)
    return lambda year: date(year, month, day)


def _fitting(days: list[date], weekday: str | None, kind: Kind) -> Day:
    """The first of `days` that is a `weekday`."""
    for day in days:
        if weekday is None or day.weekday() == _WEEKDAYS[weekday]:
            return one_day(day, kind)
    name = _WEEKDAY_NAMES[days[0].weekday()]
    raise ToolFailed(f"{days[0]} is a {name}, not a {weekday}; leave the weekday out")


def _day_of_month(text: str, asked: Asked) -> Day | None:
    """`the 14th`, `friday the 13th`: the nearest month in which it fits."""
    found = re.fullmatch(
        rf"(?:{_WD} )?(?:the )?(?P<day>\d{{1,2}}(?:st|nd|rd|th)|(?<=the )(?:{_ORDINAL}|\d{{1,2}}))",
        text,
    )
    if found is None:
        return None
    day, step = (
        _day_number(re.sub(r"(?<=\d)\D+", "", found["day"])),
        1 if asked.lean == "next" else -1,
    )
    for months in range(60):
        month = moved(asked.near.replace(day=1), step * months, "month")
        if not 1 <= day <= month_of(month.year, month.month).last.day:
            continue
        on = month.replace(day=day)
        is_ahead = on >= asked.near if step > 0 else on <= asked.near
        if is_ahead and found["weekday"] in (None, *_names_of(on)):
            return one_day(on, "recurring")
    return None


def _names_of(day: date) -> list[str]:
    return [name for name, weekday in _WEEKDAYS.items() if weekday == day.weekday()]


def _month_alone(text: str, asked: Asked) -> Day | None:
    """`march`, `next june`, `may 2028`, `2028`."""
    if re.fullmatch(r"\d{4}", text):
        return year_of(int(text))
    found = re.fullmatch(rf"(?:(?P<turn>this|next|last) )?{_MONTH}{_YEAR}", text)
    if found is None:
        return None
    month = _MONTHS[found["month"]]
    if found["year"]:
        return month_of(int(found["year"]), month)
    first = recurring(_every(month, 1), asked.turned(found["turn"]), "recurring")
    if first is None:
        return None
    kind = "relative" if found["turn"] else "recurring"
    return replace(month_of(first.first.year, month), kind=kind)


def _weekday(text: str, asked: Asked) -> Day | None:
    """`friday`, `next tuesday`, `coming saturday`, `friday next week`."""
    found = re.fullmatch(
        rf"(?:(this|next|last|past|coming) )?{_WD}(?: (this|next|last) week)?", text
    )
    if found is None:
        return None
    weekday, turn, week = _WEEKDAYS[found["weekday"]], found[1], found[3]
    monday = monday_of(asked.today)
    if week or turn == "next":
        weeks = {"next": 1, "last": -1}.get(week or "next", 0)
        return one_day(monday + timedelta(days=weekday + 7 * weeks), "relative")
    if turn == "this":
        return one_day(
            asked.today + timedelta(days=(weekday - asked.today.weekday()) % 7), "relative"
        )
    base = asked.today if turn else asked.near
    if turn in ("last", "past") or (turn is None and asked.lean == "last"):
        day = base - timedelta(days=(base.weekday() - weekday - 1) % 7 + 1)
    else:
        day = base + timedelta(days=(weekday - base.weekday() - 1) % 7 + 1)
    return one_day(day, "relative" if turn else "recurring")


_RULES: Final[tuple[Callable[[str, Asked], Day | None], ...]] = (
    _words,
    _numeric,
    _span,
    _holiday,
    _month_day,
    _day_of_month,
    _month_alone,
    _weekday,
    _nth,
    _edge,
    _offset,
)


def _day_number(text: str) -> int:
    return ORDINALS[text] if text in ORDINALS else int(text)
