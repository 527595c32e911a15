"""Arithmetic as people type it: `17% of 2340`, `12 x 8`, `half of 90`, `the square root of 144`.

1. `_plain` rewrites signs and phrases into a small language: `the square root of 9 times 2` is `sqrt 9 * 2`.
2. `_tokens` cuts it into numbers (spelled ones too), portions (`half`, `two thirds`), names and signs.
3. `_Reader` is a recursive-descent reader that computes as it goes, in exact fractions.

Nothing is ever evaluated as code, and every value is bounded, so no text can hang it. Percentages mean what they mean on
a till: `100 - 15%` is 85. Angles are in degrees unless pi or radians are mentioned.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NoReturn

from agentdiff.embedded.tools.numerals import (
    ORDINALS,
    PORTIONS,
    SCALES,
    SMALL,
    TENS,
    is_numeral,
    read_spelled,
    write_number,
)
from agentdiff.errors import ToolFailed

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARS = 300
MAX_DEPTH = 40
MAX_BITS = 4000
"""Numerators and denominators stay below this: about 1200 digits."""


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: For example `17% of 2340`, `12 * (3 + 4)` or `square root of 144`.
    """
    said = re.sub(r"\s*=[\s?]*$", "", expression.strip().strip("\"'“”`").strip()).rstrip("?!.;, ")
    if len(said) > MAX_CHARS:
        raise ToolFailed(f"the expression has {len(said)} characters; {MAX_CHARS} is the most")
    reader = _Reader(said)
    value = reader.read()
    note = " (angles in degrees)" if reader.used_degrees else ""
    return f"{said} = {write_number(value, digits=10)}{note}"


# --- from what people type to a small language ------------------------------------------------------------------------

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("×·∙⋅✕✖", "*"),
        **dict.fromkeys("÷∕", "/"),
        **dict.fromkeys("−–—", "-"),
        **dict.fromkeys("[{", "("),
        **dict.fromkeys("]}", ")"),
        **dict.fromkeys("$€£¥", None),
        **{"½": "(1/2)", "¼": "(1/4)", "¾": "(3/4)", "⅓": "(1/3)", "⅔": "(2/3)", "⅛": "(1/8)"},
        **{"√": " sqrt ", "∛": " cbrt ", "π": " pi ", "’": "'", "\u00a0": " ", "°": " degrees "},
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_ORDINAL = "|".join(sorted(ORDINALS, key=len, reverse=True))
_PHRASES: tuple[tuple[str, str], ...] = (
    (r"^(?:please )?(?:what is|what's|whats|how much is|calculate|compute|evaluate|solve|work out)\b", " "),
    (r"\*\*", "^"),
    (rf"\b({'|'.join(TENS)})-({'|'.join(list(SMALL)[1:10])})\b", r"\1 \2"),
    (rf"\b(?:raised )?to the ({_ORDINAL})(?: power)?\b", lambda m: f" ^ {ORDINALS[m[1]]} "),  # type: ignore[dict-item]
    (r"\b(?:raised )?to the (?:power (?:of )?)?(?=[\d.(-]|[a-z])", " ^ "),
    (r"(?<=\d)(?:st|nd|rd|th)\b(?: power\b)?", " "),
    (r"\bremainder (?:of|when) (.+?) (?:is )?divided by (.+)", r"(\1) mod (\2)"),
    (r"\b(?:multiplied by|times)\b", " * "),
    (r"\b(?:divided by|over)\b", " / "),
    (r"\b(?:plus|increased by|added to)\b", " + "),
    (r"\b(?:minus|less|decreased by|reduced by|take away|negative)\b", " - "),
    (r"\bmodulo\b", " mod "),
    (r"\b(?:percent|per cent|pct)\b", " % "),
    (r"\bsquared\b", " ^ 2 "),
    (r"\bcubed\b", " ^ 3 "),
    (r"\b(?:square root|sqrt) of\b|\bsquare root\b", " sqrt "),
    (r"\b(?:cube root|cbrt) of\b|\bcube root\b", " cbrt "),
    (r"\b(square|cube|factorial|log|logarithm|absolute value|sine|cosine|tangent) of\b", r" \1 "),
    (r"\bdegrees?\b", " "),
)


