import json
from datetime import datetime
from pathlib import Path

import anyio
import pytest

from agentdiff.errors import ToolFailed
from tests.embedded_tools.desks import Bench

# --- days ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"start": "march 1", "end": "may 24"}, "84 days from march 1 to may 24"),
        ({"end": "tomorrow"}, "1 day from today (2026-11-30) to tomorrow (2026-12-01)"),
        ({"end": "christmas"}, "25 days from today (2026-11-30) to christmas (2026-12-25)"),
        ({"start": "christmas"}, "340 days from christmas (2025-12-25) to today (2026-11-30)"),
        ({"start": "monday"}, "7 days from monday (2026-11-23) to today (2026-11-30)"),
        (
            {"start": "monday", "end": "friday"},
            "4 days from monday (2026-12-07) to friday (2026-12-11)",
        ),
        ({"start": "december 24", "end": "january 1"}, "8 days from december 24 to january 1"),
        (
            {"start": "july 4", "end": "yesterday"},
            "148 days from july 4 (2026-07-04) to yesterday (2026-11-29)",
        ),
        ({"start": "2026-02-10", "end": "2026-05-22"}, "101 days from 2026-02-10 to 2026-05-22"),
        (
            {"start": "2026-05-22", "end": "2026-02-10"},
            "101 days from 2026-05-22 back to 2026-02-10",
        ),
        ({"start": "2027-01-01"}, "32 days from today (2026-11-30) to 2027-01-01"),
        ({"end": "3/1/2027"}, "91 days from today (2026-11-30) to 3/1/2027 (2027-03-01)"),
        ({"end": "next week"}, "7 days from today (2026-11-30) to next week (2026-12-07)"),
        ({}, "0 days from today (2026-11-30) to today (2026-11-30)"),
    ],
)
async def test_days_are_counted(bench: Bench, arguments: dict, result: str) -> None:
    assert await bench("days_between", **arguments) == result


# --- calendar -----------------------------------------------------------------------------------


async def test_events_are_listed_in_the_order_of_the_day(bench: Bench) -> None:
    added = await bench("add_event", title="lunch with mom", date="friday", time="12:30")
    assert added == "added: lunch with mom on friday (2026-12-04) at 12:30"
    await bench("add_event", title="walk", date="dec 4", time="sunset")
    await bench("add_event", title="standup", date="2026-12-04", time="9am")
    assert (
        await bench("add_event", title="rent", date="friday")
        == "added: rent on friday (2026-12-04)"
    )
    assert await bench("list_events", date="friday") == (
        "4 events on friday (2026-12-04): rent; 09:00 standup; 12:30 lunch with mom; sunset walk"
    )
    assert await bench("list_events") == "no events today (2026-11-30)"


async def test_a_week_lists_its_events_with_their_dates(bench: Bench) -> None:
    await bench("add_event", title="gym", date="tomorrow", time="7am")
    assert await bench("list_events", date="this week") == (
        "1 event this week (2026-11-30 to 2026-12-06): 2026-12-01 07:00 gym"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"date": "tomorrow evening", "time": "7"}, "tomorrow evening (2026-12-01) at 19:00"),
        ({"date": "tomorrow morning", "time": "6:30"}, "tomorrow morning (2026-12-01) at 06:30"),
        ({"date": "friday at 3pm"}, "on friday (2026-12-04) at 15:00"),
        ({"date": "next week"}, "next week (2026-12-07)"),
    ],
)
async def test_date_and_time_are_read_together(bench: Bench, arguments: dict, said: str) -> None:
    assert await bench("add_event", title="'dinner'", **arguments) == f"added: dinner {said}"


@pytest.mark.parametrize(
    "arguments",
    [
        {"title": " ", "date": "friday"},
        {"title": "x" * 10_001, "date": "friday"},
        {"title": "x", "date": "my birthday"},
        {"title": "x", "date": "friday", "time": "soon"},
    ],
)
async def test_an_event_that_cannot_be_placed_is_not_kept(bench: Bench, arguments: dict) -> None:
    with pytest.raises(ToolFailed):
        await bench("add_event", **arguments)
    assert not (bench.root / ".agentdiff").exists()


# --- notes --------------------------------------------------------------------------------------


async def test_notes_are_found_by_their_words(bench: Bench) -> None:
    assert (
        await bench("add_note", text="the garage code is 4471") == "noted: the garage code is 4471"
    )
    await bench("add_note", text='"buy paint for the Garage"')
    assert await bench("search_notes", query="garage code") == "1 note: the garage code is 4471"
    assert await bench("search_notes", query="the garages") == (
        "2 notes: buy paint for the Garage; the garage code is 4471"
    )
    assert await bench("search_notes", query="wifi") == "no notes about wifi"


