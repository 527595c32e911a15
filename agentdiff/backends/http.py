"""All the HTTP there is: long-lived clients, an exchange, its answer as JSON.

Runs on httpx, or on an injected client of httpx2, its heir with the same names. Knows nothing of
what the objects mean, nor of when a request is worth sending again.
"""

from __future__ import annotations

import json
import math
import sys
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast

import anyio
import httpx
from anyio.lowlevel import RunVar

from agentdiff.backends import faults
from agentdiff.backends.faults import Hidden
from agentdiff.backends.sse import EventReader, EventTooLong
from agentdiff.errors import ConfigurationError, ProtocolError, TimedOut, Unavailable
from agentdiff.messages import Json

KEEPALIVE_S = 120.0
"""Agents think between calls; the default of 5 s would pay for a new connection each time."""
LANE = 8
"""Requests at once on one client of ours. Each look at a pool goes through all of its connections, for
every one of them: a hundred in one pool cost more than the requests do."""

Auth = Callable[[], Awaitable[Mapping[str, str]]]
"""Makes the headers that authorise a request; called for each, so that a token can be fresh."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DRAIN_S = 0.05
_CLOSE_S = 2.0
_UNREAD_PARTS = 64
"""Parts that may have been received and not read; a bound, not a measure."""


class HttpClient(Protocol):
    """An `httpx.AsyncClient`, or httpx2's."""

    @property
    def build_request(self) -> Callable[..., Any]: ...

    @property
    def send(self) -> Callable[..., Any]: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class _Lane:
    client: HttpClient
    limit: float = math.inf
    in_use: int = 0


class _Connections:
    """What one event loop holds: slots for requests, and the clients that carry them."""

    def __init__(self, slots: int) -> None:
        self.slots = _slots(slots)
        self.lanes: list[_Lane] = []


def _slots(number: int) -> anyio.Semaphore:
    return anyio.Semaphore(number, max_value=number, fast_acquire=True)


