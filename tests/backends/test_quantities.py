import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.backends.quantities import quantities, unit_of
from agentdiff.embedded.training.values import in_words


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("pay 12 to Bo", [12]),
        ("pay 1,250.50 on the 3rd", [3, 1250.5]),
        ("it is -40 outside", [-40, 40]),
        ("between 3-5 people", [3, 5]),
        ("invoice AB1234 at 7:30", [7, 30, 1234]),
        ("a 3k run", [1, 3000]),
        ("207 K in Celsius", [207]),
        ("1.5 million", [1_500_000]),
        ("7 m²", [7]),
        ("nothing here", []),
        ("", []),
    ],
)
def test_digits_are_read_as_they_stand(text, numbers):
    assert quantities([text]) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("three copies", [3]),
        ("thirty-five or 6", [6, 35]),
        ("two thousand five hundred", [2500]),
        ("six hundred thousand", [600_000]),
        ("one hundred and twenty", [120]),
        ("two dozen", [24]),
        ("one and a half gb", [1.5]),
        ("minus four", [-4, 4]),
        ("the twenty first", [21]),
        ("half of 75", [0.5, 50, 75]),
    ],
)
def test_words_are_numbers_too(text, numbers):
    assert quantities([text]) == numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("wake me in half an hour", 30),
        ("a quarter of an hour", 15),
        ("three quarters of an hour", 45),
        ("1/2 hour", 30),
        ("an hour", 60),
        ("2 hours", 120),
        ("an hour and a half", 90),
        ("one hour and fifteen minutes", 75),
        ("1 hour 30 min", 90),
        ("90 seconds", 1.5),
        ("thirty second timer", 0.5),
        ("a week", 7),
        ("a couple of minutes", 120),
    ],
)
def test_a_time_span_is_read_in_other_units(text, number):
    assert number in quantities([text])


def test_what_was_a_part_of_a_longer_number_is_none_of_its_own():
    assert quantities(["twenty five"]) == [25]
    assert 1 not in quantities(["half an hour"])


@given(st.integers(0, 100))
def test_every_number_is_read_from_its_words(number):
    assert number in quantities([f"set it to {in_words(number)} please"])


@given(st.text(max_size=80))
def test_any_text_can_be_read(text):
    numbers = quantities([text])
    assert numbers == sorted(set(numbers))


@given(st.integers(0, 10**9), st.text(alphabet="abc ,.", max_size=9))
def test_a_number_in_digits_is_always_among_them(number, around):
    assert number in quantities([f"{around} {number} {around}"])


@pytest.mark.parametrize(
    ("text", "unit", "numbers"),
    [
        ("set a four hour timer", 60, [1, 240]),
        ("1 hour 30 min", 60, [30, 60, 90]),
        ("half an hour for 8 people", 60, [8, 30]),
        ("mute it for 2 days", 3600, [48]),
        ("two weeks off", 86_400, [14]),
        ("12 of them", 60, [12]),
    ],
)
def test_a_unit_that_is_asked_for_is_the_only_one_that_a_time_span_means(text, unit, numbers):
    assert quantities([text], unit=unit) == numbers


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("minutes", 60),
        ("delay_hours", 3600),
        ("leaveDays", 86_400),
        ("hour", None),
        ("min", None),
        ("amount", None),
    ],
)
def test_a_name_in_the_plural_says_its_unit(name, unit):
    assert unit_of(name) == unit


def test_a_lot_is_no_number():
    assert quantities(["thanks a lot, a ticket and a moment"]) == [1]
    assert quantities(["thanks a lot"]) == []
