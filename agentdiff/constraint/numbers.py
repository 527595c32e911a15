"""JSON numbers between bounds, in one short form.

At most 15 digits in all, no leading zeros, no negative zero; an exponent of at most two digits only
where nothing bounds the number. Two different decimals of
at most 15 digits are two different doubles, and rounding keeps their order: so what is compared
here as decimals holds for every reader that parses into doubles, strict bounds included.

Bounds are met digit by digit: a number is *tight* as long as its digits are those of a bound, and
free after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor

from agentdiff.constraint.automaton import NOWHERE, Node, byte_range, choice, literal
from agentdiff.constraint.multiples import Multiples

DIGITS = 15
"""Digits of a number, before and behind the point together."""
_LIMIT = Decimal(10) ** DIGITS


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range."""

    value: Decimal
    is_open: bool = False
    """Whether the value itself is left out."""


def number(
    lowest: Bound | None,
    highest: Bound | None,
    *,
    whole: bool,
    after: Node,
    multiple_of: Decimal | None = None,
) -> Node:
    """Return a node that takes a number, then goes on; NOWHERE when there is none.

    Args:
        lowest: None for no lower bound.
        highest: None for no upper bound.
        whole: Whether only integers are taken; otherwise a point and digits may follow.
        after: What follows.
        multiple_of: What divides the number, above 0; None for anything. A multiple has no more
            digits behind the point than this has.
    """
    if after.is_dead:
        return NOWHERE
    if multiple_of is not None:
        return _multiple(lowest, highest, multiple_of, whole=whole, after=after)
    zero, limit = Bound(Decimal(0)), Bound(_LIMIT, is_open=True)
    ways: list[Node] = []
    if highest is None or highest.value >= 0:
        low = zero if lowest is None or lowest.value < 0 else lowest
        ways.append(_Magnitudes(low, highest or limit, whole, after).start())
    if lowest is None or lowest.value < 0:
        # -x for x in [-highest, -lowest]; zero is left out, since `-0` is not written.
        low = Bound(Decimal(0), is_open=True)
        if highest is not None and highest.value < 0:
            low = Bound(highest.value.copy_negate(), highest.is_open)
        high = limit if lowest is None else Bound(lowest.value.copy_negate(), lowest.is_open)
        ways.append(literal(b"-", _Magnitudes(low, high, whole, after).start()))
    if lowest is None and highest is None and not whole:
        magnitude = _scientific(after)
        ways += [magnitude, literal(b"-", magnitude)]
    return choice(ways)


def _scientific(after: Node) -> Node:
    """A positive number with an exponent: `1.256e-06`, `5e+20`."""
    last = byte_range(0x30, 0x39, after)
    exponent = choice([last, byte_range(0x30, 0x39, last)])
    marked = literal(b"e", choice([exponent, literal(b"+", exponent), literal(b"-", exponent)]))
    digits = NOWHERE
    for _ in range(DIGITS - 1):
        digits = byte_range(0x30, 0x39, choice([marked, digits]))
    return byte_range(0x31, 0x39, choice([marked, literal(b".", digits)]))


def _multiple(
    lowest: Bound | None, highest: Bound | None, step: Decimal, *, whole: bool, after: Node
) -> Node:
    step = step.normalize()
    places = max(0, -int(step.as_tuple().exponent))
    scaled = int(step.scaleb(places))
    if whole:  # the multiples that are integers
        scaled, places = Fraction(step).numerator, 0
    scale = Decimal(10) ** places
    limit = 10**DIGITS - 1
    # In steps of 10^-places, inward: from low to high, both closed.
    low = -limit if lowest is None else _inward(lowest, scale, 1, limit)
    high = limit if highest is None else _inward(highest, scale, -1, limit)

    def magnitudes(low: int, high: int) -> Node:
        multiples = Multiples(low, high, scaled, places=places, digits=DIGITS, after=after)
        return multiples.start() if low <= high else NOWHERE

    return choice(
        [
            magnitudes(max(low, 0), high),
            literal(b"-", magnitudes(max(-high, 1), -low)),
        ]
    )


