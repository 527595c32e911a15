"""Who carries requests to one address: slots, connections that are kept, and httpx beneath them.

Clients of our own send through httpx's transport, without the client around it: its cookies,
redirects and merged settings take as long as all of the rest of a call does on this side. A client
that was injected is used whole, and so is one of our own where the environment names a proxy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol
from urllib.request import getproxies

import anyio
import httpx
from anyio.lowlevel import RunVar

KEEPALIVE_S = 120.0
"""Agents think between calls; the default of 5 s would pay for a new connection each time."""
LANE = 8
"""Requests at once on one pool of ours. Each look at a pool goes through all of its connections, for
every one of them: a hundred in one pool cost more than the requests do."""

_CONNECT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpClient(Protocol):
    """An `httpx.AsyncClient`, or httpx2's."""

    @property
    def build_request(self) -> Callable[..., Any]: ...

    @property
    def send(self) -> Callable[..., Any]: ...

    async def aclose(self) -> None: ...


class Carrier(Protocol):
    """Carries one request, and gives back the response with its body unread."""

    async def carry(
        self, method: str, url: Any, headers: Mapping[str, str], body: bytes | None
    ) -> Any:
        """Raises what the library raises."""
        ...

    async def aclose(self) -> None: ...


class _OverClient:
    """By a client: all of its settings hold."""

    def __init__(self, client: HttpClient, timeout: Any) -> None:
        self._client = client
        self._timeout = timeout

    async def carry(
        self, method: str, url: Any, headers: Mapping[str, str], body: bytes | None
    ) -> Any:
        request = self._client.build_request(
            method, url, headers=headers, content=body, timeout=self._timeout
        )
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        await self._client.aclose()


class _OverTransport:
    """By httpx's transport alone."""

    def __init__(self, transport: httpx.AsyncHTTPTransport, timeout: httpx.Timeout) -> None:
        self._transport = transport
        self._extensions = {"timeout": timeout.as_dict()}
        self._made: tuple[Mapping[str, str], httpx.Headers] | None = None

    async def carry(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], body: bytes | None
    ) -> httpx.Response:
        sent = httpx.Headers(self._headers(url, headers))
        if body is not None:
            sent["Content-Length"] = str(len(body))
        request = httpx.Request(
            method,
            url,
            headers=sent,
            stream=httpx.ByteStream(body or b""),
            extensions=self._extensions,
        )
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _headers(self, url: httpx.URL, given: Mapping[str, str]) -> httpx.Headers:
        """The headers of every request, made once: `given` is the same object nearly always."""
        if self._made is None or self._made[0] is not given:
            always = {
                "Host": url.netloc.decode("ascii"),
                "Accept": "*/*",
                "Accept-Encoding": "gzip, deflate",
                "Connection": "keep-alive",
                "User-Agent": f"agentdiff python-httpx/{httpx.__version__}",
            }
            self._made = given, httpx.Headers({**always, **given})
        return self._made[1]


@dataclass(slots=True)
class Lane:
    """A few requests at once, on connections of their own."""

    carrier: Carrier
    limit: float = math.inf
    in_use: int = 0


@dataclass(slots=True)
class _Held:
    """What one event loop holds."""

    slots: anyio.Semaphore
    lanes: list[Lane] = field(default_factory=list[Lane])


class Connections:
    """The lanes to one address, for every event loop its own.

    An injected client is one lane for everybody, and never closed here.
    """

    def __init__(
        self, url: httpx.URL, *, client: HttpClient | None, timeout_s: float, concurrency: int
    ) -> None:
        """Nothing is opened.

        Args:
            url: Whose host they lead to.
            client: Used as it is, or None for connections of our own.
            timeout_s: Seconds without a byte.
            concurrency: Requests at once; others wait for a slot, in order.
        """
        self.http_library: Any = _library_of(client)
        """httpx, or httpx2 where the client is one of its."""
        self._url = url
        self._client = client
        self._timeout = self.http_library.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
        self._concurrency = concurrency
        self._held: RunVar[_Held] = RunVar(f"agentdiff-http-{id(self)}")

    async def take(self) -> tuple[Lane, Callable[[], None]]:
        """A lane with a free place, and what gives the place back; waits for a slot."""
        held = self._here()
        slots = held.slots
        await slots.acquire()
        lane = self._lane(held)
        lane.in_use += 1

        def release() -> None:
            lane.in_use -= 1
            slots.release()

        return lane, release

    def limit_to(self, concurrency: int) -> None:
        """Let so many requests run at once, from the next one on."""
        self._concurrency = concurrency
        self._here().slots = _slots(concurrency)

    @property
    def in_use(self) -> int:
        """Requests that hold a slot now, in this event loop."""
        found = self._held.get(None)
        return 0 if found is None else sum(lane.in_use for lane in found.lanes)

    async def aclose(self) -> None:
        """Close what is ours, of this event loop. Calling it twice is safe."""
        found = self._held.get(None)
        if found is None or self._client is not None:
            return
        lanes, found.lanes = found.lanes, []
        for lane in lanes:
            await lane.carrier.aclose()

    def _here(self) -> _Held:
        try:
            return self._held.get()
        except LookupError:
            made = _Held(_slots(self._concurrency))
            self._held.set(made)
            return made

    def _lane(self, held: _Held) -> Lane:
        for lane in held.lanes:
            if lane.in_use < lane.limit:
                return lane
        if self._client is not None:
            made = Lane(_OverClient(self._client, self._timeout))
        else:
            made = Lane(self._carrier(), limit=LANE)
        held.lanes.append(made)
        return made

    def _carrier(self) -> Carrier:
        limits = httpx.Limits(keepalive_expiry=KEEPALIVE_S)
        # A proxy from the environment is not meant for a server on this machine.
        is_here = self._url.host in _LOOPBACK
        if not is_here and getproxies():
            client = httpx.AsyncClient(limits=limits, verify=self._trusted)
            return _OverClient(client, self._timeout)
        transport = httpx.AsyncHTTPTransport(
            limits=limits, trust_env=not is_here, verify=self._trusted
        )
        return _OverTransport(transport, self._timeout)

    @cached_property
    def _trusted(self) -> Any:
        """The certificates that are believed; they take 0.1 s to load, so all lanes share them."""
        is_here = self._url.host in _LOOPBACK
        return self._url.scheme == "https" and httpx.create_ssl_context(trust_env=not is_here)


def _slots(number: int) -> anyio.Semaphore:
    return anyio.Semaphore(number, max_value=number, fast_acquire=True)


def _library_of(client: HttpClient | None) -> Any:
    """The module whose errors `client` raises."""
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name == "httpx2":
            return sys.modules[name]
    return httpx
