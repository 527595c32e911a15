import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing

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
    seen = {node.seen for node in store_at(path).everything().nodes.values()}
    assert seen == {200}


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


def test_no_text_is_kept(path):
    opened = open_store(path)
    play(LengthPredictor(opened), HISTORY)
    opened.close()
    tables = sqlite3.connect(path)
    kept = tables.execute("SELECT key FROM nodes UNION SELECT kind FROM controls").fetchall()
    tables.close()
    assert {name for (name,) in kept} == {
        "route",
        '["route"]',
        '["route", "helper"]',
        '["route", "helper", null]',
        '["route", "helper", null, "small"]',
        '["route", "helper", null, "small", 4]',
    }


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


def empty_a_row(path):
    opened = open_store(path)
    play(LengthPredictor(opened), HISTORY)
    opened.close()
    broken = sqlite3.connect(path, isolation_level=None)
    broken.execute("UPDATE nodes SET mass = x'00'")
    broken.close()


def be_a_folder(path):
    path.mkdir()


DAMAGE = [
    (spoil, "file is not a database; delete or move the file"),
    (hold, "it is a database of another program"),
    (outdate, "its layout is version 99 and this agentdiff knows 1"),
    (empty_a_row, "a row is broken; delete or move the file"),
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