class Endpoint:
    """One address where an API begins.

    Makes its clients on first use; an injected one is never closed here.
    """

    def __init__(
        self,
        base_url: str,
        *,
        backend: str,
        api_key: str | None,
        key_env: str,
        key_header: str,
        headers: Mapping[str, str],
        auth: Auth | None,
        client: HttpClient | None,
        timeout_s: float,
        concurrency: int,
    ) -> None:
        """Look at the address; nothing is opened.

        Args:
            base_url: Where the API begins, mostly ending in `/v1`; a query is kept.
            backend: The name that errors bear.
            api_key: None sends none.
            key_env: The environment variable that errors about the key name.
            key_header: The header for the key; a bearer token where it is `Authorization`.
            headers: Sent with each request.
            auth: Asked for more headers before each request.
            client: Used as it is, or None for clients of our own.
            timeout_s: Seconds without a byte from the server.
            concurrency: Requests at once; others wait for a slot, in order.

        Raises:
            ConfigurationError: The address or the key cannot be used. Neither is shown.
        """
        url = _url(base_url)
        if api_key is not None and not _is_key(api_key):
            raise ConfigurationError("`api_key` is empty or holds characters that no key has")
        if api_key is not None and url.userinfo:
            raise ConfigurationError("credentials both in the address and in `api_key`; give one")
        if concurrency < 1:
            raise ConfigurationError(f"`concurrency` must be at least 1, got {concurrency!r}")
        self.backend = backend
        self.address = str(url.copy_with(userinfo=b"", query=None, fragment=None))
        self._key_env = key_env
        self._headers = dict(headers)
        self._auth = auth
        if url.userinfo:
            # What is in the address is written by whoever logs requests: a header is not.
            pair = b64encode(f"{url.username}:{url.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        if api_key is not None:
            is_bearer = key_header.lower() == "authorization"
            self._headers[key_header] = f"Bearer {api_key}" if is_bearer else api_key
        self._secrets = tuple(v for v in (api_key, url.password, *headers.values()) if v)
        self._url = url.copy_with(userinfo=b"")
        self._urls: dict[str, Any] = {}
        self._client = client
        self._library: Any = _library_of(client)
        self._timeout = self._library.Timeout(timeout_s, connect=min(timeout_s, 5.0))
        self.errors: Final[type[Exception]] = self._library.HTTPError
        """What the client raises where an exchange fails."""
        self._concurrency = concurrency
        self._connections: RunVar[_Connections] = RunVar(f"agentdiff-http-{id(self)}")
        self._is_closed = False

    @property
    def host(self) -> str:
        """The host of the address."""
        return self._url.host

    async def send(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: Mapping[str, Json] | None = None,
        *,
        prompt: tuple[str, ...] = (),
    ) -> Answer:
        """Send a request; the answer, once its status is known to be good.

        Args:
            method: `GET` has no body.
            path: Added to the path of the address; one that begins with `//` takes the place of its
                `/v1`.
            body: JSON.
            prompt: Texts in `body` that no error may repeat.

        Raises:
            BackendError: Nobody answered, or the answer is an error.
            ConfigurationError: The endpoint is closed.
        """
        if self._is_closed:
            raise ConfigurationError(f"{self.backend}: the backend is closed; make a new one")
        headers = self._headers
        hidden = Hidden(self._secrets, prompt)
        if self._auth is not None:
            made = await self._auth()
            headers = {**headers, **made}
            hidden = Hidden((*self._secrets, *made.values()), prompt)
        connections = self._opened()
        slots = connections.slots
        await slots.acquire()
        lane = self._lane(connections)
        lane.in_use += 1

        def release() -> None:
            lane.in_use -= 1
            slots.release()

        answer: Answer | None = None
        try:
            response = await self._exchange(lane.client, method, path, body, headers, hidden)
            answer = Answer(self, response, hidden, release=release)
            if not 200 <= response.status_code < 300:
                raise faults.from_status(
                    response.status_code,
                    await answer.read_all(),
                    response.headers,
                    backend=self.backend,
                    key_env=self._key_env,
                    hidden=hidden,
                )
        except BaseException:
            if answer is None:
                release()
            else:
                await answer.aclose()
            raise
        return answer

    async def fetch(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: Mapping[str, Json] | None = None,
        *,
        prompt: tuple[str, ...] = (),
    ) -> tuple[Mapping[str, Json], Mapping[str, str]]:
        """The one JSON object that answers a request, and the headers that came with it.

        Raises:
            BackendError: As `send`, or there is no JSON object.
        """
        answer = await self.send(method, path, body, prompt=prompt)
        try:
            found = await answer.next()
        finally:
            await answer.aclose()
        if found is None:
            raise ProtocolError("the answer is empty", backend=self.backend)
        return found, answer.headers

    def limit_to(self, concurrency: int) -> None:
        """Let so many requests run at once, from the next one on."""
        self._concurrency = concurrency
        self._opened().slots = _slots(concurrency)

    @property
    def in_use(self) -> int:
        """Requests that hold a slot now, in this event loop."""
        found = self._connections.get(None)
        return 0 if found is None else sum(lane.in_use for lane in found.lanes)

    async def aclose(self) -> None:
        """Close the clients that are ours. Calling it twice is safe."""
        self._is_closed = True
        found = self._connections.get(None)
        if found is None or self._client is not None:
            return
        lanes, found.lanes = found.lanes, []
        for lane in lanes:
            await lane.client.aclose()

    @contextmanager
    def reading(self, hidden: Hidden) -> Generator[None]:
        """Errors of the block, in which an answer is read, become ours."""
        try:
            yield
        except self._library.TimeoutException as error:
            raise self._timed_out(error) from None
        except (self._library.HTTPError, EventTooLong) as error:
            message = f"the answer was cut off ({_named(error, hidden)})"
            raise ProtocolError(message, backend=self.backend) from None

    async def _exchange(
        self,
        client: HttpClient,
        method: str,
        path: str,
        body: Mapping[str, Json] | None,
        headers: Mapping[str, str],
        hidden: Hidden,
    ) -> Any:
        library = self._library
        options: dict[str, Any] = {} if body is None else {"json": body}
        request = client.build_request(
            method, self._at(path), headers=headers, timeout=self._timeout, **options
        )
        try:
            return await client.send(request, stream=True)
        except library.TimeoutException as error:
            raise self._timed_out(error) from None
        except library.HTTPError as error:
            message = f"cannot reach {self.address} ({_named(error, hidden)})"
            raise Unavailable(message, backend=self.backend) from None

    def _at(self, path: str) -> Any:
        if path not in self._urls:
            begin = self._url.path.rstrip("/")
            if path.startswith("//"):
                begin, path_ = begin.removesuffix("/v1"), path[1:]
            else:
                path_ = path
            # Of the client's own kind, so that it is not parsed for each request.
            self._urls[path] = self._library.URL(str(self._url.copy_with(path=f"{begin}{path_}")))
        return self._urls[path]

    def _opened(self) -> _Connections:
        try:
            return self._connections.get()
        except LookupError:
            made = _Connections(self._concurrency)
            self._connections.set(made)
            return made

    def _lane(self, connections: _Connections) -> _Lane:
        for lane in connections.lanes:
            if lane.in_use < lane.limit:
                return lane
        made = (
            _Lane(self._make_client(), limit=LANE) if self._client is None else _Lane(self._client)
        )
        connections.lanes.append(made)
        return made

    def _make_client(self) -> HttpClient:
        is_here = self._url.host in _LOOPBACK
        return httpx.AsyncClient(
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
            # A proxy from the environment is not meant for a server on this machine, and
            # certificates, which take 0.1 s to load, are not for a connection without TLS.
            trust_env=not is_here,
            verify=not (is_here and self._url.scheme == "http"),
        )

    def _timed_out(self, error: Exception) -> TimedOut:
        message = f"no answer from {self.address} in time ({type(error).__name__})"
        return TimedOut(message, backend=self.backend)


class Answer:
    """The JSON objects of one answer: the events of a stream, or a whole body as the only one."""

    def __init__(
        self, endpoint: Endpoint, response: Any, hidden: Hidden, *, release: Callable[[], None]
    ) -> None:
        kind: str = response.headers.get("content-type", "")
        self.is_stream = "json" not in kind
        """Whether it comes as events; else it is one JSON body."""
        self.is_done = False
        """Whether `[DONE]` was seen."""
        self.headers: Final[Mapping[str, str]] = response.headers
        self._kind = kind.partition(";")[0].strip() or "no content type"
        self._response = response
        self._bytes = response.aiter_bytes()
        self._reader = EventReader()
        self._ready: deque[Mapping[str, Json]] = deque()
        self._has_ended = False
        self._is_exhausted = False
        self._is_foreign = self.is_stream
        self._endpoint = endpoint
        self._hidden = hidden
        self._release: Callable[[], None] | None = release

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
                message = f"the answer is neither JSON nor a stream of events ({self._kind})"
                raise ProtocolError(message, backend=self._endpoint.backend)
            return None
        chunk = self._ready.popleft()
        error = faults.from_chunk(chunk, backend=self._endpoint.backend, hidden=self._hidden)
        if error is not None:
            raise error
        return chunk

    async def read_all(self) -> bytes:
        """The whole body."""
        self._has_ended = True
        with self._endpoint.reading(self._hidden):
            body = b"".join([part async for part in self._bytes])
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
            if self._is_exhausted:
                return  # the connection went back with the last byte
            with anyio.move_on_after(_CLOSE_S, shield=True):
                if self.is_done:
                    await self._drain()
                if not self._is_exhausted:
                    await self._unwind()
                    await self._response.aclose()
        finally:
            release()

    async def _read_events(self) -> None:
        with self._endpoint.reading(self._hidden):
            data = await anext(self._bytes, None)
            events = self._reader.close() if data is None else self._reader.feed(data)
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
                "the answer is not a JSON object, though it says so", backend=self._endpoint.backend
            )
        self._ready.append(cast("dict[str, Json]", chunk))

    async def _drain(self) -> None:
        # The end of the body follows `[DONE]` at once; unread, it would cost the connection.
        with anyio.move_on_after(_DRAIN_S):
            try:
                while await anext(self._bytes, None) is not None:
                    pass
                self._is_exhausted = True
            except self._endpoint.errors:
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
                except self._endpoint.errors:
                    return
            if scope.cancelled_caught:
                return


def host_of(url: str) -> str:
    """The host that `url` names; empty where it names none."""
    try:
        return httpx.URL(url.strip()).host
    except httpx.InvalidURL:
        return ""


def _library_of(client: HttpClient | None) -> Any:
    """The module whose errors `client` raises: httpx, or httpx2 where the client is one of its."""
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name == "httpx2":
            return sys.modules[name]
    return httpx


def _url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            "the base URL must begin with http:// or https:// and name a host, "
            "as in http://localhost:8000/v1"
        )
    return url.copy_with(fragment=None)


def _loads(text: str | bytes) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_key(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _named(error: Exception, hidden: Hidden) -> str:
    words = str(error)
    is_said = words and not hidden.is_in(words)  # some quote a header or what the server sent
    return f"{type(error).__name__}: {words}" if is_said else type(error).__name__
