"""Runs in a sqlite file: what is done is written down at once, so that a crash loses nothing of it.

A run under an id that is in the file goes on where it was: what is written down is taken from
there, so no generation is paid for twice and no finished tool call is made again. A call that was
under way when the process died has no record and is made again.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from agentdiff.agent.events import CallRecord
from agentdiff.agent.generating import Generation
from agentdiff.agent.state import RunState, adapter
from agentdiff.errors import ConfigurationError, StoreError
from agentdiff.length.store import write_ahead

T = TypeVar("T")

VERSION = 1
"""Layout of the tables (`PRAGMA user_version`)."""
APPLICATION = 0x61646A31
"""Marks the file as ours (`PRAGMA application_id`)."""
PATIENCE_S = 5.0
"""How long to wait for another process that is writing."""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, state TEXT NOT NULL, is_done INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS generations (
    run TEXT NOT NULL, number INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (
    run TEXT NOT NULL, place TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, place)
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""


class Journal:
    """The runs in the file at `path`, which is made where it does not exist.

    Holds prompts, replies, arguments and results in the clear: treat the file as you would treat
    them. Each write is on the disk before the run goes on. Any number of processes may use one
    file; every method raises `StoreError` when it cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def run(self, id: str) -> JournaledRun:
        """The run under this id, for `agent.run(…, journal=…)`; nothing is read yet."""
        if not id:
            raise ConfigurationError("a run in a journal needs an id that is not empty")
        return JournaledRun(self, id)

    def unfinished(self) -> list[str]:
        """The ids of runs that have begun and not ended."""
        with self.transaction() as connection:
            rows = connection.execute("SELECT id FROM runs WHERE NOT is_done ORDER BY id")
            return [row[0] for row in rows]

    def forget(self, id: str) -> None:
        """Remove a run; nothing happens where there is none."""
        with self.transaction() as connection:
            for table, key in (("runs", "id"), ("generations", "run"), ("calls", "run")):
                connection.execute(f"DELETE FROM {table} WHERE {key} = ?", (id,))

    def close(self) -> None:
        """Close the file; a later call opens it again. Calling it twice is safe."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """One transaction: all of it is kept, or nothing where the block is left with an error."""
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = _connect(self.path)
                connection = self._connection
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"the journal {str(self.path)!r} cannot be used: {error}") from error


class JournaledRun:
    """One run of a journal.

    Whoever begins or resumes it owns it: an earlier owner that still runs, in this process or in
    another, ends with `StoreError` at its next write.
    """

    def __init__(self, journal: Journal, id: str) -> None:
        self.journal = journal
        self.id = id
        self._owner = uuid.uuid4().hex

    def state(self) -> RunState:
        """What is written down of the run.

        Raises:
            ConfigurationError: There is no run under this id.
        """
        with self.journal.transaction() as connection:
            found = _read(connection, self.id)
        if found is None:
            raise ConfigurationError(f"there is no run {self.id!r} in {str(self.journal.path)!r}")
        return found

    async def begin(self, state: RunState) -> RunState:
        """Own the run, and get what is written down of it; a new one is written down as `state`.

        Raises:
            ConfigurationError: There is another run under this id: another agent's, or with another
                prompt.
        """

        def begin(connection: sqlite3.Connection) -> RunState:
            known = _read(connection, self.id)
            if known is None:
                _write(connection, self.id, self._owner, state)
                return state
            for what in ("agent", "prompt"):
                was, now = getattr(known, what), getattr(state, what)
                if was != now:
                    raise ConfigurationError(
                        f"the journal has a run {self.id!r} with the {what} {was[:80]!r}, and this "
                        f"one has {now[:80]!r}; give it an id of its own, or `journal.forget` that"
                    )
            connection.execute("UPDATE runs SET owner = ? WHERE id = ?", (self._owner, self.id))
            return known

        return await self._do(begin, owned=False)

    async def keep_generation(self, number: int, generation: Generation) -> None:
        """Write down a generation that is done."""
        text = adapter(Generation).dump_json(generation).decode()
        sql = "INSERT OR REPLACE INTO generations VALUES (?, ?, ?)"
        await self._do(lambda connection: connection.execute(sql, (self.id, number, text)))

    async def keep_call(self, place: str, record: CallRecord) -> None:
        """Write down a tool call that is done."""
        text = adapter(CallRecord).dump_json(record).decode()
        sql = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?)"
        await self._do(lambda connection: connection.execute(sql, (self.id, place, text)))

    async def end(self) -> None:
        """Write down that the run has ended with an output."""
        sql = "UPDATE runs SET is_done = 1 WHERE id = ?"
        await self._do(lambda connection: connection.execute(sql, (self.id,)))

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, owned: bool = True) -> T:
        def in_thread() -> T:
            with self.journal.transaction() as connection:
                if owned:
                    self._check_owner(connection)
                return work(connection)

        done: list[T] = []
        with anyio.CancelScope(shield=True):  # what is done is written down, cancelled or not
            done.append(await anyio.to_thread.run_sync(in_thread))
        return done[0]

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        row = connection.execute("SELECT owner FROM runs WHERE id = ?", (self.id,)).fetchone()
        if row is None or row[0] != self._owner:
            raise StoreError(
                f"the run {self.id!r} in {str(self.journal.path)!r} was taken over or forgotten "
                "while it was under way; one at a time can go on with it"
            )


def _read(connection: sqlite3.Connection, id: str) -> RunState | None:
    row = connection.execute("SELECT state FROM runs WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    generations = connection.execute(
        "SELECT value FROM generations WHERE run = ? ORDER BY number", (id,)
    )
    calls = connection.execute("SELECT place, value FROM calls WHERE run = ?", (id,))
    start = RunState.from_json(row[0])
    return RunState(
        agent=start.agent,
        prompt=start.prompt,
        before=start.before,
        mode=start.mode,
        plan=start.plan,
        generations=tuple(adapter(Generation).validate_json(value) for (value,) in generations),
        calls={place: adapter(CallRecord).validate_json(value) for place, value in calls},
    )


def _write(connection: sqlite3.Connection, id: str, owner: str, state: RunState) -> None:
    start = replace(state, generations=(), calls={}, pending=())
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, 0)", (id, owner, start.to_json()))
    connection.executemany(
        "INSERT INTO generations VALUES (?, ?, ?)",
        [
            (id, number, adapter(Generation).dump_json(each).decode())
            for number, each in enumerate(state.generations)
        ],
    )
    connection.executemany(
        "INSERT INTO calls VALUES (?, ?, ?)",
        [
            (id, place, adapter(CallRecord).dump_json(each).decode())
            for place, each in state.calls.items()
        ],
    )


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    try:
        write_ahead(connection, patience_s=PATIENCE_S)
        connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in a new file; refuse a file that is not ours."""

    def pragma(name: str) -> Any:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    application, version = pragma("application_id"), pragma("user_version")
    is_empty = not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    if application == APPLICATION and version == VERSION:
        return
    if application or version or not is_empty:
        raise StoreError(
            f"{str(path)!r} is not a journal of this version of agentdiff; give it another path"
        )
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
