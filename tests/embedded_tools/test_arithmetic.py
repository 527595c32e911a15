import json
import math
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentdiff.embedded.tools.arithmetic import calculate
from agentdiff.errors import ToolFailed
from tests.embedded_tools.desks import CORPUS, Bench

PIECES = """
0 1 7 12 9.5 1,234 1e6 two hundred twenty half third a the + - * / ^ ** % ! ( ) [ ] , = x × ÷ ² √ π
of off and by plus minus times over squared sqrt sum difference average max log sin mod factorial
percent pi e dozen million to_the_power_of divided_by square_root_of 20th point
"""


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("17% of 2340", "397.8"),
        ("12 * (3 + 4)", "84"),
        ("2 + 3 * 4", "14"),
        ("48 divided by 3 plus 2", "18"),
        ("-3^2", "-9"),
        ("2^3^2", "512"),
        ("8 - -2", "10"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.3333333333"),
        ("1,234 + 5,678", "6912"),
        ("square root of 144", "12"),
        ("square root of 400 plus 5", "25"),
        ("sqrt(16)*5", "20"),
        ("half of 90", "45"),
        ("two thirds of 99", "66"),
        ("two and a half times 4", "10"),
        ("3/4 of 200", "150"),
        ("100 / half of 4", "50"),
        ("100 - 15%", "85"),
        ("100 * 15%", "15"),
        ("20% off 45", "36"),
        ("37 % 8", "5"),
        ("12% of 340 + 20", "60.8"),
        ("7 squared", "49"),
        ("15²", "225"),
        ("7 to the 4th power", "2401"),
        ("3 to the third power", "27"),
        ("20!", "2432902008176640000"),
        ("factorial of 7", "5040"),
        ("the remainder of 50 divided by 8", "2"),
        ("the sum of 5, 8 and 13", "26"),
        ("sum of (2+3)*4 and 5", "25"),
        ("difference of 37 and 90", "53"),
        ("subtract 3 from 10", "7"),
        ("max(3, 7)", "7"),
        ("one hundred and twenty-five plus three point five", "128.5"),
        ("2.5 million / 4", "625000"),
        ("2 pi", "6.283185307"),
        ("sin(30)", "0.5 (angles in degrees)"),
        ("sin(pi/2)", "1"),
        ("2^100", "1.2676506e30"),
        ("10^-9", "1e-9"),
        ("12345678901.25 + 0", "12345678901.25"),
    ],
)
def test_an_expression_is_computed(expression: str, result: str) -> None:
    assert calculate(expression) == f"{expression} = {result}"


def test_every_expression_of_the_corpus_is_understood() -> None:
    for expression in json.loads((CORPUS / "expressions.json").read_text()):
        said, result = calculate(expression).split(" = ")
        assert said == expression
        assert math.isfinite(float(result.split()[0]))


@pytest.mark.parametrize("typed", ["5 + 5 = ?", "5 + 5 =", "'5 + 5'", " 5 + 5. "])
def test_what_stands_around_an_expression_is_left_out(typed: str) -> None:
    assert calculate(typed) == "5 + 5 = 10"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "too large"),
        ("(1/3)^2000 * (1/7)^1000", "too close to zero"),
        ("999!", "from 0 to 400"),
        ("1e99999 * 2", "too large"),
        ("5 / 0", "divides by zero"),
        ("tan(90)", "divides by zero"),
        ("sqrt(-4)", "no real value"),
        ("(-8)^0.5", "not a real number"),
        ("(" * 100 + "1" + ")" * 100, "nested too deeply"),
        ("1+" * 200 + "1", "300 is the most"),
        ("hello", "write it like"),
        ("5 apples", "stopped at 'apples'"),
        ("__import__('os')", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_line(expression: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message) as failed:
        calculate(expression)
    assert len(str(failed.value)) < 250


@given(st.text(max_size=320))
@example("max(" * 39 + "3" + ")" * 39)
@example("٣ + ٤")
def test_no_text_hangs_or_breaks_it(text: str) -> None:
    answers(text)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=25), st.sampled_from(["", " "]))
def test_no_heap_of_arithmetic_hangs_or_breaks_it(pieces: list[str], between: str) -> None:
    answers(between.join(pieces).replace("_", " "))


def answers(text: str) -> None:
    with suppress(ToolFailed):
        assert " = " in calculate(text)


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from("+-*"))
def test_whole_numbers_are_computed_as_python_does(left: int, right: int, sign: str) -> None:
    expected = {"+": left + right, "-": left - right, "*": left * right}[sign]
    assert calculate(f"{left} {sign} {right}").endswith(f" = {expected}")


async def test_calculate_is_called_as_a_tool(bench: Bench) -> None:
    assert await bench("calculate", expression="17% of 2340") == "17% of 2340 = 397.8"