async def test_an_empty_query_lists_the_newest_notes(bench: Bench) -> None:
    assert await bench("search_notes", query="") == "no notes yet"
    for number in range(25):
        await bench("add_note", text=f"n{number}")
    found = await bench("search_notes", query="")
    assert found.startswith("25 notes: n24; n23; ")
    assert found.endswith("; n5; and 5 more")


async def test_a_note_with_half_a_surrogate_is_kept_all_the_same(bench: Bench) -> None:
    await bench("add_note", text="bad \ud800 text")
    assert await bench("search_notes", query="bad") == "1 note: bad ? text"


# --- timers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"minutes": 10, "label": "pasta"}, "timer for 10 minutes (pasta), ends at 14:32"),
        ({"minutes": 1}, "timer for 1 minute, ends at 14:23"),
        ({"minutes": 1.5}, "timer for 1.5 minutes, ends at 14:23:40"),
        ({"minutes": 900}, "timer for 900 minutes, ends at 2026-12-01 05:22"),
    ],
)
async def test_a_timer_says_when_it_ends(bench: Bench, arguments: dict, result: str) -> None:
    assert await bench("set_timer", **arguments) == result


@pytest.mark.parametrize("minutes", [0, -5, 10_081, 1e300])
async def test_an_absurd_timer_is_refused(bench: Bench, minutes: float) -> None:
    with pytest.raises(ToolFailed, match=r"more than 0|at most a week"):
        await bench("set_timer", minutes=minutes)


# --- what is kept -------------------------------------------------------------------------------


async def test_what_is_kept_can_be_read_by_people(bench: Bench) -> None:
    await bench("add_event", title="Café", date="friday", time="9am")
    kept = (bench.root / ".agentdiff/events.json").read_text()
    assert '"title": "Café",\n' in kept
    assert json.loads(kept) == [{"title": "Café", "date": "2026-12-04", "time": "09:00"}]
    assert [path.name for path in (bench.root / ".agentdiff").iterdir()] == ["events.json"]


async def test_a_second_set_of_tools_sees_what_the_first_has_kept(bench: Bench) -> None:
    await bench("add_note", text="remember me")
    later = Bench(bench.root, now=datetime(2027, 1, 1))
    assert await later("search_notes", query="remember") == "1 note: remember me"


async def test_fields_that_a_person_added_are_kept(bench: Bench) -> None:
    await bench("add_note", text="one")
    file = bench.root / ".agentdiff/notes.json"
    notes = json.loads(file.read_text())
    file.write_text(json.dumps([{**notes[0], "colour": "red"}]))
    await bench("add_note", text="two")
    assert json.loads(file.read_text())[0]["colour"] == "red"


@pytest.mark.parametrize("content", ["{", '{"a": 1}', '[{"text": 5}]', "[1]", "\udcff"])
async def test_a_broken_file_is_named_and_never_overwritten(bench: Bench, content: str) -> None:
    file = bench.root / ".agentdiff/notes.json"
    file.parent.mkdir()
    file.write_bytes(content.encode(errors="surrogateescape"))
    before = file.read_bytes()
    for name, arguments in (("add_note", {"text": "x"}), ("search_notes", {"query": "x"})):
        with pytest.raises(ToolFailed, match=r"\.agentdiff/notes\.json is broken"):
            await bench(name, **arguments)
    assert file.read_bytes() == before


async def test_calls_at_once_lose_nothing(bench: Bench) -> None:
    other = Bench(bench.root)
    async with anyio.create_task_group() as calls:
        for number in range(20):
            tools = bench if number % 2 else other
            calls.start_soon(lambda n=number, t=tools: t("add_note", text=f"note {n}"))
    assert (await bench("search_notes", query="note")).startswith("20 notes: ")


async def test_nothing_is_kept_behind_a_link_out_of_the_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / ".agentdiff").symlink_to(outside)
    with pytest.raises(ToolFailed, match="outside the working folder"):
        await Bench(root)("add_note", text="x")
    assert list(outside.iterdir()) == []


async def test_a_folder_that_cannot_be_written_is_reported(bench: Bench) -> None:
    (bench.root / ".agentdiff").write_text("a file")
    with pytest.raises(ToolFailed, match=r"\.agentdiff/notes\.json"):
        await bench("add_note", text="x")
