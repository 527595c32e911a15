"""Numbers as people write them (spelled out, ordinal, parts of one), and as results are written."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)

SMALL: Final[dict[str, int]] = {word: n for n, word in enumerate(_SMALL.split())}
TENS: Final[dict[str, int]] = {word: 20 + 10 * n for n, word in enumerate(_TENS.split())}
SCALES: Final[dict[str, int]] = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 1_000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
ORDINALS: Final[dict[str, int]] = (
    {word: n for n, word in enumerate(_ORDINALS.split(), start=1)}
    | {f"twenty-{word}": 20 + n for n, word in enumerate(_ORDINALS.split()[:9], start=1)}
    | {"thirtieth": 30, "thirty-first": 31}
)
PORTIONS: Final[dict[str, Fraction]] = {
    name: Fraction(1, n)
    for n, names in {
        2: "half halves",
        3: "third thirds",
        4: "quarter quarters fourth fourths",
        5: "fifth fifths",
        6: "sixth sixths",
        7: "seventh sevenths",
        8: "eighth eighths",
        9: "ninth ninths",
        10: "tenth tenths",
        12: "twelfth twelfths",
        100: "hundredth hundredths",
        1000: "thousandth thousandths",
    }.items()
    for name in names.split()
}

_FULL_DIGITS = 30
"""Whole numbers up to this many digits are written out; longer ones as 1.5e42."""


def is_numeral(word: str) -> bool:
    """Whether `word` can begin a number that is spelled out."""
    return word in SMALL or word in TENS or word in SCALES


def read_spelled(words: Sequence[str]) -> tuple[Fraction, int] | None:
    """The number that `words` begin with and how many it takes; None where they begin with none.

    `two hundred and five` is 205, `three point one four` 3.14, `hundred` 100.
    """
    total, current, at = 0, 0, 0
    after: Literal["start", "units", "tens", "scale"] = "start"
    while at < len(words):
        word = words[at]
        if word in SMALL and (
            after in ("start", "scale") or (after == "tens" and 0 < SMALL[word] < 10)
        ):
            current, after = current + SMALL[word], "units"
        elif word in TENS and after in ("start", "scale"):
            current, after = current + TENS[word], "tens"
        elif word in SCALES and SCALES[word] <= 100:
            current, after = max(current, 1) * SCALES[word], "scale"
        elif word in SCALES:
            total, current, after = total + max(current, 1) * SCALES[word], 0, "scale"
        elif not (word == "and" and after == "scale" and _continues(words[at + 1 :])):
            break
        at += 1
    if at == 0:
        return None
    decimals, taken = _read_decimals(words[at:])
    return total + current + decimals, at + taken


def _continues(words: Sequence[str]) -> bool:
    return bool(words) and (words[0] in SMALL or words[0] in TENS)


def _read_decimals(words: Sequence[str]) -> tuple[Fraction, int]:
    """`point one four` is 0.14."""
    digits = ""
    for word in words[1:] if words[:1] == ["point"] else ():
        if SMALL.get(word, 10) > 9:
            break
        digits += str(SMALL[word])
    if not digits:
        return Fraction(0), 0
    return Fraction(int(digits), 10 ** len(digits)), 1 + len(digits)


def write_number(value: Fraction, *, digits: int) -> str:
    """`value` with up to `digits` significant digits, whole parts in full, no trailing zeros.

    Two decimals are kept whatever the size: 1234567.891 with 7 digits is 1234567.89.
    """
    if value.denominator == 1 and abs(value.numerator) < 10**_FULL_DIGITS:
        return str(value.numerator)
    with localcontext() as context:
        context.prec = 60
        context.rounding = ROUND_HALF_UP
        number = Decimal(value.numerator) / Decimal(value.denominator)
        magnitude = number.adjusted()
        if not -7 < magnitude < _FULL_DIGITS:
            mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
            return f"{_trim(mantissa)}e{int(exponent)}"
        decimals = max(digits - 1 - magnitude, 2 if magnitude < 13 else 0)
        return _trim(f"{number:.{decimals}f}")


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
