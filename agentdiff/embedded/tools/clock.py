"""Times of day as people say them: `3pm`, `9.30`, `18h30`, `half past four`, `noon`, `sunset`.

Without `am` or `pm`, 1 to 6 o'clock is in the afternoon unless it is written `05:30`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from agentdiff.embedded.tools.numerals import read_spelled
from agentdiff.errors import ToolFailed

Part = Literal["", "am", "pm"]

_FIXED: Final = {
    **dict.fromkeys(("noon", "midday", "12 noon", "high noon", "lunchtime", "lunch"), 12 * 60),
    **dict.fromkeys(("midnight", "12 midnight"), 0),
}
_VAGUE: Final = {
    "dawn": 6 * 60,
    "sunrise": 6 * 60 + 30,
    "breakfast": 8 * 60,
    "morning": 9 * 60,
    "afternoon": 15 * 60,
    "sunset": 18 * 60 + 30,
    "dinner": 19 * 60,
    "dinnertime": 19 * 60,
    "evening": 19 * 60 + 30,
    "dusk": 20 * 60,
    "night": 21 * 60,
}
"""Times without a clock: kept as they were said; the minutes only put them in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A time of day."""

    text: str
    """HH:MM, or a word like `sunset`."""
    minute: int
    """Minutes since midnight, for sorting."""


def read_time(text: str, *, part: Part = "") -> Clock:
    """The time of day that `text` names.

    Args:
        text: As people write it.
        part: The half of the day, where the date named it (`tomorrow evening`).

    Raises:
        ToolFailed: It names no time.
    """
    form = re.sub(r"\s+", " ", text.lower().replace("’", "'").strip("\"'“”`?!,;. "))
    form = re.sub(r"^(?:at|around|about|from|by|@) ?", "", form).removeprefix("the ")
    form = re.sub(r"\b([ap])\.? ?m\b\.?", r"\1m", form)
    if form in _FIXED:
        return _clock(_FIXED[form])
    if form.removeprefix("in the ") in _VAGUE:
        word = form.removeprefix("in the ")
        return Clock(text=word, minute=_VAGUE[word])
    form, said_part = _split_part(form)
    found = _digital(form) or _spoken(form)
    if found is None:
        raise ToolFailed(f"{text!r} is not a time that I know; write it like 14:30, 3pm or noon")
    hour, minute, is_clear = found
    if not (0 <= hour <= 23 and 0 <= minute <= 59) or (
        said_part and hour > 12 and said_part == "am"
    ):
        raise ToolFailed(f"{text!r} is not a time of day; write it like 14:30, 3pm or noon")
    if said_part == "night":
        said_part = "am" if hour < 6 or hour == 12 else "pm"
    return _clock(60 * _hour(hour, said_part or ("" if is_clear else part), is_clear) + minute)


def _clock(minute: int) -> Clock:
    return Clock(text=f"{minute // 60:02d}:{minute % 60:02d}", minute=minute)


def _split_part(form: str) -> tuple[str, Literal["", "am", "pm", "night"]]:
    found = re.fullmatch(r"(.+?) ?(am|pm)", form)
    if found:
        return found[1], "am" if found[2] == "am" else "pm"
    found = re.fullmatch(r"(.+?) (?:in the (morning|afternoon|evening)|at (night))", form)
    if found is None:
        return form, ""
    return found[1], "night" if found[3] else "am" if found[2] == "morning" else "pm"


def _hour(hour: int, part: str, is_clear: bool) -> int:
    if part == "am":
        return 0 if hour == 12 else hour
    if part == "pm":
        return hour + 12 if hour < 12 else hour
    return hour + 12 if 1 <= hour <= 6 and not is_clear else hour


def _digital(form: str) -> tuple[int, int, bool] | None:
    """(hour, minute, whether it can only be meant on a clock of 24 hours)."""
    found = re.fullmatch(r"(\d{1,2})(?:[:.h](\d{2})|h)?(?: ?(?:uhr|o'?clock|hours?|h))?", form)
    if found is None:
        found = re.fullmatch(r"(\d{2})(\d{2})(?: ?(?:hours|hrs|h|uhr))?", form)
    if found is None:
        return None
    is_clear = (len(found[1]) == 2 and found[1][0] == "0") or int(found[1]) > 12 or "h" in form
    return int(found[1]), int(found[2] or 0), is_clear and "clock" not in form


def _spoken(form: str) -> tuple[int, int, bool] | None:
    """`half past six`, `quarter to nine`, `twenty past one`, `five thirty`, `half nine`."""
    found = re.fullmatch(r"half (?:past )?(.+)", form)
    if found:
        return _at(found[1], 30)
    found = re.fullmatch(r"(?:a )?(.+?)(?: minutes?)? (past|after|to|before|till) (.+)", form)
    if found:
        minutes = 15 if found[1] == "quarter" else _count(found[1])
        if minutes is None:
            return None
        return _at(found[3], minutes if found[2] in ("past", "after") else -minutes)
    words = form.removesuffix(" o'clock").removesuffix(" oclock").split()
    hour = _count(" ".join(words[:1]))
    if hour is None or len(words) == 1:
        return None if hour is None else (hour, 0, False)
    minutes = _count(" ".join(words[1:]).removeprefix("oh "))
    return None if minutes is None else (hour, minutes, False)


def _at(hour: str, minutes: int) -> tuple[int, int, bool] | None:
    if hour in _FIXED:
        total = (_FIXED[hour] + minutes) % (24 * 60)
        return total // 60, total % 60, True
    count = _count(hour.removesuffix(" o'clock"))
    if count is None or not 0 <= count <= 23:
        return None
    if minutes >= 0:
        return count, minutes, False
    return (count - 1) % 24 or 12, 60 + minutes, False


def _count(text: str) -> int | None:
    if text.isdecimal() and len(text) <= 2:
        return int(text)
    words = text.replace("-", " ").split()
    spelled = read_spelled(words)
    return int(spelled[0]) if spelled and spelled[1] == len(words) else None
