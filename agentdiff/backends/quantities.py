"""Which numbers a text may mean: those it writes in digits or in English words, and its time spans in other units.

A grounded model's numeric arguments are held to them (`actions.reply_schema`), so that a small model picks a number and
cannot make one up: "half an hour" may be 30 (minutes), 0.5 (hours) or 1800 (seconds), and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

_UNIT_WORDS = """zero one|first two|second|couple|pair|double|twice three|third|triple four|fourth five|fifth
    six|sixth seven|seventh eight|eighth nine|ninth ten|tenth eleven|eleventh twelve|twelfth thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen"""
_TEN_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_UNITS = {
    word: float(number)
    for number, words in enumerate(_UNIT_WORDS.split())
    for word in words.split("|")
}
_TENS = {word: 10.0 * number for number, word in enumerate(_TEN_WORDS.split(), start=2)}
_SCALES = {"dozen": 12.0, "hundred": 100.0, "thousand": 1000.0, "million": 1e6}
_PARTS = {"half": 0.5, "quarter": 0.25, "quarters": 0.25, "third": 1 / 3, "thirds": 1 / 3}
_FRACTIONS = {"1/2": 0.5, "1/4": 0.25, "3/4": 0.75}
_ONE = frozenset(["a", "an", "single"])
_SECONDS = {
    "second": 1,
    "sec": 1,
    "minute": 60,
    "min": 60,
    "hour": 3600,
    "hr": 3600,
    "h": 3600,
    "day": 86_400,
    "week": 604_800,
    "fortnight": 1_209_600,
}
_SPANS = (1, 60, 3600, 86_400)
_VAGUE = frozenset(["lot", "bit", "few", "little", "while", "moment"])
"""Behind `a` these are no number."""
_UNIT_NAMES = {
    "seconds": 1,
    "secs": 1,
    "minutes": 60,
    "mins": 60,
    "hours": 3600,
    "days": 86_400,
    "weeks": 604_800,
}
"""The plurals, which name an amount; an `hour` may be nine o'clock."""
_TOKEN = re.compile(
    r"(?<![\d/])[13]/[24](?![\d/])|(?:(?<![\w.])-)?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:k\b)?|[^\W\d_]+"
)
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NEGATION = re.compile(r"\b(?:minus|negative|below)\b", re.IGNORECASE)


def unit_of(name: str) -> int | None:
    """Seconds of the unit of time in a parameter's name: 60 for `minutes` and `delayMinutes`; None without one."""
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    return next((_UNIT_NAMES[word] for word in words if word in _UNIT_NAMES), None)


def quantities(texts: Sequence[str], *, unit: int | None = None) -> list[int | float]:
    """The numbers that `texts` may mean, in ascending order; whole ones as int, others to four decimals.

    With a `unit` in seconds, a time span means its length in this unit alone: `2 hours` are 120 minutes.
    """
    found: set[float] = set()
    for text in texts:
        numbers = set(_Reader(text, unit))
        found |= numbers
        if _NEGATION.search(text):
            found |= {-number for number in numbers}
    found |= {-number for number in found if number < 0}
    rounded = {round(number, 4) for number in found}
    return [int(number) if number.is_integer() else number for number in sorted(rounded)]


class _Reader:
    """Reads the numbers of one text from left to right, each as long as it goes."""

    def __init__(self, text: str, unit: int | None = None) -> None:
        self._unit_wanted = unit
        self._tokens = [token.lower() for token in _TOKEN.findall(text)]
        self._at = 0

    def __iter__(self) -> Iterator[float]:
        while self._at < len(self._tokens):
            part = _PARTS.get(self._tokens[self._at])
            value = self._number()
            if value is None:
                self._at += 1
                continue
            spans = list(self._spans(value))
            seconds = sum(span for _, span in spans)
            if spans and self._unit_wanted:
                yield from (span / self._unit_wanted for _, span in spans)
                yield seconds / self._unit_wanted
                continue
            yield value
            if part is not None:
                yield 100 * part
            yield from (number for number, _ in spans)
            if seconds:
                yield from (seconds / span for span in _SPANS)

    def _is(self, *words: str) -> bool:
        return tuple(self._tokens[self._at : self._at + len(words)]) == words

    def _take(self, words: dict[str, float]) -> float | None:
        """The value of the next token, if it is among `words`."""
        value = words.get(self._tokens[self._at]) if self._at < len(self._tokens) else None
        if value is not None:
            self._at += 1
        return value

    def _number(self) -> float | None:
        """The number that begins here; what follows it is next."""
        value = self._simple()
        if value is None:
            return self._take(_SCALES)
        while (scale := self._take(_SCALES)) is not None:
            value *= scale
            here = self._at
            if self._is("and"):
                self._at += 1
            rest = self._number()
            if rest is None or not 0 < rest < scale or not rest.is_integer():
                self._at = here
            else:
                value += rest
        return value + self._and_part()

    def _simple(self) -> float | None:
        """A number without hundreds and thousands."""
        if self._at == len(self._tokens):
            return None
        token = self._tokens[self._at]
        if token in _FRACTIONS:
            self._at += 1
            return _FRACTIONS[token]
        if token[0] in "-0123456789":
            self._at += 1
            number = float(token.removesuffix("k").replace(",", ""))
            return 1000 * number if token.endswith("k") else number
        if token in _ONE:
            self._at += 1
            if self._next_is(_VAGUE):
                return None
            following = self._simple() if self._next_is(_PARTS) else None
            return 1.0 if following is None else following
        tens = self._take(_TENS)
        if tens is not None:
            here = self._at
            ones = None if self._is("second") else self._take(_UNITS)
            if ones is not None and 0 < ones < 10:
                return tens + ones
            self._at = here
            return tens
        if self._next_is(_PARTS) and (token != "third" or self._is("third", "of")):
            self._at += 1
            return _PARTS[token] * self._of_one()
        value = self._take(_UNITS)
        if value is not None:
            part = self._take(_PARTS) if self._next_is({"quarters", "thirds"}) else None
            value *= (1.0 if part is None else part) * self._of_one(part is not None)
        return value

    def _next_is(self, words: Collection[str]) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at] in words

    def _of_one(self, skips: bool = True) -> float:
        """`of an` between a part or a couple and its unit says nothing more."""
        here = self._at
        if self._is("of"):
            self._at += 1
        if skips and self._next_is(set(_ONE)):
            self._at += 1
        if not self._next_is(set(_SECONDS) | {f"{unit}s" for unit in _SECONDS}):
            self._at = here
        return 1.0

    def _and_part(self) -> float:
        for word in ("a", "one"):
            if self._is("and", word) and self._tokens[self._at + 2 : self._at + 3]:
                part = _PARTS.get(self._tokens[self._at + 2])
                if part is not None:
                    self._at += 3
                    return part
        return 0.0

    def _spans(self, value: float) -> Iterator[tuple[float, float]]:
        """(number, seconds) while units of time follow: of `2 hours`, `an hour and a half`, `1 hour 30 min`."""
        while unit := self._unit():
            value += self._and_part()
            yield value, value * unit
            here = self._at
            if self._is("and"):
                self._at += 1
            following = self._number()
            if following is None or not self._is_unit():
                self._at = here
                return
            value = following

    def _is_unit(self) -> bool:
        here = self._at
        found = bool(self._unit())
        self._at = here
        return found

    def _unit(self) -> float:
        if self._at == len(self._tokens):
            return 0.0
        word = self._tokens[self._at]
        unit = _SECONDS.get(word) or _SECONDS.get(word.removesuffix("s"), 0)
        self._at += bool(unit)
        return float(unit)
