import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from hypothesis import given, settings

from agentdiff.errors import StoreError
from agentdiff.length import CapCost, LengthPredictor, StepContext, Store, open_store, store
from tests.length.outcomes import outcomes, play, probe

ROUTE = StepContext("helper", "route", model="small", last_tokens=12)
HISTORY = [(ROUTE, 30, False), (ROUTE, 45, True), (ROUTE, 28, False)]
OBSERVE = """
import sys
from agentdiff.length import CapCost, LengthPredictor, StepContext, Store

context = StepContext("helper", "route", model="small", last_tokens=12)
predictor = LengthPredictor(Store(sys.argv[1]))
for used in range(100):
    predictor.observe(context, predictor.predict(context, CapCost()), used=used, truncated=False)
assert not predictor.problems, predictor.problems
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lengths.db"


@pytest.fixture
def store_at():
    """Makes stores, and closes them after the test."""
    with ExitStack() as opened:

        def make(path):
            return opened.enter_context(closing(Store(path)))

        yield make


@given(outcomes)
@settings(max_examples=25)
def test_reopening_gives_identical_budgets(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("store") / "lengths.db"
    in_memory = LengthPredictor()
    play(in_memory, history)
    first = open_store(path)
    assert play(LengthPredictor(first), history) == play(LengthPredictor(), history)
    first.close()
    again = Store(path)
    assert probe(LengthPredictor(again), history) == probe(in_memory, history)
    again.close()


def test_a_store_touches_no_file_before_it_is_needed(path, store_at):
    predictor = LengthPredictor(store_at(path))
    assert not path.exists()
    predictor.predict(ROUTE, CapCost())
    assert path.exists()


def test_one_predictor_sees_what_another_has_learned(path, store_at):
    first, second = LengthPredictor(store_at(path)), LengthPredictor(store_at(path))
    play(first, HISTORY)
    assert probe(second, HISTORY) == probe(first, HISTORY)
    assert second.predict(ROUTE, CapCost()).source == "history:route/helper (n=3)"


def test_two_processes_lose_no_observation(path, store_at):
    workers = [subprocess.Popen([sys.executable, "-c", OBSERVE, str(path)]) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert set(LengthPredictor(store_at(path)).keys().values()) == {200}


def test_threads_share_a_predictor(path, store_at):
    predictor = LengthPredictor(store_at(path))
    threads = [threading.Thread(target=play, args=(predictor, HISTORY)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert predictor.predict(ROUTE, CapCost()).source == "history:route/helper (n=12)"
    assert predictor.problems == ()


def test_saved_lengths_move_between_stores(tmp_path, path, store_at):
    first, second = (
        LengthPredictor(store_at(path)),
        LengthPredictor(store_at(tmp_path / "other.db")),
    )
    play(first, HISTORY)
    play(second, [(ROUTE, 2000, False)] * 5)
    first.save(tmp_path / "lengths.json")
    second.load(tmp_path / "lengths.json")
    assert probe(second, HISTORY) == probe(first, HISTORY)


def test_processes_that_write_the_state_now_and_then_agree(path, store_at, monkeypatch):
    """One is left behind by the log, begins anew from the state, and comes to the same."""
    monkeypatch.setattr(store, "FOLD_EVERY", 5)
    monkeypatch.setattr(store, "KEPT", 3)
    in_memory = LengthPredictor()
    first, second = LengthPredictor(store_at(path)), LengthPredictor(store_at(path))
    for turns in (1, 6, 2, 9):
        for predictor in (first, second):
            play(predictor, HISTORY * turns)
            play(in_memory, HISTORY * turns)
    third = LengthPredictor(store_at(path))
    assert probe(first, HISTORY) == probe(second, HISTORY) == probe(in_memory, HISTORY)
    assert probe(third, HISTORY) == probe(in_memory, HISTORY)
    assert len(store_at(path).outcomes()) < 10


def test_outcomes_stay_for_people_to_look_at(path, store_at):
    play(LengthPredictor(store_at(path)), HISTORY)
    outcomes = store_at(path).outcomes()
    assert [(one.used, one.truncated) for one in outcomes] == [(30, False), (45, True), (28, False)]
    assert {one.context for one in outcomes} == {ROUTE}


def test_loading_into_a_shared_store_reaches_everyone(tmp_path, path, store_at):
    first, second = LengthPredictor(store_at(path)), LengthPredictor(store_at(path))
    play(first, [(ROUTE, 2000, False)] * 5)
    play(second, [(ROUTE, 2000, False)] * 5)
    other = LengthPredictor()
    play(other, HISTORY)
    other.save(tmp_path / "lengths.json")
    first.load(tmp_path / "lengths.json")
    assert probe(second, HISTORY) == probe(first, HISTORY) == probe(other, HISTORY)
    play(second, HISTORY)
    assert first.predict(ROUTE, CapCost()).source == "history:route/helper (n=6)"


@pytest.mark.parametrize("fold_every", [1, 1000])
def test_no_text_is_kept(path, monkeypatch, fold_every):
    monkeypatch.setattr(store, "FOLD_EVERY", fold_every)
    opened = open_store(path)
    context = replace(ROUTE, episode="Ms Miller's diagnosis")
    play(LengthPredictor(opened), [(context, 30, False)] * 3)
    opened.close()
    assert b"helper" in path.read_bytes()
    assert b"Miller" not in path.read_bytes()


def test_a_key_takes_less_than_a_kilobyte(path, monkeypatch):
    monkeypatch.setattr(store, "FOLD_EVERY", 1)
    opened = open_store(path)
    play(LengthPredictor(opened), [(ROUTE, length, False) for length in range(0, 9000, 90)])
    opened.close()
    tables = sqlite3.connect(path)
    sizes = tables.execute("SELECT length(key) + length(state) FROM nodes").fetchall()
    tables.close()
    assert max(sizes) < (1024,)


def spoil(path):
    path.write_bytes(b"this is no database" * 100)


def hold(path):
    """A database that another program has written."""
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name)")
    other.close()


def outdate(path):
    open_store(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()


def test_an_older_store_is_begun_anew(path, store_at):
    """What it has learned meant something else, and is learned again in a few dozen steps."""
    alter(path, "PRAGMA user_version = 2")
    predictor = LengthPredictor(store_at(path))
    assert probe(predictor, HISTORY) == probe(LengthPredictor(), HISTORY)
    play(predictor, HISTORY)
    assert LengthPredictor(store_at(path)).keys() == {("route", "helper", None, "small"): 3}
    assert predictor.problems == ()


def spoil_a_row(path):
    alter(path, "UPDATE outcomes SET kind = 'thinking'")


def spoil_a_node(path):
    alter(path, "INSERT INTO nodes VALUES ('[\"route\"]', x'00')")


def spoil_the_rest(path):
    alter(path, "INSERT INTO rest VALUES ('rest', '{}')")


def alter(path, statement):
    opened = open_store(path)
    play(LengthPredictor(opened), HISTORY)
    opened.close()
    broken = sqlite3.connect(path, isolation_level=None)
    broken.execute(statement)
    broken.close()


def be_a_folder(path):
    path.mkdir()


DAMAGE = [
    (spoil, "file is not a database; delete or move the file"),
    (hold, "it is a database of another program"),
    (outdate, "its layout is version 99 and this agentdiff knows 3"),
    (spoil_a_row, "a row is broken; delete or move the file"),
    (spoil_a_node, "a row is broken; delete or move the file"),
    (spoil_the_rest, "a row is broken; delete or move the file"),
    (be_a_folder, "unable to open database file"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE)
def test_a_file_that_cannot_be_used_is_an_error_that_names_it(path, damage, reason):
    damage(path)
    with pytest.raises(StoreError, match=rf"lengths\.db' cannot be used: {reason}"):
        open_store(path)


@pytest.mark.parametrize(("damage", "reason"), DAMAGE)
def test_a_run_goes_on_in_memory_when_its_store_fails(path, damage, reason, store_at):
    damage(path)
    predictor = LengthPredictor(store_at(path))
    assert play(predictor, HISTORY) == play(LengthPredictor(), HISTORY)
    assert probe(predictor, HISTORY)[0].source == "history:route/helper (n=3)"
    [problem] = predictor.problems
    assert reason in problem
    assert problem.endswith("lengths learned from here on are kept in memory only")


def test_a_store_that_is_lost_in_the_middle_of_a_run_costs_nothing_learned(
    path, monkeypatch, store_at
):
    monkeypatch.setattr(store, "PATIENCE_S", 0.05)
    predictor = LengthPredictor(store_at(path))
    play(predictor, HISTORY)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    play(predictor, HISTORY)
    other.close()
    assert "another process holds it for more than 0.05 s" in predictor.problems[0]
    assert predictor.predict(ROUTE, CapCost()).source == "history:route/helper (n=6)"


def test_a_locked_store_is_an_error_that_says_so(path, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="another process holds it"):
        open_store(path)
    other.close()
