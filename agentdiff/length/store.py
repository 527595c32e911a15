"""Learned lengths in a sqlite file that several processes may use at once: counts, no text.

    outcomes   a log; each process applies it in order, so all come to the same state
    nodes      the state as it was after the outcome `folded`, written now and then
    rest

Learning from a step adds one row. What another process has added is noticed by one question to
sqlite, which reads nothing from the disk when there is no news.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import threading
import time
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from agentdiff.errors import ConfigurationError, StoreError
from agentdiff.generation import StepKind
from agentdiff.length.context import StepContext
from agentdiff.length.histogram import BINS, Node
from agentdiff.length.learned import Learned, View
from agentdiff.length.learning import Outcome, learn
from agentdiff.length.moment import episode_key
from agentdiff.length.prior import shipped_prior
from agentdiff.length.saved import RestFile, key_from_text, key_to_text, put_rest, rest_of

VERSION = 3
"""Of what is kept and what it means (`PRAGMA user_version`). An older file is begun anew."""
APPLICATION = 0x61646C31
"""Marks the file as ours (`PRAGMA application_id`)."""
PATIENCE_S = 5.0
"""How long to wait for another process that is writing."""
FOLD_EVERY = 256
"""Outcomes after which the state is written."""
KEPT = 4096
"""Outcomes that stay in the log for people to look at."""
_HEAD = struct.Struct("<qqqqdd")
_TABLES = f"""
CREATE TABLE nodes (key TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rest (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY, agent TEXT, kind TEXT, tool TEXT, model TEXT, schema_min INTEGER,
    schema_max INTEGER, prompt INTEGER, last INTEGER, episode TEXT, target INTEGER, used INTEGER,
    truncated INTEGER, target_miss REAL
);
INSERT INTO rest VALUES ('folded', 0);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""
_ADD = f"INSERT INTO outcomes VALUES ({', '.join('?' * 14)})"


class Store:
    """Learned lengths in the file at `path`.

    The file is created or opened by the first call that needs it. Each process sees what the others
    have learned, and no outcome is lost. Every method raises `StoreError` when the file cannot be
    used; `learned` then still holds what was known. May be used from any thread.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.learned = Learned(shipped_prior())
        """As of the last call. To be read, not to be changed."""
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._news = -1
        """`PRAGMA data_version` when the state was last brought up to date."""
        self._at = 0
        """The newest outcome that `learned` contains."""
        self._folded = 0

    @property
    def position(self) -> int:
        """The number of the newest outcome that `learned` contains."""
        return self._at

    def sync(self) -> Learned:
        """Take in what others have added, and return what is known."""
        with self._lock, self._saying_what_failed():
            connection = self._open()
            if _pragma(connection, "data_version") != self._news:
                with self._transaction("DEFERRED"):
                    self._catch_up(connection)
            return self.learned

    def add(self, outcome: Outcome, *, target_miss: float, view: View | None = None) -> None:
        """Learn from an outcome; `view` as for `learn`, of the state `sync` returned."""
        with self._lock, self._saying_what_failed():
            with self._transaction("IMMEDIATE") as connection:
                if _pragma(connection, "data_version") != self._news:
                    self._catch_up(connection)
                    view = None
                if self._at - self._folded >= FOLD_EVERY:
                    self._fold(connection, self.learned, at=self._at)
                connection.execute(_ADD, _row(self._at + 1, outcome, target_miss))
            # Only what is written is learned, so that a failure leaves no outcome counted twice.
            self._at += 1
            learn(self.learned, outcome, target_miss=target_miss, view=view)

    def outcomes(self) -> list[Outcome]:
        """The newest outcomes, oldest first. Episodes bear other names than they had."""
        with self._lock, self._saying_what_failed(), self._transaction("DEFERRED") as connection:
            rows = connection.execute("SELECT * FROM outcomes ORDER BY id")
            return [_outcome(row)[0] for row in cast("Iterator[tuple[Any, ...]]", rows)]

    def replace(self, learned: Learned) -> None:
        """Forget everything and keep `learned` instead. The log of outcomes begins anew."""
        with self._lock, self._saying_what_failed(), self._transaction("IMMEDIATE") as connection:
            newest = connection.execute("SELECT max(id) FROM outcomes").fetchone()[0] or 0
            connection.execute("DELETE FROM outcomes")
            connection.execute("DELETE FROM nodes")
            learned.touched = set(learned.nodes)
            # Numbers go on, so that every process sees that the state has moved under it.
            self._fold(connection, learned, at=max(newest, _folded(connection)) + 1)

    def close(self) -> None:
        """Close the file; a later call opens it again. Calling it twice is safe."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._news = -1

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self.path)
        return self._connection

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """Apply the outcomes that are new; begin anew where some of them are folded already."""
        news = _pragma(connection, "data_version")
        folded = _folded(connection)
        if folded > self._at or not self._at:
            self.learned = _read(connection)
            self._at = folded
        rows = connection.execute("SELECT * FROM outcomes WHERE id > ? ORDER BY id", (self._at,))
        for row in cast("Iterator[tuple[Any, ...]]", rows):
            outcome, target_miss = _outcome(row)
            learn(self.learned, outcome, target_miss=target_miss)
            self._at = row[0]
        self._folded = folded
        self._news = news

    def _fold(self, connection: sqlite3.Connection, learned: Learned, *, at: int) -> None:
        """Write the state, and let go of outcomes that are too old to be looked at."""
        connection.executemany(
            "INSERT OR REPLACE INTO nodes VALUES (?, ?)",
            [(key_to_text(key), _packed(learned.nodes[key])) for key in learned.touched],
        )
        rest = json.dumps(rest_of(learned).model_dump(mode="json"), ensure_ascii=False)
        connection.executemany(
            "INSERT OR REPLACE INTO rest VALUES (?, ?)", [("rest", rest), ("folded", at)]
        )
        connection.execute("DELETE FROM outcomes WHERE id <= ?", (at - KEPT,))
        learned.touched.clear()
        self.learned, self._at, self._folded = learned, at, at

    @contextmanager
    def _transaction(self, mode: str) -> Generator[sqlite3.Connection]:
        connection = self._open()
        connection.execute(f"BEGIN {mode}")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _saying_what_failed(self) -> Generator[None]:
        try:
            yield
        except (
            sqlite3.Error,
            OSError,
            struct.error,
            ValueError,
            TypeError,
            ConfigurationError,
        ) as error:
            raise StoreError(
                f"the length store {str(self.path)!r} cannot be used: {_reason(error)}"
            ) from error