def _plain(text: str) -> str:
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: f"^{m[0].translate(_SUPERSCRIPTS)} ", text)
    text = re.sub(r"\s+", " ", text.translate(_SIGNS).lower()).strip()
    for pattern, replacement in _PHRASES:
        text = re.sub(pattern, replacement, text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    kind: Literal["number", "portion", "name", "sign"]
    text: str
    value: Fraction = Fraction(0)


_LEXEME = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+(?![a-z]))?)"
    r"|(?P<word>log10|log2|[a-z]+)|(?P<sign>[-+*/^()%!,]))"
)
_SIGN_WORDS = {"x": "*", "mod": "mod", "of": "of", "on": "of", "off": "off", "and": "and"} | {
    word: word for word in ("by", "from", "to", "with", "between")
}


def _tokens(text: str) -> list[_Token]:
    pieces: list[str] = []
    at = 0
    while text[at:].strip():
        found = _LEXEME.match(text, at)
        if found is None:
            _unreadable(text[at:].strip()[:20])
        pieces.append(found[0].strip())
        at = found.end()
    pieces = [piece for piece in pieces if piece not in ("a", "an", "the")]
    tokens: list[_Token] = []
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        spelled = read_spelled(pieces[at:]) if is_numeral(piece) else None
        if piece[0].isdigit() or piece[0] == ".":
            value, taken = _digits(piece), 1
            while pieces[at + taken : at + taken + 1] and pieces[at + taken] in SCALES:
                value, taken = value * SCALES[pieces[at + taken]], taken + 1
        elif spelled is not None:
            value, taken = spelled
        elif piece in PORTIONS:
            tokens.append(_Token(kind="portion", text=piece, value=PORTIONS[piece]))
            at += 1
            continue
        else:
            sign = _SIGN_WORDS.get(piece, piece)
            tokens.append(_Token(kind="name" if sign.isalpha() and piece not in _SIGN_WORDS or piece.startswith("log") else "sign", text=sign))
            at += 1
            continue
        at += taken
        kind = "number"
        if pieces[at : at + 1] and pieces[at] in PORTIONS:
            value, at, kind = value * PORTIONS[pieces[at]], at + 1, "portion"
        elif pieces[at : at + 1] == ["and"] and pieces[at + 1 : at + 2] and pieces[at + 1] in PORTIONS:
            value, at = value + PORTIONS[pieces[at + 1]], at + 2
        tokens.append(_Token(kind=kind, text=piece, value=value))
    return tokens


def _digits(text: str) -> Fraction:
    mantissa, _, exponent = text.replace(",", "").partition("e")
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > 400):
        raise ToolFailed(f"{text} is too large or too small to compute with")
    return Fraction(mantissa.rstrip(".") or "0") * Fraction(10) ** int(exponent or 0)


def _unreadable(what: str) -> NoReturn:
    raise ToolFailed(
        f"cannot read {what!r} as arithmetic; "
        "write it like `17% of 2340`, `12 * (3 + 4)` or `square root of 144`"
    )


# --- reading and computing --------------------------------------------------------------------------------------------


