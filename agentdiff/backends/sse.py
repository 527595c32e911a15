"""Server-sent events: bytes in, the `data` of each event out.

Knows nothing of JSON, of HTTP, or of what the data mean. Comments, `event`, `id` and `retry` are
passed over.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""An event longer than this is refused: no chunk of a chat completion comes near it."""

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a `\r` at the very end may be half of a `\r\n`


class EventTooLong(ValueError):
    """One event is longer than `MAX_EVENT_BYTES`."""


class EventReader:
    """Cuts a stream of bytes into events; where the reads are cut makes no difference."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._is_start = True

    def feed(self, data: bytes) -> list[str]:
        """The events that `data` completes.

        Raises:
            EventTooLong: An event does not end within `MAX_EVENT_BYTES`.
        """
        *lines, self._rest = _LINE_END.split(self._rest + data)
        events = self._take(lines)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def close(self) -> list[str]:
        """The event that the end of the stream left without its blank line, if there is one."""
        last = self._rest.removesuffix(b"\r")
        self._rest = b""
        return self._take([last, b""])

    def _take(self, lines: list[bytes]) -> list[str]:
        events: list[str] = []
        for line in lines:
            if self._is_start:
                line, self._is_start = line.removeprefix(b"\xef\xbb\xbf"), False
            if line:
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value.removeprefix(b" "))
                    self._size += len(value)
            elif self._data:
                events.append(b"\n".join(self._data).decode("utf-8", errors="replace"))
                self._data.clear()
                self._size = 0
        return events
