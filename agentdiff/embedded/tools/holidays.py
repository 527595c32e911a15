"""Days that have names: when they fall in a year.

Feasts that follow the moon are listed for some years only, those of Islam to within a day; where
countries differ (mother's day, labor day), it is the day of the United States.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_LISTED = 2024


def find_holiday(name: str) -> Callable[[int], date | None] | None:
    """The rule of the day called `name`: when it falls in a year, None where that is not known."""
    key = re.sub(r"[^a-z0-9 -]", "", name.lower())
    key = " ".join(word for word in key.split() if word != "the")
    return _ALL.get(key) or _ALL.get(" ".join(word for word in key.split() if word != "day"))


def easter(year: int) -> date:
    """Easter Sunday, Gregorian (the anonymous algorithm: Meeus, Astronomical Algorithms, ch. 8)."""
    a, b, c = year % 19, year // 100, year % 100
    d, e = divmod(b, 4)
    g = (8 * b + 13) // 25
    h = (19 * a + b - d - g + 15) % 30
    i, k = divmod(c, 4)
    weekday = (32 + 2 * e + 2 * i - h - k) % 7
    m = (a + 11 * h + 19 * weekday) // 433
    month = (h + weekday - 7 * m + 90) // 25
    return date(year, month, (h + weekday - 7 * m + 33 * month + 19) % 32)


def nth_weekday(year: int, month: int, weekday: int, nth: int) -> date:
    """The `nth` (from 1; -1 is the last) `weekday` (0 is Monday) of a month.

    Raises:
        ValueError: The month has no fifth one.
    """
    if nth < 0:
        last = date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
        return last - timedelta(days=(last.weekday() - weekday) % 7)
    first = date(year, month, 1)
    found = first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (nth - 1))
    if found.month != month:
        raise ValueError(f"{month}/{year} has no weekday {weekday} number {nth}")
    return found


def _fixed(month: int, day: int) -> Callable[[int], date | None]:
    return lambda year: date(year, month, day)


def _from_easter(days: int) -> Callable[[int], date | None]:
    return lambda year: easter(year) + timedelta(days=days)


def _nth(month: int, weekday: int, nth: int, plus: int = 0) -> Callable[[int], date | None]:
    return lambda year: nth_weekday(year, month, weekday, nth) + timedelta(days=plus)


def _solstice(month: int, usual: int, shifted: dict[int, int]) -> Callable[[int], date | None]:
    """Universal time, right for 2020 to 2050; `shifted` by the remainder of year / 4."""
    return lambda year: date(year, month, shifted.get(year % 4, usual))


def _listed(days: str) -> Callable[[int], date | None]:
    table = {_FIRST_LISTED + n: day for n, day in enumerate(days.split())}

    def find(year: int) -> date | None:
        return date.fromisoformat(f"{year}-{table[year]}") if year in table else None

    return find


_SPRING = _solstice(3, 20, {})
_SUMMER = _solstice(6, 21, {0: 20})
_AUTUMN = _solstice(9, 23, {0: 22, 1: 22})
_WINTER = _solstice(12, 21, {3: 22})

_RULES: Final[dict[str, Callable[[int], date | None]]] = {
    "christmas, xmas, x-mas, first christmas": _fixed(12, 25),
    "christmas eve, xmas eve, holy evening": _fixed(12, 24),
    "boxing, second christmas, st stephens": _fixed(12, 26),
    "new years eve, new year eve, nye, silvester": _fixed(12, 31),
    "new year, new years": _fixed(1, 1),
    "epiphany, three kings": _fixed(1, 6),
    "groundhog": _fixed(2, 2),
    "valentines, valentine, st valentines": _fixed(2, 14),
    "womens, international womens": _fixed(3, 8),
    "pi day": _fixed(3, 14),
    "st patricks, saint patricks, paddys": _fixed(3, 17),
    "april fools, april fool": _fixed(4, 1),
    "earth day": _fixed(4, 22),
    "may day": _fixed(5, 1),
    "star wars day": _fixed(5, 4),
    "cinco de mayo": _fixed(5, 5),
    "juneteenth": _fixed(6, 19),
    "independence": _fixed(7, 4),
    "canada day": _fixed(7, 1),
    "bastille": _fixed(7, 14),
    "german unity": _fixed(10, 3),
    "halloween, hallowe en": _fixed(10, 31),
    "all saints": _fixed(11, 1),
    "all souls": _fixed(11, 2),
    "guy fawkes night, guy fawkes, bonfire night": _fixed(11, 5),
    "veterans, remembrance, armistice": _fixed(11, 11),
    "st nicholas, saint nicholas": _fixed(12, 6),
    "easter, easter sunday": _from_easter(0),
    "easter monday": _from_easter(1),
    "good friday": _from_easter(-2),
    "maundy thursday": _from_easter(-3),
    "palm sunday": _from_easter(-7),
    "carnival, mardi gras, shrove tuesday, pancake day, fat tuesday": _from_easter(-47),
    "rose monday": _from_easter(-48),
    "ash wednesday": _from_easter(-46),
    "ascension": _from_easter(39),
    "pentecost, whitsun, whit sunday": _from_easter(49),
    "whit monday, pentecost monday": _from_easter(50),
    "martin luther king, mlk": _nth(1, 0, 3),
    "presidents, president": _nth(2, 0, 3),
    "mothers": _nth(5, 6, 2),
    "memorial": _nth(5, 0, -1),
    "fathers": _nth(6, 6, 3),
    "labor, labour": _nth(9, 0, 1),
    "columbus, indigenous peoples": _nth(10, 0, 2),
    "thanksgiving": _nth(11, 3, 4),
    "black friday": _nth(11, 3, 4, 1),
    "cyber monday": _nth(11, 3, 4, 4),
    "first of spring, spring equinox, beginning of spring, start of spring": _SPRING,
    "first of summer, summer solstice, midsummer, beginning of summer, start of summer": _SUMMER,
    "first of autumn, first of fall, autumn equinox, fall equinox, start of autumn": _AUTUMN,
    "first of winter, winter solstice, beginning of winter, start of winter": _WINTER,
    "chinese new year, lunar new year": _listed(
        "02-10 01-29 02-17 02-06 01-26 02-13 02-03 01-23 02-11 01-31 02-19 02-08"
    ),
    "diwali": _listed("10-31 10-20 11-08 10-29 10-17 11-05 10-26 11-14 11-02 10-22 11-10 10-30"),
    # The first full day; it begins at the sunset before.
    "hanukkah, chanukah, hanukka": _listed(
        "12-26 12-15 12-05 12-25 12-13 12-02 12-21 12-10 11-28 12-17 12-07 12-26"
    ),
    "ramadan": _listed("03-11 03-01 02-18 02-08 01-28 01-16"),
    "eid, eid al fitr, eid ul fitr": _listed("04-10 03-31 03-20 03-10 02-26 02-14"),
    "eid al adha": _listed("06-16 06-06 05-27 05-16 05-05 04-24"),
}
"""Names (without `the`, and without `day` where it can be left out), and their rules."""

_ALL: Final = {name: rule for names, rule in _RULES.items() for name in names.split(", ")}