def _inward(bound: Bound, scale: Decimal, sign: int, limit: int) -> int:
    """A bound in steps of 1 / scale, pulled in to a whole one; no further out than the limit."""
    exact = Fraction(bound.value) * Fraction(scale)
    whole = ceil(exact) if sign > 0 else floor(exact)
    if bound.is_open and whole == exact:
        whole += sign
    return max(whole, -limit) if sign > 0 else min(whole, limit)


class _Magnitudes:
    """Unsigned numbers in [low, high], 0 <= low."""

    def __init__(self, low: Bound, high: Bound, whole: bool, after: Node) -> None:
        if high.value >= _LIMIT:
            high = Bound(_LIMIT, is_open=True)
        self._low, self._high, self._after = low, high, after
        self._whole = whole
        self._low_digits, self._low_fraction = _split(low.value)
        self._high_digits, self._high_fraction = _split(high.value)
        self._known: dict[object, Node] = {}

    def start(self) -> Node:
        """The node before the first digit."""
        low, high = self._low, self._high
        if low.value > high.value or (low.value == high.value and (low.is_open or high.is_open)):
            return NOWHERE
        if low.value >= _LIMIT:
            return NOWHERE
        shortest, longest = len(self._low_digits), len(self._high_digits)
        # A closed bound of zero binds nothing, nor does the limit of 15 digits.
        low_binds = low.value > 0 or low.is_open
        high_binds = high.value < _LIMIT
        first_free = shortest + 1 if low_binds else shortest
        last_free = longest - 1 if high_binds else DIGITS
        ways: list[Node] = []
        if low_binds and high_binds and shortest == longest:
            ways.append(self._whole_part(shortest, 0, True, True))
        else:
            if low_binds:
                ways.append(self._whole_part(shortest, 0, True, False))
            if first_free <= last_free:
                if first_free == 1:
                    ways.append(byte_range(0x30, 0x30, self._free_end(1)))
                ways.append(_digit(1, 9, self._free_whole(1, first_free, last_free)))
            if high_binds and (longest > shortest or not low_binds):
                ways.append(self._whole_part(longest, 0, False, True))
        return choice(ways)

    def _once(self, key: object, build: Callable[[], Node]) -> Node:
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = build()
        return node

    # Free nodes know their distance without looking ahead, so they are filled when they are
    # reached.

    def _free_whole(self, count: int, fewest: int, most: int) -> Node:
        """After `count` digits of a whole part of fewest..most digits that no bound touches."""

        def fill(node: Node) -> None:
            if count >= fewest:
                node.skips.append(self._free_end(count))
            if count < most:
                node.arcs.append((0x30, 0x39, self._free_whole(count + 1, fewest, most)))

        near = max(0, fewest - count) + self._after.near
        return self._once(("whole", count, fewest, most), lambda: Node(near, fill))

    def _free_end(self, digits: int) -> Node:
        """After a whole part of so many digits: the end, or a point and a fraction."""
        if self._whole or digits >= DIGITS:
            return self._after

        def fill(node: Node) -> None:
            node.skips.append(self._after)
            node.arcs.append((0x2E, 0x2E, _digit(0, 9, self._free_fraction(digits + 1))))

        return self._once(("end", digits), lambda: Node(self._after.near, fill))

    def _free_fraction(self, digits: int) -> Node:
        """In a fraction that no bound touches, after so many digits in all."""

        def fill(node: Node) -> None:
            node.skips.append(self._after)
            if digits < DIGITS:
                node.arcs.append((0x30, 0x39, self._free_fraction(digits + 1)))

        return self._once(("fraction", digits), lambda: Node(self._after.near, fill))

    def _all_zeros(self, digits: int) -> Node:
        """In a fraction that has reached its upper bound: zeros, after so many digits."""

        def fill(node: Node) -> None:
            node.skips.append(self._after)
            if digits < DIGITS:
                node.arcs.append((0x30, 0x30, self._all_zeros(digits + 1)))

        return self._once(("zeros", digits), lambda: Node(self._after.near, fill))

    def _not_all_zeros(self, digits: int) -> Node:
        """In a fraction that has met its open lower bound: zeros, but not to the end."""
        if digits >= DIGITS:
            return NOWHERE

        def fill(node: Node) -> None:
            node.arcs.append((0x31, 0x39, self._free_fraction(digits + 1)))
            further = self._not_all_zeros(digits + 1)
            if not further.is_dead:
                node.arcs.append((0x30, 0x30, further))

        return self._once(("not zeros", digits), lambda: Node(1 + self._after.near, fill))

    def _whole_part(self, length: int, index: int, at_low: bool, at_high: bool) -> Node:
        """Before digit `index` of a whole part of `length` digits; tight at a bound or at both."""
        if not at_low and not at_high:
            return self._free_whole(index, length, length)

        def build() -> Node:
            if index == length:
                return self._point(length, at_low, at_high)
            low = int(self._low_digits[index]) if at_low else int(index == 0 and length > 1)
            high = int(self._high_digits[index]) if at_high else 9
            return self._digits(
                low, high, at_low, at_high, lambda a, b: self._whole_part(length, index + 1, a, b)
            )

        return self._once(("tight", length, index, at_low, at_high), build)

    def _digits(
        self,
        low: int,
        high: int,
        at_low: bool,
        at_high: bool,
        following: Callable[[bool, bool], Node],
    ) -> Node:
        """One digit in low..high; it stays tight only where it equals the bound's own."""
        if low > high:
            return NOWHERE
        if low == high:
            return _digit(low, low, following(at_low, at_high))
        ways: list[Node] = []
        if at_low:
            ways.append(_digit(low, low, following(True, False)))
            low += 1
        if at_high:
            ways.append(_digit(high, high, following(False, True)))
            high -= 1
        if low <= high:
            ways.append(_digit(low, high, following(False, False)))
        return choice(ways)

    def _point(self, length: int, at_low: bool, at_high: bool) -> Node:
        """Behind a tight whole part."""
        ways = [self._after] if self._holds(0, at_low, at_high) else []
        if not self._whole and length < DIGITS:
            ways.append(literal(b".", self._fraction(length, 0, at_low, at_high)))
        return choice(ways)

    def _fraction(self, length: int, index: int, at_low: bool, at_high: bool) -> Node:
        """Before fraction digit `index`, behind `length` whole digits; tight at a bound."""
        digits = length + index
        if index:  # where the digits of a bound are used up, the rest is simple
            if not at_low and not at_high:
                return self._free_fraction(digits)
            if not at_high and index >= len(self._low_fraction):
                return (
                    self._not_all_zeros(digits)
                    if self._low.is_open
                    else self._free_fraction(digits)
                )
            if not at_low and index >= len(self._high_fraction):
                return NOWHERE if self._high.is_open else self._all_zeros(digits)

        def build() -> Node:
            ways = [self._after] if index and self._holds(index, at_low, at_high) else []
            if digits < DIGITS:
                low = int(_at(self._low_fraction, index)) if at_low else 0
                high = int(_at(self._high_fraction, index)) if at_high else 9
                ways.append(
                    self._digits(
                        low,
                        high,
                        at_low,
                        at_high,
                        lambda a, b: self._fraction(length, index + 1, a, b),
                    )
                )
            return choice(ways)

        return self._once(("point", length, index, at_low, at_high), build)

    def _holds(self, index: int, at_low: bool, at_high: bool) -> bool:
        """Whether a number may end after `index` fraction digits that equal a bound's."""
        if at_low:
            is_equal = not self._low_fraction[index:].strip("0")
            if not is_equal or self._low.is_open:
                return False
        if at_high:
            is_equal = not self._high_fraction[index:].strip("0")
            if is_equal and self._high.is_open:
                return False
        return True


def _digit(low: int, high: int, after: Node) -> Node:
    return NOWHERE if after.is_dead else byte_range(0x30 + low, 0x30 + high, after)


def _at(digits: str, index: int) -> str:
    return digits[index] if index < len(digits) else "0"


def _split(value: Decimal) -> tuple[str, str]:
    """(whole digits, fraction digits) of a value >= 0; a negative zero loses its sign."""
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def integer_bounds(
    lowest: Bound | None, highest: Bound | None
) -> tuple[Bound | None, Bound | None]:
    """Return the bounds pulled in to whole numbers."""
    if lowest is not None:
        value = lowest.value.to_integral_value(rounding="ROUND_CEILING")
        lowest = Bound(value + 1 if lowest.is_open and value == lowest.value else value)
    if highest is not None:
        value = highest.value.to_integral_value(rounding="ROUND_FLOOR")
        highest = Bound(value - 1 if highest.is_open and value == highest.value else value)
    return lowest, highest