class _Reader:
    """Reads one expression. `%` after a value is a percentage, between two values it is the remainder."""

    def __init__(self, said: str) -> None:
        self.said = said
        plain = _plain(said)
        self.tokens = _tokens(plain)
        self.at = 0
        self.depth = 0
        self.in_radians = re.search(r"\bpi\b|\bradians?\b", plain) is not None
        self.used_degrees = False

    def read(self) -> Fraction:
        try:
            value, _ = self.total()
        except ZeroDivisionError:
            raise ToolFailed(f"{self.said} divides by zero") from None
        except OverflowError:
            raise ToolFailed(f"the result of {self.said} is too large") from None
        if self.at < len(self.tokens):
            self.stuck()
        return value

    def stuck(self) -> NoReturn:
        rest = self.tokens[self.at].text if self.at < len(self.tokens) else ""
        if self.tokens and rest:
            raise ToolFailed(
                f"cannot read {self.said!r} as arithmetic (stopped at {rest!r}); "
                "write it like `17% of 2340` or `12 * (3 + 4)`"
            )
        _unreadable(self.said)

    def next_is(self, *signs: str) -> bool:
        return (
            self.at < len(self.tokens)
            and self.tokens[self.at].kind == "sign"
            and self.tokens[self.at].text in signs
        )

    def take(self, *signs: str) -> bool:
        if self.next_is(*signs):
            self.at += 1
            return True
        return False

    def operand_follows(self, ahead: int = 0) -> bool:
        if self.at + ahead >= len(self.tokens):
            return False
        token = self.tokens[self.at + ahead]
        return token.kind != "sign" or token.text == "("

    def total(self) -> tuple[Fraction, bool]:
        """(a sum, whether it is a bare percentage)."""
        left, is_percent = self.term()
        while self.next_is("+", "-"):
            sign = 1 if self.tokens[self.at].text == "+" else -1
            self.at += 1
            right, right_is_percent = self.term()
            if right_is_percent and not is_percent:
                left = _bounded(left * (1 + sign * right))
            else:
                left = _bounded(left + sign * right)
                is_percent = is_percent and right_is_percent
        return left, is_percent

    def term(self) -> tuple[Fraction, bool]:
        left, is_percent = self.signed()
        while self.at < len(self.tokens):
            if self.take("*", "of"):
                left = left * self.signed()[0]
            elif self.take("/"):
                left = left / self.signed()[0]
            elif self.take("mod", "%"):
                left = left % self.signed()[0]
            elif self.operand_follows() and self.tokens[self.at].kind != "number":
                left = left * self.signed()[0]  # 2 pi, 3(4 + 5)
            else:
                break
            left, is_percent = _bounded(left), False
        return left, is_percent

    def signed(self) -> tuple[Fraction, bool]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ToolFailed(f"{self.said[:40]}… is nested too deeply")
        sign = 1
        while self.next_is("-", "+"):
            sign = -sign if self.tokens[self.at].text == "-" else sign
            self.at += 1
        value, is_percent = self.power()
        self.depth -= 1
        return sign * value, is_percent

    def power(self) -> tuple[Fraction, bool]:
        base, is_percent = self.finished()
        if self.take("^"):
            return _power(base, self.signed()[0]), False
        return base, is_percent

    def finished(self) -> tuple[Fraction, bool]:
        """A value with what stands behind it: `!`, `%`, `% of` and `% off`."""
        value = self.value()
        is_percent = False
        while self.at < len(self.tokens):
            if self.take("!") or self.take_name("factorial"):
                value = _factorial(value)
            elif self.next_is("%") and not self.operand_follows(1):
                self.at += 1
                value, is_percent = value / 100, True
                if self.take("of"):
                    return _bounded(value * self.signed()[0]), False
                if self.take("off"):
                    return _bounded((1 - value) * self.signed()[0]), False
            else:
                break
        return value, is_percent

    def take_name(self, name: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at].text == name:
            self.at += 1
            return True
        return False

    def value(self) -> Fraction:
        if self.at >= len(self.tokens):
            self.stuck()
        token = self.tokens[self.at]
        self.at += 1
        if token.kind == "number":
            return token.value
        if token.kind == "portion":
            if self.take("of") or self.operand_follows():
                return _bounded(token.value * self.signed()[0])
            return token.value
        if token.text == "(":
            inside = self.total()[0]
            if not self.take(")"):
                self.stuck()
            return inside
        if token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        if token.text in _AGGREGATES:
            return _bounded(_AGGREGATES[token.text](self.listed()))
        if token.text in _ANGLES:
            angle = self.argument()
            self.used_degrees = not self.in_radians
            return _ANGLES[token.text](float(angle) if self.in_radians else math.radians(angle))
        if token.text in _FUNCTIONS:
            try:
                return _bounded(_FUNCTIONS[token.text](self.argument()))
            except ValueError:
                raise ToolFailed(f"{token.text} has no real value there, in {self.said}") from None
        self.at -= 1
        self.stuck()

    def argument(self) -> Fraction:
        """`sqrt(16)*5` takes the parenthesis alone, `sqrt 3^2` the whole power."""
        if self.next_is("("):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ToolFailed(f"{self.said[:40]}… is nested too deeply")
            value = self.value()
            self.depth -= 1
            return value
        return self.signed()[0]

    def listed(self) -> list[Fraction]:
        """`of 5, 8 and 13`, `(3, 7)`, `9 by 12`."""
        self.take("of", "between")
        start = self.at
        if self.take("("):
            values = self.items()
            if len(values) > 1 and self.take(")"):
                return values
            self.at = start
        return self.items()

    def items(self) -> list[Fraction]:
        values = [self.term()[0]]
        while self.take("and", ",", "by", "from", "to", "with"):
            self.take("and")
            values.append(self.term()[0])
        return values


