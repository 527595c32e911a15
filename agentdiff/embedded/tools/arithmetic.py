"""Arithmetic as people type it: `17% of 2340`, `12 x 8`, `half of 90`, `the square root of 144`.

`_Reader` is a recursive-descent reader over the tokens of `arithmetic_tokens` that computes as it
goes, in exact fractions. Nothing is ever evaluated as code, and every value is bounded, so no text
can hang it. Percentages mean what they mean on a till: `100 - 15%` is 85. Angles are in degrees
unless pi or radians are mentioned.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NoReturn

from agentdiff.embedded.tools.arithmetic_tokens import cut, plain
from agentdiff.embedded.tools.numerals import write_number
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
    said = re.sub(r"[\s=?.;,]+$", "", expression.strip().strip("\"'“”`").strip())
    if len(said) > MAX_CHARS:
        raise ToolFailed(f"the expression has {len(said)} characters; {MAX_CHARS} is the most")
    reader = _Reader(said)
    value = reader.read()
    note = " (angles in degrees)" if reader.used_degrees else ""
    return f"{said} = {write_number(value, digits=10)}{note}"


class _Reader:
    """Reads one expression. `%` is a percentage behind a value, the remainder between two."""

    def __init__(self, said: str) -> None:
        self.shown = said if len(said) <= 60 else f"{said[:60]}…"
        text = plain(said)
        self.tokens = cut(text)
        self.at = 0
        self.depth = 0
        self.in_radians = re.search(r"\bpi\b|\btau\b|\brad(ians?)?\b", text) is not None
        self.used_degrees = False

    def read(self) -> Fraction:
        try:
            value, _ = self.total()
        except ZeroDivisionError:
            raise ToolFailed(f"{self.shown} divides by zero") from None
        except OverflowError:
            raise ToolFailed(
                f"the result of {self.shown} is too large or too close to zero"
            ) from None
        if self.at < len(self.tokens):
            self.stuck()
        return value

    def stuck(self) -> NoReturn:
        where = f" (stopped at {self.tokens[self.at].text!r})" if self.at < len(self.tokens) else ""
        raise ToolFailed(
            f"cannot read {self.shown!r} as arithmetic{where}; "
            "write it like `17% of 2340`, `12 * (3 + 4)` or `square root of 144`"
        )

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ToolFailed(f"{self.shown} is nested too deeply")

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
        self.deeper()
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
            self.used_degrees |= not self.in_radians and angle != 0
            return _ANGLES[token.text](float(angle) if self.in_radians else math.radians(angle))
        if token.text in _FUNCTIONS:
            try:
                return _bounded(_FUNCTIONS[token.text](self.argument()))
            except ValueError:
                raise ToolFailed(f"{token.text} has no real value there, in {self.shown}") from None
        self.at -= 1
        self.stuck()

    def argument(self) -> Fraction:
        """`sqrt(16)*5` takes the parenthesis alone, `sqrt 3^2` the whole power."""
        if self.next_is("("):
            self.deeper()
            value = self.value()
            self.depth -= 1
            return value
        return self.signed()[0]

    def listed(self) -> list[Fraction]:
        """`of 5, 8 and 13`, `(3, 7)`, `9 by 12`."""
        self.take("of", "between")
        if not self.list_in_parentheses():
            return self.items()
        self.take("(")
        values = self.items()
        if not self.take(")"):
            self.stuck()
        return values

    def list_in_parentheses(self) -> bool:
        """Whether a parenthesis that holds several items comes next."""
        depth = 0
        for token in self.tokens[self.at :]:
            depth += (token.text == "(") - (token.text == ")")
            if depth < 1:
                return False
            if depth == 1 and token.kind == "sign" and token.text in ("and", ","):
                return True
        return False

    def items(self) -> list[Fraction]:
        values = [self.term()[0]]
        while self.take("and", ",", "by", "from", "to", "with"):
            self.take("and")
            values.append(self.term()[0])
        return values


def _bounded(value: Fraction) -> Fraction:
    """`value`, to double precision where its exact form has grown too long.

    Raises:
        OverflowError: It is outside the range of a double then.
    """
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS:
        return value
    near = Fraction(value.numerator / value.denominator)
    if near == 0:
        raise OverflowError
    return near


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
    return Fraction(
        math.isqrt(value.numerator * value.denominator * 10**60), value.denominator * 10**30
    )


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


def _pair(
    compute: Callable[[Fraction, Fraction], Fraction],
) -> Callable[[list[Fraction]], Fraction]:
    def computed(values: list[Fraction]) -> Fraction:
        if len(values) != 2:
            raise ToolFailed(f"a difference or a quotient takes two numbers, got {len(values)}")
        return compute(values[0], values[1])

    return computed


def _mean(values: list[Fraction]) -> Fraction:
    return _sum(values) / len(values)


def _sum(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0))


_CONSTANTS: Final = {"pi": Fraction(math.pi), "e": Fraction(math.e), "tau": Fraction(math.tau)}
_FUNCTIONS: Final[dict[str, Callable[[Fraction], Fraction]]] = {
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
_ANGLES: Final[dict[str, Callable[[float], Fraction]]] = {
    "sin": _angle(math.sin),
    "cos": _angle(math.cos),
    "tan": _tan,
    "sine": _angle(math.sin),
    "cosine": _angle(math.cos),
    "tangent": _tan,
}
_AGGREGATES: Final[dict[str, Callable[[list[Fraction]], Fraction]]] = {
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
