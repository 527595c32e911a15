"""What the tools remember: a list of records in a JSON file that people can read and mend."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from agentdiff.errors import ToolFailed

FOLDER: Final = ".agentdiff"

# One for the process: two agents may work in the same folder.
_LOCK: Final = threading.Lock()


class Record(BaseModel):
    """One entry of a file. Fields that we do not know are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)


R = TypeVar("R", bound=Record)


class Store(Generic[R]):
    """The records of `<root>/.agentdiff/<name>.json`.

    A file that cannot be read is never overwritten. Writing replaces the whole file at once, so a
    reader or a crash never sees half of it; calls within this process do not lose each other's
    records.
    """

    def __init__(self, root: Path, name: str, record: type[R]) -> None:
        self._root = root
        self._path = root / FOLDER / f"{name}.json"
        self._shown = f"{FOLDER}/{name}.json"
        self._record = record
        self._entries = TypeAdapter(list[object])

    def read(self) -> list[R]:
        """All records, oldest first; none where there is no file.

        Raises:
            ToolFailed: The file cannot be read, or holds something else.
        """
        self._check_inside()
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ToolFailed(f"cannot read {self._shown}: {error.strerror or error}") from None
        try:
            entries = self._entries.validate_json(content)
            return [self._record.model_validate(entry) for entry in entries]
        except ValidationError as error:
            raise ToolFailed(
                f"{self._shown} is broken ({_reason(error)}); "
                "mend it or move it away, nothing was changed"
            ) from None

    def add(self, record: R) -> None:
        """Append one record.

        Raises:
            ToolFailed: The file is broken, or cannot be written; it is as it was.
        """
        with _LOCK:
            self._write([*self.read(), record])

    def _write(self, records: list[R]) -> None:
        entries = [record.model_dump(mode="json") for record in records]
        content = f"{json.dumps(entries, indent=2, ensure_ascii=False)}\n".encode()
        try:
            self._path.parent.mkdir(exist_ok=True)
            _replace(self._path, content)
        except OSError as error:
            raise ToolFailed(f"cannot write {self._shown}: {error.strerror or error}") from None

    def _check_inside(self) -> None:
        try:
            is_inside = self._path.resolve().is_relative_to(self._root.resolve())
        except (OSError, RuntimeError):
            is_inside = False
        if not is_inside:
            raise ToolFailed(f"{self._shown} leads outside the working folder; remove the link")


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join([*(str(part) for part in first["loc"]), first["msg"]])


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
