"""Units as people spell them, and what they measure.

A spelling is looked up exactly first (`MB` is not `Mb`), then without its case, its plural `s` and
words like `degrees`. Squares, cubes and quotients are derived: `square feet`, `m²`, `cubic inches`,
`feet per second`. A spelling may mean several things (`oz` is a weight or a volume, `m` a length or
minutes); the other unit decides.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from typing import Final, Literal, get_args

from agentdiff.embedded.tools.numerals import write_number
from agentdiff.errors import ToolFailed

Dimension = Literal[
    "length",
    "mass",
    "volume",
    "temperature",
    "speed",
    "area",
    "time",
    "data size",
    "energy",
    "pressure",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one of it is: `(value + offset) * factor` of the SI unit (bytes for data)."""

    dimension: Dimension
    factor: Fraction
    offset: Fraction = Fraction(0)


def convert_units(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a value from one unit to another.

    Args:
        value: How many of `from_unit`.
        from_unit: For example `miles`, `°F`, `fl oz`, `km/h`.
        to_unit: A unit of the same dimension.
    """
    if not math.isfinite(value):
        raise ToolFailed(f"`value` must be a number, got {value}")
    source, target = _named(from_unit), _named(to_unit)
    old, new = _matching(source, from_unit, target, to_unit)
    amount = Fraction(repr(value))
    base = (amount + old.offset) * old.factor
    if old.dimension == "temperature" and base < 0:
        raise ToolFailed(f"{write_number(amount, digits=10)} {from_unit} is below absolute zero")
    result = base / new.factor - new.offset
    said = f"{write_number(amount, digits=10)} {_clean(from_unit)}"
    return f"{said} = {write_number(result, digits=7)} {_clean(to_unit)}"


def _matching(
    source: tuple[Unit, ...], from_unit: str, target: tuple[Unit, ...], to_unit: str
) -> tuple[Unit, Unit]:
    for old in source:
        for new in target:
            if old.dimension == new.dimension:
                return old, new
    old, new = source[0], target[0]
    raise ToolFailed(
        f"cannot convert {from_unit} ({old.dimension}) to {to_unit} ({new.dimension}); "
        f"{from_unit} converts to {_EXAMPLES[old.dimension]}"
    )


def _named(spelling: str) -> tuple[Unit, ...]:
    units = find_units(spelling)
    if units:
        return units
    near = get_close_matches(_clean(spelling).lower(), _lowered(), n=1, cutoff=0.75)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ToolFailed(
        f"{spelling!r} is not a unit that I know; {hint}I convert {', '.join(get_args(Dimension))}"
    )


# --- reading a spelling ---------------------------------------------------------------------------


def find_units(spelling: str) -> tuple[Unit, ...]:
    """What `spelling` may mean, the most usual first; empty where it means nothing known."""
    text = _clean(spelling)
    for form in (text, text.removesuffix("."), text.replace(".", "")):
        if form in _names():
            return _names()[form]
    text = text.lower().replace(".", "")
    text = re.sub(r"^(?:degrees?|deg|°)\s*", "", text)
    text = re.sub(r"\s+per\s+|\s*/\s*", "/", text)
    return _simple(text) or _power(text) or _quotient(text)


def _clean(spelling: str) -> str:
    text = unicodedata.normalize("NFKC", spelling.replace("º", "°")).replace("μ", "µ")
    text = re.sub(r"\s+", " ", text.strip("\"'“”`?!,; "))
    return re.sub(r"^(?:a|an|the|in|of) ", "", text)


def _simple(text: str) -> tuple[Unit, ...]:
    for form in (text, text.removesuffix("s"), text.removesuffix("es"), text.replace(" ", "")):
        if form in _lowered():
            return _lowered()[form]
    return ()


def _power(text: str) -> tuple[Unit, ...]:
    """`square feet`, `sq ft`, `m2`, `m^2`, `meters squared`; the same for cubes."""
    before = re.fullmatch(r"(square|sq|cubic|cu)\s*(.+)", text)
    behind = re.fullmatch(r"(.+?)\s*\^?(2|3|squared|cubed)", text)
    if before:
        is_square, rest = before[1].startswith("sq"), before[2]
    elif behind:
        is_square, rest = behind[2] in ("2", "squared"), behind[1]
    else:
        return ()
    exponent, dimension = (2, "area") if is_square else (3, "volume")
    return tuple(
        Unit(dimension=dimension, factor=unit.factor**exponent)
        for unit in _simple(rest)
        if unit.dimension == "length"
    )


def _quotient(text: str) -> tuple[Unit, ...]:
    above, slash, below = text.partition("/")
    if not slash:
        return ()
    return tuple(
        Unit(dimension="speed", factor=length.factor / time.factor)
        for length in _simple(above)
        for time in _simple(below)
        if (length.dimension, time.dimension) == ("length", "time")
    )


# --- the table ------------------------------------------------------------------------------------

_EXAMPLES: Final[dict[Dimension, str]] = {
    "length": "m, km, cm, inches, feet, yards, miles",
    "mass": "g, kg, tonnes, oz, lb, stone",
    "volume": "ml, liters, cups, tbsp, fl oz, gallons",
    "temperature": "celsius, fahrenheit, kelvin",
    "speed": "km/h, mph, m/s, knots",
    "area": "m², km², hectares, acres, square feet",
    "time": "seconds, minutes, hours, days, weeks, years",
    "data size": "bytes, KB, MB, GB, MiB, bits",
    "energy": "J, kJ, cal, kcal, Wh, kWh, BTU",
    "pressure": "Pa, hPa, kPa, bar, psi, atm, mmHg",
}

_TABLE: Final[tuple[tuple[Dimension, str, str], ...]] = (
    ("length", "1", "m meter metre"),
    ("length", "0.0254", "in inch inches ″"),
    ("length", "0.3048", "ft foot feet ′"),
    ("length", "0.9144", "yd yard"),
    ("length", "1609.344", "mi mile"),
    ("length", "1852", "nmi nautical_mile sea_mile"),
    ("length", "1.8288", "fathom"),
    ("length", "201.168", "furlong"),
    ("length", "149597870700", "au astronomical_unit"),
    ("length", "9460730472580800", "ly light_year light-year"),
    ("mass", "0.001", "g gr gram gramme"),
    ("mass", "1000", "t tonne metric_ton"),
    ("mass", "907.18474", "ton short_ton us_ton"),
    ("mass", "1016.0469088", "long_ton imperial_ton uk_ton"),
    ("mass", "0.45359237", "lb pound lbm"),
    ("mass", "0.028349523125", "oz ounce"),
    ("mass", "0.0311034768", "troy_ounce ozt"),
    ("mass", "6.35029318", "st stone"),
    ("mass", "0.0002", "ct carat"),
    ("volume", "0.001", "l liter litre ℓ"),
    ("volume", "0.000001", "cc ccm"),
    ("volume", "0.003785411784", "gal gallon us_gallon"),
    ("volume", "0.000946352946", "qt quart"),
    ("volume", "0.000473176473", "pt pint us_pint"),
    ("volume", "0.0002365882365", "cup c us_cup"),
    ("volume", "0.0000295735295625", "fl_oz floz fluid_ounce oz ounce us_fluid_ounce"),
    ("volume", "0.00001478676478125", "tbsp tbs tablespoon"),
    ("volume", "0.00000492892159375", "tsp teaspoon"),
    ("volume", "0.00454609", "uk_gallon imperial_gallon"),
    ("volume", "0.00056826125", "uk_pint imperial_pint"),
    ("volume", "0.0000284130625", "uk_fluid_ounce imperial_fluid_ounce uk_fl_oz"),
    ("volume", "0.158987294928", "bbl barrel oil_barrel"),
    ("speed", "1397/3125", "mph"),
    ("speed", "5/18", "kmh kph kmph"),
    ("speed", "463/900", "kn kt knot"),
    ("speed", "0.3048", "fps"),
    ("area", "4046.8564224", "ac acre"),
    ("area", "10000", "ha hectare"),
    ("area", "100", "are"),
    ("time", "1", "s sec second"),
    ("time", "60", "min minute m"),
    ("time", "3600", "h hr hour"),
    ("time", "86400", "d day"),
    ("time", "604800", "wk w week"),
    ("time", "1209600", "fortnight"),
    ("time", "2629746", "mo month"),
    ("time", "31556952", "y yr year"),
    ("time", "315569520", "decade"),
    ("time", "3155695200", "century centuries"),
    ("data size", "1", "B byte octet"),
    ("data size", "1/8", "b bit"),
    ("energy", "1", "J joule"),
    ("energy", "4.184", "cal calorie"),
    ("energy", "4184", "Cal food_calorie"),
    ("energy", "3600", "Wh watt_hour watt-hour watthour"),
    ("energy", "1055.05585262", "btu british_thermal_unit"),
    ("energy", "0.0000000000000000001602176634", "eV electronvolt electron_volt"),
    ("energy", "1.3558179483314004", "ft-lb foot-pound foot_pound"),
    ("pressure", "1", "Pa pascal"),
    ("pressure", "100000", "bar"),
    ("pressure", "101325", "atm atmosphere"),
    ("pressure", "6894.757293168", "psi pounds_per_square_inch pounds/square_inch"),
    ("pressure", "133.322387415", "mmHg millimeters_of_mercury"),
    ("pressure", "101325/760", "torr"),
    ("pressure", "3386.389", "inHg inches_of_mercury"),
)
"""(dimension, how many of the SI unit, its names: the first is short, `_` is a space).

A month is a twelfth of a year, a year 365.2425 days; cups, pints and gallons are those of the US,
a ton is 2000 lb, a calorie is 4.184 J.
"""

_SCALES: Final[dict[str, tuple[str, Fraction]]] = {
    "kilo": ("k", Fraction(1000)),
    "mega": ("M", Fraction(10**6)),
    "giga": ("G", Fraction(10**9)),
    "tera": ("T", Fraction(10**12)),
    "peta": ("P", Fraction(10**15)),
    "hecto": ("h", Fraction(100)),
    "deca": ("da", Fraction(10)),
    "deci": ("d", Fraction(1, 10)),
    "centi": ("c", Fraction(1, 100)),
    "milli": ("m", Fraction(1, 1000)),
    "micro": ("µ", Fraction(1, 10**6)),
    "nano": ("n", Fraction(1, 10**9)),
}
_SCALED: Final[dict[str, str]] = {
    "m": "kilo centi milli deci micro nano",
    "g": "kilo milli micro",
    "l": "milli centi deci hecto",
    "s": "milli micro nano",
    "B": "kilo mega giga tera peta",
    "b": "kilo mega giga tera",
    "J": "kilo mega giga",
    "cal": "kilo",
    "Wh": "kilo mega giga",
    "eV": "kilo mega giga",
    "Pa": "kilo hecto mega",
    "bar": "milli",
}
"""Which prefixes a unit takes, by its short name: those in use, so `MM` is never a megameter."""

_TEMPERATURES: Final[dict[str, Unit]] = {
    "C celsius centigrade": Unit(
        dimension="temperature", factor=Fraction(1), offset=Fraction("273.15")
    ),
    "F fahrenheit": Unit(dimension="temperature", factor=Fraction(5, 9), offset=Fraction("459.67")),
    "K kelvin": Unit(dimension="temperature", factor=Fraction(1)),
    "R rankine": Unit(dimension="temperature", factor=Fraction(5, 9)),
}
_BINARY: Final = ("kibi", "mebi", "gibi", "tebi", "pebi")
_NICKNAMES: Final[dict[str, str]] = {
    "kilo": "kilogram",
    "gig": "gigabyte",
    "meg": "megabyte",
    "um": "micrometer",
    "micron": "micrometer",
    "ug": "microgram",
    "mcg": "microgram",
    "us": "microsecond",
    "kbit": "kilobit",
    "mbit": "megabit",
    "gbit": "gigabit",
    "millibar": "mbar",
}


@cache
def _names() -> dict[str, tuple[Unit, ...]]:
    """Every spelling in its own case, with all that it may mean."""
    names: dict[str, tuple[Unit, ...]] = {}

    def add(name: str, unit: Unit) -> None:
        name = name.replace("_", " ")
        names[name] = (*names.get(name, ()), unit)

    for spellings, unit in _TEMPERATURES.items():
        for name in spellings.split():
            add(name, unit)
    for dimension, factor, spellings in _TABLE:
        short, *others = spellings.split()
        unit = Unit(dimension=dimension, factor=Fraction(factor))
        for name in (short, *others):
            add(name, unit)
        for prefix in _SCALED.get(short, "").split():
            letter, scale = _SCALES[prefix]
            scaled = Unit(dimension=dimension, factor=unit.factor * scale)
            if (letter, short) != ("k", "b"):  # people who write kb mean kilobytes
                add(letter + short, scaled)
            for name in (name for name in others if len(name) > 2):
                add(prefix + name, scaled)
    for power, prefix in enumerate(_BINARY, start=1):
        unit = Unit(dimension="data size", factor=Fraction(1024**power))
        add(f"{prefix[0].upper()}iB", unit)
        add(f"{prefix}byte", unit)
    for nickname, name in _NICKNAMES.items():
        names[nickname] = names[name]
    return names


@cache
def _lowered() -> dict[str, tuple[Unit, ...]]:
    """Every spelling in lower case; the first of those that then coincide comes first."""
    lowered: dict[str, tuple[Unit, ...]] = {}
    for name, units in _names().items():
        lowered[name.lower()] = (*lowered.get(name.lower(), ()), *units)
    return lowered
