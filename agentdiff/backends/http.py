"""All the HTTP there is: a long-lived client, an exchange, its answer as JSON, when to retry.

Knows nothing of what the objects mean.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

import anyio
import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_random_exponential,
)

from agentdiff.backends import faults
from agentdiff.backends.faults import Hidden
from agentdiff.backends.sse import EventReader, EventTooLong
from agentdiff.errors import (
    BackendError,
    ConfigurationError,
    ProtocolError,
    TimedOut,
    Unavailable,
)
from agentdiff.messages import Json

KEEPALIVE_S = 120.0
"""Agents think between calls; the default of 5 s would pay for a new connection each time."""
JITTER_S = 0.5
"""The first pause is up to this long; the bound doubles with each further one, 16-fold at most."""
LONGEST_WAIT_S = 60.0
"""A server that asks to wait longer is not asked again."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DRAIN_S = 0.05
_CLOSE_S = 2.0
_UNREAD_PARTS = 64
"""Parts that may have been received and not read; a bound, not a measure."""
_T = TypeVar("_T")


class Endpoint:
    """One address that takes JSON by POST.

    Makes its client on first use; an injected one is never closed here.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        backend: str,
        api_key: str | None,
        key_env: str,
        client: httpx.AsyncClient | None,
        timeout_s: float,
    ) -> None:
        """Look at the address; nothing is opened.

        Args:
            base_url: Where the API begins, mostly ending in `/v1`; a query is kept.
            path: What is added to the path of `base_url`.
            backend: The name that errors bear.
            api_key: Sent as a bearer token; None sends none.
            key_env: The environment variable that errors about the key name.
            client: Used as it is, or None for one of our own.
            timeout_s: Seconds without a byte from the server.

        Raises:
            ConfigurationError: The address or the key cannot be used. Neither is shown.
        """
        url = _url(base_url)
        if api_key is not None and not _is_key(api_key):
            raise ConfigurationError("`api_key` is empty or holds characters that no key has")
        if api_key is not None and url.userinfo:
            raise ConfigurationError("credentials both in the address and in `api_key`; give one")
        self.backend = backend
        self.address = str(url.copy_with(userinfo=b"", query=None, fragment=None))
        self.api_key = api_key
        self._key_env = key_env
        self._url = url.copy_with(path=f"{url.path.rstrip('/')}{path}")
        self._timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0))
        self._owned: httpx.AsyncClient | None = None
        self._client = client
        self._is_closed = False

    async def post(self, body: Mapping[str, Json], *, hidden: Hidden) -> Answer:
        """Send `body`; the answer, once its status is known to be good.

        Raises:
            BackendError: Nobody answered, or the answer is an error.
            ConfigurationError: The endpoint is closed.
        """
        client = self._open_client()
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        request = client.build_request(
            "POST", self._url, json=dict(body), headers=headers, timeout=self._timeout
        )
        try:
            response = await client.send(request, stream=True)
        except httpx.TimeoutException as error:
            raise self._timed_out(error) from None
        except httpx.HTTPError as error:
            message = f"cannot reach {self.address} ({_named(error)})"
            raise Unavailable(message, backend=self.backend) from None
        answer = Answer(response, self, hidden)
        try:
            if not response.is_success:
                raise await self._fault(response, answer, hidden)
        except BaseException:
            await answer.aclose()
            raise
        return answer

    async def aclose(self) -> None:
        """Close the client, if it is ours. Calling it twice is safe."""
        self._is_closed = True
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.aclose()

    @contextmanager
    def reading(self) -> Generator[None]:
        """Errors of the block, in which an answer is read, become ours."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise self._timed_out(error) from None
        except (httpx.HTTPError, EventTooLong) as error:
            message = f"the answer was cut off ({_named(error)})"
            raise ProtocolError(message, backend=self.backend) from None

    def _open_client(self) -> httpx.AsyncClient:
        if self._is_closed:
            raise ConfigurationError(f"{self.backend}: the backend is closed; make a new one")
        if self._client is not None:
            return self._client
        if self._owned is None:
            is_here = self._url.host in _LOOPBACK
            self._owned = httpx.AsyncClient(
                limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
                # A proxy from the environment is not meant for a server on this machine, and
                # certificates, which take 0.1 s to load, are not for a connection without TLS.
                trust_env=not is_here,
                verify=not (is_here and self._url.scheme == "http"),
            )
        return self._owned

    async def _fault(
        self, response: httpx.Response, answer: Answer, hidden: Hidden
    ) -> BackendError:
        return faults.from_status(
            response.status_code,
            await answer.read_all(),
            response.headers,
            backend=self.backend,
            key_env=self._key_env,
            hidden=hidden,
        )

    def _timed_out(self, error: Exception) -> TimedOut:
        message = f"no answer from {self.address} in time ({type(error).__name__})"
        return TimedOut(message, backend=self.backend)


