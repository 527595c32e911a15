"""One address where an API begins: requests to it, and what goes wrong on the way.

Runs on httpx, or on an injected client of httpx2, its heir with the same names. Knows nothing of
what the objects mean, nor of when a request is worth sending again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal

import httpx

from agentdiff.backends import faults
from agentdiff.backends.answer import Answer
from agentdiff.backends.connections import Connections, HttpClient
from agentdiff.backends.faults import Hidden, Texts
from agentdiff.backends.loose import as_json
from agentdiff.errors import BackendError, ConfigurationError, ProtocolError, TimedOut, Unavailable
from agentdiff.messages import Json

__all__ = ["Answer", "Auth", "Endpoint", "HttpClient", "host_of"]

Auth = Callable[[], Awaitable[Mapping[str, str]]]
"""Makes the headers that authorise a request; called for each, so that a token can be fresh."""


class Endpoint:
    """One address where an API begins.

    Opens connections on first use; an injected client is never closed here.
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
            client: Used as it is, or None for connections of our own.
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
        self._with_body = {"Content-Type": "application/json", **self._headers}
        self._secrets = tuple(v for v in (api_key, url.password, *headers.values()) if v)
        self._url = url.copy_with(userinfo=b"")
        self._urls: dict[str, Any] = {}
        self._connections = Connections(
            self._url, client=client, timeout_s=timeout_s, concurrency=concurrency
        )
        self._is_closed = False

    @property
    def host(self) -> str:
        """The host of the address."""
        return self._url.host

    async def send(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: bytes | None = None,
        *,
        prompt: Texts = (),
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
        headers = self._headers if body is None else self._with_body
        hidden = Hidden(self._secrets, prompt)
        if self._auth is not None:
            made = await self._auth()
            headers = {**headers, **made}
            hidden = Hidden((*self._secrets, *made.values()), prompt)
        lane, release = await self._connections.take()
        answer: Answer | None = None
        library = self._connections.http_library
        try:
            try:
                response = await lane.carrier.carry(method, self._at(path), headers, body)
            except library.TimeoutException as error:
                raise self._timed_out(error) from None
            except library.HTTPError as error:
                message = f"cannot reach {self.address} ({_named(error, hidden)})"
                raise Unavailable(message, backend=self.backend) from None
            answer = Answer(
                response,
                backend=self.backend,
                errors=library.HTTPError,
                fault=partial(self._cut_off, hidden=hidden),
                hidden=hidden,
                release=release,
            )
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
        prompt: Texts = (),
    ) -> tuple[Mapping[str, Json], Mapping[str, str]]:
        """The one JSON object that answers a request, and the headers that came with it.

        Raises:
            BackendError: As `send`, or there is no JSON object.
        """
        sent = None if body is None else as_json(body).encode("utf-8", "replace")
        answer = await self.send(method, path, sent, prompt=prompt)
        try:
            found = await answer.next()
        finally:
            await answer.aclose()
        if found is None:
            raise ProtocolError("the answer is empty", backend=self.backend)
        return found, answer.headers

    def limit_to(self, concurrency: int) -> None:
        """Let so many requests run at once, from the next one on."""
        self._connections.limit_to(concurrency)

    @property
    def in_use(self) -> int:
        """Requests that hold a slot now, in this event loop."""
        return self._connections.in_use

    async def aclose(self) -> None:
        """Close the connections that are ours. Calling it twice is safe."""
        self._is_closed = True
        await self._connections.aclose()

    def _at(self, path: str) -> Any:
        if path not in self._urls:
            begin = self._url.path.rstrip("/")
            if path.startswith("//"):
                begin, path_ = begin.removesuffix("/v1"), path[1:]
            else:
                path_ = path
            url = str(self._url.copy_with(path=f"{begin}{path_}"))
            # Of the client's own kind, so that it is not parsed for each request.
            self._urls[path] = self._connections.http_library.URL(url)
        return self._urls[path]

    def _cut_off(self, error: Exception, *, hidden: Hidden) -> BackendError:
        if isinstance(error, self._connections.http_library.TimeoutException):
            return self._timed_out(error)
        message = f"the answer was cut off ({_named(error, hidden)})"
        return ProtocolError(message, backend=self.backend)

    def _timed_out(self, error: Exception) -> TimedOut:
        message = f"no answer from {self.address} in time ({type(error).__name__})"
        return TimedOut(message, backend=self.backend)


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


def _is_key(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _named(error: Exception, hidden: Hidden) -> str:
    words = str(error)
    is_said = words and not hidden.is_in(words)  # some quote a header or what the server sent
    return f"{type(error).__name__}: {words}" if is_said else type(error).__name__