def _bounded(value: Fraction) -> Fraction:
    """`value`, to double precision where its exact form has grown too long."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS:
        return value
    return Fraction(value.numerator / value.denominator)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator == 1 and abs(exponent.numerator) * bits <= MAX_BITS:
        return base**exponent.numerator
    if base in (0, 1):
        return base if exponent > 0 else 1 / base
    if base < 0 and exponent.denominator != 1:
        raise ToolFailed("a negative number to a fractional power is not a real number")
    return Fraction(float(base) ** float(exponent))


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or not 0 <= value <= 400:
        raise ToolFailed("a factorial is computed for whole numbers from 0 to 400")
    return Fraction(math.factorial(value.numerator))


def _sqrt(value: Fraction) -> Fraction:
    if value < 0:
        raise ValueError
    above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if above**2 == value.numerator and below**2 == value.denominator:
        return Fraction(above, below)
    return Fraction(math.isqrt(value.numerator * value.denominator * 10**60), value.denominator * 10**30)


def _cbrt(value: Fraction) -> Fraction:
    near = Fraction(math.cbrt(value))
    whole = Fraction(round(near))
    return whole if whole**3 == value else near


def _real(compute: Callable[[float], float]) -> Callable[[Fraction], Fraction]:
    return lambda value: Fraction(compute(float(value)))


def _angle(compute: Callable[[float], float]) -> Callable[[float], Fraction]:
    return lambda radians: Fraction(str(round(compute(radians), 14)))  # sin 180° is 0, not 1e-16


def _tan(radians: float) -> Fraction:
    return _angle(math.sin)(radians) / _angle(math.cos)(radians)


def _product(values: list[Fraction]) -> Fraction:
    result = Fraction(1)
    for value in values:
        result = _bounded(result * value)
    return result


def _pair(compute: Callable[[Fraction, Fraction], Fraction]) -> Callable[[list[Fraction]], Fraction]:
    def computed(values: list[Fraction]) -> Fraction:
        if len(values) != 2:
            raise ToolFailed(f"a difference or a quotient takes two numbers, got {len(values)}")
        return compute(values[0], values[1])

    return computed


def _mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def _sum(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0))


_CONSTANTS = {"pi": Fraction(math.pi), "e": Fraction(math.e), "tau": Fraction(math.tau)}
_FUNCTIONS: dict[str, Callable[[Fraction], Fraction]] = {
    "sqrt": _sqrt,
    "root": _sqrt,
    "cbrt": _cbrt,
    "square": lambda value: value**2,
    "cube": lambda value: value**3,
    "double": lambda value: value * 2,
    "twice": lambda value: value * 2,
    "triple": lambda value: value * 3,
    "quadruple": lambda value: value * 4,
    "factorial": _factorial,
    "abs": abs,
    "log": _real(math.log10),
    "logarithm": _real(math.log10),
    "log10": _real(math.log10),
    "log2": _real(math.log2),
    "ln": _real(math.log),
    "exp": _real(math.exp),
    "round": lambda value: Fraction(math.floor(value + Fraction(1, 2))),
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
}
_ANGLES: dict[str, Callable[[float], Fraction]] = {
    "sin": _angle(math.sin),
    "cos": _angle(math.cos),
    "tan": _tan,
    "sine": _angle(math.sin),
    "cosine": _angle(math.cos),
    "tangent": _tan,
}
_AGGREGATES: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "sum": _sum,
    "total": _sum,
    "add": _sum,
    "product": _product,
    "multiply": _product,
    "average": _mean,
    "mean": _mean,
    "max": max,
    "maximum": max,
    "min": min,
    "minimum": min,
    "difference": _pair(lambda first, second: abs(first - second)),
    "subtract": _pair(lambda first, second: second - first),
    "quotient": _pair(lambda first, second: first / second),
    "divide": _pair(lambda first, second: first / second),
}