def open_store(path: str | Path) -> Store:
    """Open the store at `path` now, creating it (and its folder) where it does not exist.

    Raises `StoreError` when the file is locked, broken, not ours or written by a newer version. To
    open it only when it is needed, make a `Store`.
    """
    store = Store(path)
    store.sync()
    return store


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    try:
        write_ahead(connection, patience_s=PATIENCE_S)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _prepare(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    except BaseException:
        connection.close()
        raise
    return connection


def write_ahead(connection: sqlite3.Connection, *, patience_s: float) -> None:
    """Switch a database to write-ahead logging: one flush of the disk for each write.

    sqlite does not wait for a lock here (two processes that open a new file at once would wait for
    each other), so this does.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
        time.sleep(0.005)


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables in a new file, and anew in an older one; refuse a file that is not ours."""
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application == APPLICATION:
        if version == VERSION:
            return
        if version > VERSION:
            raise sqlite3.DatabaseError(
                f"its layout is version {version} and this agentdiff knows {VERSION}"
            )
        for table in ("nodes", "rest", "outcomes"):
            connection.execute(f"DROP TABLE {table}")
    elif connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] or application:
        raise sqlite3.DatabaseError("it is a database of another program")
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _folded(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM rest WHERE name = 'folded'").fetchone()[0])


def _read(connection: sqlite3.Connection) -> Learned:
    learned = Learned(shipped_prior())
    nodes = connection.execute("SELECT key, state FROM nodes")
    for key, state in cast("Iterator[tuple[str, bytes]]", nodes):
        learned.nodes[key_from_text(key)] = _unpacked(state)
    found = connection.execute("SELECT value FROM rest WHERE name = 'rest'").fetchone()
    if found is not None:
        put_rest(learned, RestFile.model_validate_json(found[0]))
    return learned


def _packed(node: Node) -> bytes:
    head = _HEAD.pack(node.seen, node.cut, node.floor, node.newest, node.unit, node.total)
    return head + bytes(node.mass) + array("d", node.mass.values()).tobytes()


def _unpacked(state: bytes) -> Node:
    seen, cut, floor, newest, unit, total = _HEAD.unpack_from(state)
    count, left = divmod(len(state) - _HEAD.size, 9)
    places = state[_HEAD.size : _HEAD.size + count]
    weights = array("d", state[_HEAD.size + count :])
    if left or any(place >= BINS for place in places):
        raise struct.error
    mass = dict(zip(places, weights, strict=True))
    return Node(mass=mass, total=total, unit=unit, seen=seen, cut=cut, floor=floor, newest=newest)


def _row(number: int, outcome: Outcome, target_miss: float) -> tuple[Any, ...]:
    context = outcome.context
    return (
        number,
        context.agent,
        context.kind,
        context.tool,
        context.model,
        context.schema_min,
        context.schema_max,
        context.prompt_tokens,
        context.last_tokens,
        episode_key(context.episode) if context.episode else None,
        outcome.target,
        outcome.used,
        outcome.truncated,
        target_miss,
    )


def _outcome(row: tuple[Any, ...]) -> tuple[Outcome, float]:
    _, agent, kind, tool, model, least, most, prompt, last, episode, *rest = row
    target, used, truncated, target_miss = rest
    context = StepContext(
        agent=agent,
        kind=cast("StepKind", kind),
        tool=tool,
        model=model,
        schema_min=least,
        schema_max=most,
        prompt_tokens=prompt,
        last_tokens=last,
        episode=episode,
    )
    outcome = Outcome(context=context, target=target, used=used, truncated=bool(truncated))
    return outcome, target_miss


def _reason(error: Exception) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"another process holds it for more than {PATIENCE_S:g} s"
    if isinstance(error, sqlite3.DatabaseError) and (
        "malformed" in text or "not a database" in text
    ):
        return f"{text}; delete or move the file to start anew"
    if isinstance(error, struct.error | ValueError | TypeError | ConfigurationError):
        return "a row is broken; delete or move the file to start anew"
    return text
