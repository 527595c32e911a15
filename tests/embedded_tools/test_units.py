import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.embedded.tools.units import convert_units, find_units
from agentdiff.errors import ToolFailed
from tests.embedded_tools.desks import CORPUS, Bench

GROUPS: list[list[str]] = json.loads((CORPUS / "units.json").read_text())
PAIRS = st.sampled_from(GROUPS).flatmap(lambda g: st.tuples(st.sampled_from(g), st.sampled_from(g)))


@pytest.mark.parametrize(
    ("value", "from_unit", "to_unit", "result"),
    [
        (26.2, "miles", "km", "26.2 miles = 42.16481 km"),
        (100, "°F", "°C", "100 °F = 37.77778 °C"),
        (
            -40,
            "degrees celsius",
            "degrees fahrenheit",
            "-40 degrees celsius = -40 degrees fahrenheit",
        ),
        (0, "C", "K", "0 C = 273.15 K"),
        (5, "FEET", "Inches", "5 FEET = 60 Inches"),
        (1, "sq. ft.", "m^2", "1 sq. ft. = 0.09290304 m^2"),
        (5, "cubic feet", "liters", "5 cubic feet = 141.5842 liters"),
        (60, "km per hour", "m/s", "60 km per hour = 16.66667 m/s"),
        (8, "oz", "grams", "8 oz = 226.7962 grams"),
        (8, "oz", "ml", "8 oz = 236.5882 ml"),
        (90, "m", "h", "90 m = 1.5 h"),
        (1, "MB", "Mb", "1 MB = 8 Mb"),
        (1, "mb", "kb", "1 mb = 1000 kb"),
        (1, "GiB", "MiB", "1 GiB = 1024 MiB"),
        (500, "MG", "g", "500 MG = 0.5 g"),
        (1, "kwh", "MJ", "1 kwh = 3.6 MJ"),
        (1, "μm", "nm", "1 µm = 1000 nm"),
        (3, "uk gallons", "litres", "3 uk gallons = 13.63827 litres"),
        (2, "years", "days", "2 years = 730.485 days"),
        (1234567.891, "m", "m", "1234567.891 m = 1234567.89 m"),
    ],
)
def test_a_value_is_converted(value: float, from_unit: str, to_unit: str, result: str) -> None:
    assert convert_units(value, from_unit, to_unit) == result


def test_every_spelling_of_the_corpus_is_understood() -> None:
    for group in GROUPS:
        for first in group:
            for second in group:
                convert_units(300, first, second)


@given(PAIRS, st.floats(0.001, 1e6).map(lambda value: round(value, 3)))
def test_there_and_back_is_where_it_began(units: tuple[str, str], value: float) -> None:
    there = convert_units(value, *units).split(" = ")[1].split()[0]
    back = convert_units(float(there), *reversed(units)).split(" = ")[1].split()[0]
    is_temperature = find_units(units[0])[0].dimension == "temperature"  # 0.001 °C is 273.151 K
    assert float(back) == pytest.approx(value, rel=1e-5, abs=1e-3 if is_temperature else 0)


@pytest.mark.parametrize(
    ("value", "from_unit", "to_unit", "message"),
    [
        (5, "kg", "miles", r"cannot convert kg \(mass\) to miles \(length\); kg converts to g, kg"),
        (5, "flurbs", "km", "'flurbs' is not a unit that I know; I convert length, mass"),
        (5, "kilometrs", "miles", "did you mean kilomet"),
        (5, "", "km", "'' is not a unit"),
        (-300, "celsius", "kelvin", "below absolute zero"),
        (float("inf"), "km", "m", "must be a number"),
        (float("nan"), "km", "m", "must be a number"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    value: float, from_unit: str, to_unit: str, message: str
) -> None:
    with pytest.raises(ToolFailed, match=message):
        convert_units(value, from_unit, to_unit)


@given(st.floats(), st.text(max_size=30), st.text(max_size=30))
def test_no_arguments_break_it(value: float, from_unit: str, to_unit: str) -> None:
    with suppress(ToolFailed):
        assert " = " in convert_units(value, from_unit, to_unit)


async def test_convert_units_is_called_as_a_tool(bench: Bench) -> None:
    result = await bench("convert_units", value=26.2, from_unit="miles", to_unit="km")
    assert result == "26.2 miles = 42.16481 km"
