"""An answer of a server as it is read: the JSON objects in it, and the connection given back.

Knows nothing of what the objects mean.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, cast

import anyio

from agentdiff.backends import faults
from agentdiff.backends.faults import Hidden
from agentdiff.backends.sse import EventReader, EventTooLong
from agentdiff.errors import BackendError, ProtocolError
from agentdiff.messages import Json

_DRAIN_S = 0.05
_CLOSE_S = 2.0
_UNREAD_PARTS = 64
"""Parts that may have been received and not read; a bound, not a measure."""
_IS_PLAIN: Final = ("", "identity")


class Answer:
    """The JSON objects of one answer: the events of a stream, or a whole body as the only one."""

    def __init__(
        self,
        response: Any,
        *,
        backend: str,
        errors: type[Exception],
        fault: Callable[[Exception], BackendError],
        hidden: Hidden,
        release: Callable[[], None],
    ) -> None:
        """Read a response whose body is unread.

        Args:
            response: Of httpx, or of httpx2.
            backend: The name that errors bear.
            errors: What its library raises where the exchange fails.
            fault: What such an error is called here.
            hidden: Texts that no error may repeat.
            release: Gives the slot back.
        """
        self.headers: Mapping[str, str] = response.headers
        self._kind = self.headers.get("content-type", "")
        self.is_stream = "json" not in self._kind
        """Whether it comes as events; else it is one JSON body."""
        self.is_done = False
        """Whether `[DONE]` was seen."""
        self._response = response
        self._backend = backend
        self._errors = (errors, EventTooLong)
        self._fault = fault
        self._hidden = hidden
        self._release: Callable[[], None] | None = release
        # What is not squeezed is read as it comes. A test's transport may hand over a whole body, which
        # is no longer there to be read raw.
        is_plain = self.headers.get("content-encoding", "") in _IS_PLAIN
        is_raw = is_plain and not response.is_stream_consumed
        self._bytes: AsyncIterator[bytes] = (
            aiter(response.stream) if is_raw else response.aiter_bytes()
        )
        self._reader = EventReader()
        self._ready: deque[Mapping[str, Json]] = deque()
        self._has_ended = False
        self._is_exhausted = False
        self._is_foreign = self.is_stream

    async def next(self) -> Mapping[str, Json] | None:
        """The next object; None when there are no more.

        Raises:
            BackendError: It reports an error, the connection broke, or it is not the protocol.
        """
        while not self._ready and not self._has_ended:
            if self.is_stream:
                await self._read_events()
            else:
                self._take(await self.read_all())
        if not self._ready:
            if self._is_foreign:
                kind = self._kind.partition(";")[0].strip() or "no content type"
                message = f"the answer is neither JSON nor a stream of events ({kind})"
                raise ProtocolError(message, backend=self._backend)
            return None
        chunk = self._ready.popleft()
        error = faults.from_chunk(chunk, backend=self._backend, hidden=self._hidden)
        if error is not None:
            raise error
        return chunk

    async def read_all(self) -> bytes:
        """The whole body.

        Raises:
            BackendError: The connection broke.
        """
        self._has_ended = True
        try:
            body = b"".join([part async for part in self._bytes])
            await self._response.aclose()
        except self._errors as error:
            raise self._fault(error) from None
        self._is_exhausted = True
        return body

    async def aclose(self) -> None:
        """Give the connection back, or close it where the answer has not ended.

        Runs to its end under cancellation too. Calling it twice is safe.
        """
        if self._release is None:
            return
        release, self._release = self._release, None
        try:
            if self.is_done and not self._is_exhausted:
                # The end of the body follows `[DONE]` at once; unread, it would cost the connection.
                with anyio.move_on_after(_DRAIN_S, shield=True):
                    await self._drain()
            if not self._is_exhausted:  # else the connection went back with the last byte
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await self._unwind()
                    await self._response.aclose()
        finally:
            release()

    async def _read_events(self) -> None:
        try:
            data = await anext(self._bytes, None)
            if data is None:
                await self._response.aclose()
            events = self._reader.close() if data is None else self._reader.feed(data)
        except self._errors as error:
            raise self._fault(error) from None
        self._has_ended = self._is_exhausted = data is None
        for event in events:
            if event.strip() == "[DONE]":
                self._is_foreign = False
                self.is_done = self._has_ended = True
                return
            chunk = _loads(event)
            if isinstance(chunk, dict):  # `data: : keepalive` and the like are passed over
                self._is_foreign = False
                self._ready.append(cast("dict[str, Json]", chunk))

    def _take(self, body: bytes) -> None:
        chunk = _loads(body)
        if not isinstance(chunk, dict):
            raise ProtocolError(
                "the answer is not a JSON object, though it says so", backend=self._backend
            )
        self._ready.append(cast("dict[str, Json]", chunk))

    async def _drain(self) -> None:
        try:
            while await anext(self._bytes, None) is not None:
                pass
            await self._response.aclose()
            self._is_exhausted = True
        except self._errors:
            pass  # all that matters has been read

    async def _unwind(self) -> None:
        # httpx reads through a stack of generators, of which only the outermost can be closed from
        # here; cancelling the read at the bottom ends them all, now and not at the next collection.
        for _ in range(_UNREAD_PARTS):
            with anyio.CancelScope() as scope:
                scope.cancel()
                try:
                    if await anext(self._bytes, None) is None:
                        return
                except self._errors:
                    return
            if scope.cancelled_caught:
                return


def _loads(text: str | bytes) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