class Answer:
    """The JSON objects of one answer: the events of a stream, or a whole body as the only one."""

    def __init__(self, response: httpx.Response, endpoint: Endpoint, hidden: Hidden) -> None:
        kind = response.headers.get("content-type", "")
        self.is_stream = "json" not in kind
        """Whether it comes as events; else it is one JSON body."""
        self.is_done = False
        """Whether `[DONE]` was seen."""
        self._kind = kind.partition(";")[0].strip() or "no content type"
        self._response = response
        self._bytes = response.aiter_bytes()
        self._reader = EventReader()
        self._ready: deque[Mapping[str, Json]] = deque()
        self._has_ended = False
        self._is_foreign = self.is_stream
        self._endpoint = endpoint
        self._hidden = hidden

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
        with self._endpoint.reading():
            return b"".join([part async for part in self._bytes])

    async def aclose(self) -> None:
        """Give the connection back, or close it where the answer has not ended.

        Runs to its end under cancellation too. Calling it twice is safe.
        """
        with anyio.move_on_after(_CLOSE_S, shield=True):
            if self.is_done:
                await self._drain()
            await self._unwind()
            await self._response.aclose()

    async def _read_events(self) -> None:
        with self._endpoint.reading():
            data = await anext(self._bytes, None)
            events = self._reader.close() if data is None else self._reader.feed(data)
        self._has_ended = data is None
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
            except httpx.HTTPError:
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
                except httpx.HTTPError:
                    return
            if scope.cancelled_caught:
                return


async def retrying(attempt: Callable[[], Awaitable[_T]], *, max_attempts: int, left_s: float) -> _T:
    """Call `attempt` until it returns, with full jitter between, or as long as the server asked.

    Only errors that are `retryable` are tried again, at most `max_attempts` calls in all, and only
    where the next one would begin within `left_s` seconds; else the last error is raised at once.
    """
    jitter = wait_random_exponential(multiplier=JITTER_S, max=16 * JITTER_S)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, BackendError) else None
        return jitter(state) if asked is None else asked

    def is_enough(state: RetryCallState) -> bool:
        pause = state.upcoming_sleep
        return (
            state.attempt_number >= max_attempts
            or pause > LONGEST_WAIT_S
            or (state.seconds_since_start or 0.0) + pause >= left_s
        )

    loop = AsyncRetrying(
        retry=retry_if_exception(lambda e: isinstance(e, BackendError) and e.retryable),
        wait=wait,
        stop=is_enough,
        sleep=anyio.sleep,
        reraise=True,
    )
    return await loop(attempt)


@contextmanager
def within(deadline: float, *, backend: str) -> Generator[None]:
    """Raise `TimedOut` where the block has not ended at `deadline` (by anyio's clock)."""
    with anyio.CancelScope(deadline=deadline) as scope:
        yield
    if scope.cancelled_caught:
        raise TimedOut("no answer within the request's `deadline_s`", backend=backend)


def host_of(url: str) -> str:
    """The host that `url` names; empty where it names none."""
    try:
        return httpx.URL(url.strip()).host
    except httpx.InvalidURL:
        return ""


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


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
