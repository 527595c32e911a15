"""A server as its users see it: requests within the limits, tried again, each answer in one piece.

Between `http`, which carries one exchange, and the backends, which know what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import anyio

from agentdiff.backends.faults import Texts
from agentdiff.backends.http import Answer, Auth, Endpoint, HttpClient
from agentdiff.backends.limiter import RateLimit, RateLimiter, Reservation
from agentdiff.backends.profiles import EngineProfile
from agentdiff.backends.reply import Reply
from agentdiff.backends.retry import LONGEST_WAIT_S, retrying, within
from agentdiff.backends.wire import Asked
from agentdiff.errors import BackendError, ProtocolError, RateLimited
from agentdiff.generation import Enforcement
from agentdiff.messages import Json

DEFAULT_TOKENS = 512
"""Reserved for an answer whose request sets no cap."""


class Service:
    """One endpoint with its limits."""

    def __init__(
        self,
        base_url: str,
        *,
        backend: str,
        profile: EngineProfile,
        api_key: str | None,
        headers: Mapping[str, str],
        auth: Auth | None,
        client: HttpClient | None,
        timeout_s: float,
        max_attempts: int,
        concurrency: int,
        limit: RateLimit | RateLimiter | None,
    ) -> None:
        self.endpoint = Endpoint(
            base_url,
            backend=backend,
            api_key=api_key,
            key_env=profile.key_env,
            key_header=profile.key_header,
            headers=headers,
            auth=auth,
            client=client,
            timeout_s=timeout_s,
            concurrency=concurrency,
        )
        self.alone = anyio.Lock()
        """For what is done once, by whoever comes first."""
        self._backend = backend
        self._max_attempts = max_attempts
        self._limiter = RateLimiter(limit) if isinstance(limit, RateLimit) else limit

    @property
    def in_use(self) -> int:
        """Requests under way."""
        return self.endpoint.in_use

    async def call(
        self,
        asked: Asked,
        body: bytes,
        *,
        prompt: Texts,
        deadline: float,
        is_held: bool,
        may_retry: bool,
        count: Callable[[], None],
    ) -> Call:
        """The answer to a chat completion, tried again until its first text has come.

        Args:
            asked: What is asked for.
            body: It, as it is sent.
            prompt: Texts that no error may repeat.
            deadline: By anyio's clock.
            is_held: Read it to its end, so that whatever fails on the way can be tried again.
            may_retry: Whether it is tried again at all.
            count: Called at each attempt.

        Raises:
            BackendError: The last attempt's.
        """

        async def attempt() -> Call:
            count()
            reservation = await self._reserve(asked.cap or DEFAULT_TOKENS, deadline)
            try:
                answer = await self.endpoint.send("POST", "/chat/completions", body, prompt=prompt)
            except BackendError as error:
                self._refused(error, reservation)
                raise
            call = Call(answer, Reply(self._backend), asked, reservation)
            try:
                await call.read_ahead(is_held=is_held)
            except BaseException:
                await call.aclose()
                raise
            return call

        most = self._max_attempts if may_retry else 1
        return await retrying(attempt, max_attempts=most, deadline=deadline)

    async def fetch(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: Mapping[str, Json] | None = None,
        *,
        prompt: Texts = (),
        tokens: int | None = None,
        deadline: float = math.inf,
        count: Callable[[], None] = lambda: None,
    ) -> Mapping[str, Json]:
        """The one JSON object that answers a request, tried again.

        Raises:
            BackendError: The last attempt's.
        """

        async def attempt() -> Mapping[str, Json]:
            count()
            reservation = await self._reserve(tokens, deadline)
            try:
                found, _ = await self.endpoint.fetch(method, path, body, prompt=prompt)
            except BackendError as error:
                self._refused(error, reservation)
                raise
            return found

        with within(deadline, backend=self._backend):
            return await retrying(attempt, max_attempts=self._max_attempts, deadline=deadline)

    async def aclose(self) -> None:
        """Close the connections that are ours. Calling it twice is safe."""
        await self.endpoint.aclose()

    async def _reserve(self, tokens: int | None, deadline: float) -> Reservation | None:
        if self._limiter is None:
            return None
        return await self._limiter.reserve(tokens, deadline=deadline, backend=self._backend)

    def _refused(self, error: BackendError, reservation: Reservation | None) -> None:
        if self._limiter is None or reservation is None:
            return
        reservation.settle(0)
        wait_s = error.retry_after_s
        if isinstance(error, RateLimited) and wait_s is not None and wait_s <= LONGEST_WAIT_S:
            self._limiter.pause(wait_s)


class Call:
    """A chat completion under way: the answer, what was read of it, and the text read ahead."""

    def __init__(
        self, answer: Answer, reply: Reply, asked: Asked, reservation: Reservation | None
    ) -> None:
        self.reply = reply
        self.asked = asked
        self.text: str | None = None
        """What was read ahead and not yet taken."""
        self.is_over = False
        """Whether the answer has been read to its end."""
        self.enforcement: Enforcement | None = None
        """What the way it was asked for enforces, where that is more than the profile says."""
        self._answer = answer
        self._reservation = reservation

    async def read_ahead(self, *, is_held: bool) -> None:
        """Read up to the first text, or to the end.

        Raises:
            BackendError: It broke off; carries what had come.
        """
        texts: list[str] = []
        try:
            while (text := await self._read()) is not None:
                texts.append(text)
                if not is_held:
                    break
        except BackendError as error:
            error.partial = "".join(texts)
            raise
        self.text = "".join(texts) or None

    async def next(self) -> str | None:
        """The next text; None when the answer is complete.

        Raises:
            ProtocolError: It ended before it was complete.
        """
        if self.text:
            text, self.text = self.text, None
            return text
        return None if self.is_over else await self._read()

    def settle(self) -> None:
        """Tell the limiter what was used. Where nobody knows, all that was reserved counts."""
        if self._reservation is not None:
            self._reservation.settle(self.reply.usage.output_tokens)

    async def aclose(self) -> None:
        """Give the connection and the slot back. Calling it twice is safe."""
        await self._answer.aclose()

    async def _read(self) -> str | None:
        while (chunk := await self._answer.next()) is not None:
            if text := self.reply.add(chunk):
                return text
        if not self._is_complete:
            message = "the stream was cut off" if self._answer.is_stream else "no `choices`"
            raise ProtocolError(message, backend=self.reply.backend)
        self.is_over = True
        return None

    @property
    def _is_complete(self) -> bool:
        if self.reply.finish_reason is not None:
            return True
        return self.reply.has_choice and (self._answer.is_done or not self._answer.is_stream)
