import json
from contextlib import suppress
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.embedded.tools.clock import read_time
from agentdiff.embedded.tools.dates import read_day
from agentdiff.embedded.tools.holidays import easter
from agentdiff.errors import ToolFailed
from tests.embedded_tools.desks import CORPUS, NOW

TODAY = NOW.date()
VALUES = json.loads((CORPUS / "values.json").read_text())
ONLY_THEIR_OWNER_KNOWS = {
    "the last day of school",
    "my birthday",
    "mom's birthday",
    "anna's birthday",
    "our anniversary",
    "my wedding day",
    "graduation day",
    "election day",
    "payday",
    "moving day",
}


@pytest.mark.parametrize(
    ("said", "iso"),
    [
        ("today", "2026-11-30"),
        ("tommorow", "2026-12-01"),
        ("the day before yesterday", "2026-11-28"),
        ("friday", "2026-12-04"),
        ("monday", "2026-12-07"),  # today is monday
        ("this monday", "2026-11-30"),
        ("next friday", "2026-12-11"),
        ("last friday", "2026-11-27"),
        ("friday night", "2026-12-04"),
        ("friday next week", "2026-12-11"),
        ("in two weeks", "2026-12-14"),
        ("3 days ago", "2026-11-27"),
        ("a month ago", "2026-10-30"),
        ("a week from monday", "2026-12-14"),
        ("the day after christmas", "2026-12-26"),
        ("end of the month", "2026-11-30"),
        ("mid october", "2027-10-15"),
        ("the first monday in june", "2027-06-07"),
        ("last friday of may 2027", "2027-05-28"),
        ("march 3", "2027-03-03"),
        ("3rd of march", "2027-03-03"),
        ("may 4", "2027-05-04"),
        ("february 29", "2028-02-29"),
        ("January 15, 2027", "2027-01-15"),
        ("the 14th", "2026-12-14"),
        ("friday the 13th", "2027-08-13"),
        ("Tuesday 9 March", "2027-03-09"),
        ("12/24/2026", "2026-12-24"),
        ("24/12/2026", "2026-12-24"),
        ("24.12.", "2026-12-24"),
        ("9.11.2027", "2027-11-09"),
        ("9/30/26", "2026-09-30"),
        ("2027/04/12", "2027-04-12"),
        ("christmas", "2026-12-25"),
        ("easter", "2027-03-28"),
        ("last easter", "2026-04-05"),
        ("thanksgiving", "2027-11-25"),
        ("mother's day", "2027-05-09"),
        ("chinese new year", "2027-02-06"),
        ("christmas 2028", "2028-12-25"),
    ],
)
def test_a_day_is_understood(said: str, iso: str) -> None:
    assert read_day(said, today=TODAY).first == date.fromisoformat(iso)


def test_every_date_of_the_corpus_is_understood() -> None:
    refused = {said for said in VALUES["date"] if not is_understood(said)}
    assert refused == ONLY_THEIR_OWNER_KNOWS


def is_understood(said: str) -> bool:
    try:
        day = read_day(said, today=TODAY)
    except ToolFailed:
        return False
    return day.said == said and day.first <= day.last


def test_every_weekday_and_month_of_the_corpus_is_understood() -> None:
    for said in VALUES["weekday"] + VALUES["month"]:
        assert read_day(said, today=TODAY).first > TODAY


@pytest.mark.parametrize(
    ("said", "phrase"),
    [
        ("friday", "on friday (2026-12-04)"),
        ("on Friday", "on Friday (2026-12-04)"),
        ("2026-12-24", "on 2026-12-24"),
        ("tomorrow", "tomorrow (2026-12-01)"),
        ("this week", "this week (2026-11-30 to 2026-12-06)"),
        ("june 2027", "in june 2027 (2027-06-01 to 2027-06-30)"),
        ("", "today (2026-11-30)"),
    ],
)
def test_a_day_is_said_with_its_date(said: str, phrase: str) -> None:
    assert read_day(said, today=TODAY).phrase == phrase


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("june 31", "not a date of the calendar"),
        ("2027-02-30", "not a date of the calendar"),
        ("99999 years ago", "not a date of the calendar"),
        ("monday 1 march 2028", "2028-03-01 is a wednesday"),
        ("diwali 2040", "I do not know when diwali 2040 is"),
        ("purple", "cannot tell which day 'purple' is"),
        ("a day after " * 30, "at most 80 characters"),
    ],
)
def test_what_is_no_day_is_refused(said: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        read_day(said, today=TODAY)


@given(st.text(max_size=90) | st.lists(st.sampled_from(VALUES["date"]), max_size=4).map(" ".join))
def test_no_text_breaks_the_reading_of_a_day(text: str) -> None:
    with suppress(ToolFailed):
        read_day(text, today=TODAY)


@given(st.dates(date(1900, 1, 1), date(2200, 1, 1)), st.sampled_from(VALUES["date"]))
def test_names_without_a_year_lie_on_the_side_that_was_asked_for(today: date, said: str) -> None:
    try:
        ahead = read_day(said, today=today)
        behind = read_day(said, today=today, lean="last")
    except ToolFailed:
        return
    if ahead.kind == "yearless":
        assert behind.first <= today <= ahead.first


@given(st.dates())
def test_a_date_is_read_in_each_of_its_forms(day: date) -> None:
    for form in ("%Y-%m-%d", "%B {} %Y", "{} %b %Y", "%A the {}th of %B %Y"):
        said = day.strftime(form.replace("%Y", f"{day.year:04d}").format(day.day))
        assert read_day(said, today=TODAY).first == day


def test_easter_is_when_it_is() -> None:
    days = {2024: "03-31", 2025: "04-20", 2026: "04-05", 2038: "04-25", 2285: "03-22"}
    assert all(easter(year) == date.fromisoformat(f"{year}-{d}") for year, d in days.items())


@pytest.mark.parametrize(
    ("said", "clock"),
    [
        ("3pm", "15:00"),
        ("3 p.m.", "15:00"),
        ("12 am", "00:00"),
        ("12:30 pm", "12:30"),
        ("14:30", "14:30"),
        ("9.30", "09:30"),
        ("5:30", "17:30"),
        ("05:30", "05:30"),
        ("18h30", "18:30"),
        ("1500 hours", "15:00"),
        ("noon", "12:00"),
        ("half past four", "16:30"),
        ("quarter to one", "12:45"),
        ("twenty past one", "13:20"),
        ("ten to midnight", "23:50"),
        ("7 in the morning", "07:00"),
        ("nine at night", "21:00"),
        ("seven fifteen", "07:15"),
        ("10 o'clock", "10:00"),
        ("sunset", "sunset"),
    ],
)
def test_a_time_is_understood(said: str, clock: str) -> None:
    assert read_time(said).text == clock


def test_every_time_of_the_corpus_is_understood() -> None:
    for said in VALUES["time"]:
        assert 0 <= read_time(said).minute < 24 * 60


@pytest.mark.parametrize("said", ["25:00", "9:75", "soon", "", "13am"])
def test_what_is_no_time_is_refused(said: str) -> None:
    with pytest.raises(ToolFailed, match="write it like 14:30"):
        read_time(said)


@given(st.text(max_size=40) | st.lists(st.sampled_from(VALUES["time"]), max_size=3).map(" ".join))
def test_no_text_breaks_the_reading_of_a_time(text: str) -> None:
    with suppress(ToolFailed):
        assert 0 <= read_time(text).minute < 24 * 60
