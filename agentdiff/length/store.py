"""Learned lengths in a sqlite file that several processes may use at once: counts, no text."""

from __future__ import annotations

import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from agentdiff.errors import StoreError
from agentdiff.generation import StepKind
from agentdiff.length.histogram import BINS, Node
from agentdiff.length.known import Control, Known

VERSION = 1
"""Layout of the tables (`PRAGMA user_version`)."""
APPLICATION = 0x61646C31
"""Marks the file as ours (`PRAGMA application_id`)."""
PATIENCE_S = 5.0
"""How long to wait for another process that is writing."""
_MASS = struct.Struct(f"<{BINS}d")
_TABLES = f"""
CREATE TABLE nodes (
    key TEXT PRIMARY KEY, seen INTEGER NOT NULL, floor INTEGER NOT NULL, mass BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE controls (
    kind TEXT PRIMARY KEY, log_price REAL NOT NULL, seen INTEGER NOT NULL, missed INTEGER NOT NULL
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""


class Store:
    """Learned lengths in the file at `path`.

    The file is created or opened by the first call that needs it. Every call is one transaction, so
    each process sees what the others have learned and no observation is lost. Every method raises
    `StoreError` when the file cannot be used; nothing of a failed call is kept. May be used from
    any thread.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def read(self, keys: Sequence[str], kind: StepKind) -> Known:
        """What is known at these keys and about this kind."""
        with self._transaction("DEFERRED") as connection:
            return _read(connection, keys, kind)

    def update(self, keys: Sequence[str], kind: StepKind, learn: Callable[[Known], Known]) -> Known:
        """Put `learn(what is known at these keys)` in its place, and return it."""
        with self._transaction("IMMEDIATE") as connection:
            newer = learn(_read(connection, keys, kind))
            _write(connection, newer)
            return newer

    def everything(self) -> Known:
        """All that is known."""
        with self._transaction("DEFERRED") as connection:
            return _read_all(connection)

    def replace(self, known: Known) -> None:
        """Forget everything and keep `known` instead."""
        with self._transaction("IMMEDIATE") as connection:
            connection.execute("DELETE FROM nodes")
            connection.execute("DELETE FROM controls")
            _write(connection, known)

    def close(self) -> None:
        """Close the file; a later call opens it again. Calling it twice is safe."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _transaction(self, mode: str) -> Generator[sqlite3.Connection]:
        with self._lock, self._saying_what_failed():
            if self._connection is None:
                self._connection = _connect(self.path)
            connection = self._connection
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
        except (sqlite3.Error, OSError, struct.error) as error:
            raise StoreError(
                f"the length store {str(self.path)!r} cannot be used: {_reason(error)}"
            ) from error


def open_store(path: str | Path) -> Store:
    """Open the store at `path` now, creating it (and its folder) where it does not exist.

    Raises `StoreError` when the file is locked, broken, not ours or written by a newer version. To
    open it only when it is needed, make a `Store`.
    """
    store = Store(path)
    store.everything()
    return store


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    try:
        _write_ahead(connection)
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


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging.

    sqlite does not wait for a lock here (two processes that open a new file at once would wait for
    each other), so this does.
    """
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
        time.sleep(0.005)


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables in a new file; refuse a file that is not ours."""
    application, version = (
        _pragma(connection, "application_id"),
        _pragma(connection, "user_version"),
    )
    if application == APPLICATION:
        if version != VERSION:
            raise sqlite3.DatabaseError(
                f"its layout is version {version} and this agentdiff knows {VERSION}"
            )
        return
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] or application:
        raise sqlite3.DatabaseError("it is a database of another program")
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _read(connection: sqlite3.Connection, keys: Sequence[str], kind: StepKind) -> Known:
    marks = ",".join("?" * len(keys))
    nodes = connection.execute(
        f"SELECT key, seen, floor, mass FROM nodes WHERE key IN ({marks})", tuple(keys)
    )
    controls = connection.execute(
        "SELECT kind, log_price, seen, missed FROM controls WHERE kind = ?", (kind,)
    )
    return _known(nodes, controls)


def _read_all(connection: sqlite3.Connection) -> Known:
    nodes = connection.execute("SELECT key, seen, floor, mass FROM nodes")
    controls = connection.execute("SELECT kind, log_price, seen, missed FROM controls")
    return _known(nodes, controls)


def _known(nodes: sqlite3.Cursor, controls: sqlite3.Cursor) -> Known:
    return Known(
        nodes={
            str(key): Node(mass=_MASS.unpack(mass), seen=seen, floor=floor)
            for key, seen, floor, mass in cast("Iterator[tuple[Any, ...]]", nodes)
        },
        controls={
            kind: Control(log_price=log_price, seen=seen, missed=missed)
            for kind, log_price, seen, missed in cast("Iterator[tuple[Any, ...]]", controls)
        },
    )


def _write(connection: sqlite3.Connection, known: Known) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO nodes (key, seen, floor, mass) VALUES (?, ?, ?, ?)",
        [(key, node.seen, node.floor, _MASS.pack(*node.mass)) for key, node in known.nodes.items()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO controls (kind, log_price, seen, missed) VALUES (?, ?, ?, ?)",
        [
            (kind, control.log_price, control.seen, control.missed)
            for kind, control in known.controls.items()
        ],
    )


def _reason(error: Exception) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"another process holds it for more than {PATIENCE_S:g} s"
    if isinstance(error, sqlite3.DatabaseError) and (
        "malformed" in text or "not a database" in text
    ):
        return f"{text}; delete or move the file to start anew"
    if isinstance(error, struct.error):
        return "a row is broken; delete or move the file to start anew"
    return text
