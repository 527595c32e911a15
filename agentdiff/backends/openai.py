"""Any server that speaks OpenAI's chat completions.

The path: `Request` → body (`wire`) → exchange (`http`, `sse`) → chunks → `Reply` (`wire`) → events.
What the server says it enforced is checked (`validation`). Nothing here knows one engine from
another: that is in the profile.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio

from agentdiff.backends import wire
from agentdiff.backends.faults import Hidden
from agentdiff.backends.http import Answer, Endpoint, host_of, retrying, within
from agentdiff.backends.profiles import GENERIC, OPENAI, EngineProfile
from agentdiff.backends.validation import arguments_hold, check_output, validator
from agentdiff.errors import ConfigurationError, OutputInvalid, ProtocolError
from agentdiff.generation import (
    Capabilities,
    Commit,
    Draft,
    Enforcement,
    Event,
    Finish,
    FinishReason,
    Request,
    Stats,
)
from agentdiff.messages import ToolCall, Usage
from agentdiff.telemetry import traced

if TYPE_CHECKING:
    import httpx
    from jsonschema.protocols import Validator


class OpenAIBackend:
    """Chat completions over one long-lived client.

    A schema is sent as `response_format` and the output validated here: `native` when it holds.
    Calls are retried while nothing of the answer has been handed on.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        profile: EngineProfile = GENERIC,
        client: httpx.AsyncClient | None = None,
        name: str | None = None,
        streaming: bool = True,
        timeout_s: float = 60.0,
        max_attempts: int = 3,
    ) -> None:
        """Nothing is opened before the first request.

        Args:
            base_url: Where the API begins, such as `http://localhost:8000/v1`.
            model: The model's name on that server.
            api_key: Sent as a bearer token; None sends none.
            profile: What the engine takes and gives.
            client: Used as it is and never closed here; for proxies, certificates and tests.
            name: The backend's name; None for `openai:<model>`.
            streaming: Ask for a stream of events; otherwise the answer is one commit.
            timeout_s: Seconds without a byte from the server.
            max_attempts: Calls for one request, the first included.

        Raises:
            ConfigurationError: The address, the model or the key cannot be used.
        """
        if not model.strip():
            raise ConfigurationError("`model` is empty; name a model that the server has")
        if max_attempts < 1:
            raise ConfigurationError(f"`max_attempts` must be at least 1, got {max_attempts!r}")
        if timeout_s <= 0:
            raise ConfigurationError(f"`timeout_s` must be positive, got {timeout_s!r}")
        self._name = name or f"openai:{model}"
        self._model = model
        self._profile = profile
        self._is_streaming = streaming or profile.diffusing
        self._max_attempts = max_attempts
        self._endpoint = Endpoint(
            base_url,
            "/chat/completions",
            backend=self._name,
            api_key=api_key,
            key_env=profile.key_env,
            client=client,
            timeout_s=timeout_s,
        )

    @property
    def name(self) -> str:
        """A short name for traces and errors."""
        return self._name

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    @property
    def capabilities(self) -> Capabilities:
        """What the profile promises; `native` holds for what passed the validation here."""
        return Capabilities(
            enforcement="native", drafts=self._profile.diffusing, tokenizer=self._model
        )

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of events; see `Backend.stream`.

        Raises:
            BackendError: The server could not be reached, failed, or refused.
            OutputInvalid: The output does not satisfy `request.schema`; its text was committed.
            ConfigurationError: The request cannot be sent as it is, or the backend is closed.
        """
        return traced(self, request, self._stream(request))

    async def aclose(self) -> None:
        """Close the connections. Calling it twice is safe; an injected client stays open."""
        await self._endpoint.aclose()

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        began = anyio.current_time()
        deadline = math.inf if request.deadline_s is None else began + request.deadline_s
        schema = None if request.schema is None else validator(request.schema)
        asked = wire.ask(
            request, model=self._model, profile=self._profile, streamed=self._is_streaming
        )
        hidden = Hidden(self._endpoint.api_key, tuple(wire.prompt_texts(request)))
        attempts = 0

        async def attempt() -> _Call:
            nonlocal attempts
            attempts += 1
            return await _Call.begin(
                await self._endpoint.post(asked.body, hidden=hidden), backend=self._name
            )

        with within(deadline, backend=self._name):
            call = await retrying(
                attempt, max_attempts=self._max_attempts, left_s=request.deadline_s or math.inf
            )
        terms = _Terms(
            request=request,
            asked=asked,
            schema=schema,
            began=began,
            deadline=deadline,
            attempts=attempts,
        )
        try:
            async with aclosing(self._events(call, terms)) as events:
                yield events
        finally:
            await call.answer.aclose()

    async def _events(self, call: _Call, terms: _Terms) -> AsyncGenerator[Event]:
        texts: list[str] = []
        first_commit_s = None
        while (text := await self._next(call, terms)) is not None:
            if self._profile.diffusing:
                texts = [text]  # each frame is the whole text so far
                yield Draft(text)
                continue
            if first_commit_s is None:
                first_commit_s = anyio.current_time() - terms.began
            texts.append(text)
            yield Commit(text)
        text = "".join(texts)
        if self._profile.diffusing and text:
            first_commit_s = anyio.current_time() - terms.began
            yield Commit(text)
        yield self._finish(call.reply, text, terms, first_commit_s)

    async def _next(self, call: _Call, terms: _Terms) -> str | None:
        with within(terms.deadline, backend=self._name):
            return await call.next()

    def _finish(
        self, reply: wire.Reply, text: str, terms: _Terms, first_commit_s: float | None
    ) -> Finish:
        usage = replace(reply.usage, requests=terms.attempts)
        reason = reply.reason()
        calls = () if reason == "length" else reply.calls()
        try:
            enforcement = self._enforcement(text, calls, reason, terms)
        except OutputInvalid as error:
            if not _is_at_cap(usage, terms):
                error.usage = usage
                raise
            # Some servers say "stop" where their cap has cut the output.
            reason, enforcement = "length", "none"
        return Finish(
            reason=reason,
            tool_calls=calls,
            usage=usage,
            stats=Stats(
                first_commit_s=first_commit_s,
                total_s=anyio.current_time() - terms.began,
                attempts=terms.attempts,
            ),
            enforcement=enforcement,
            budget=terms.request.budget,
            model=reply.model or self._model,
            warnings=(
                *terms.asked.warnings,
                *reply.warnings,
                *_remarks(text, calls, reason, terms),
            ),
        )

    def _enforcement(
        self, text: str, calls: tuple[ToolCall, ...], reason: FinishReason, terms: _Terms
    ) -> Enforcement:
        if reason == "length":
            return "none"
        if calls:
            return "validated" if arguments_hold(calls, terms.request.tools) else "none"
        if terms.schema is None:
            return "none"
        check_output(text, terms.schema, backend=self._name)
        return "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What one stream has to keep to."""

    request: Request
    asked: wire.Asked
    schema: Validator | None
    began: float
    deadline: float
    """By anyio's clock; infinite where the request has none."""
    attempts: int


@dataclass(slots=True)
class _Call:
    """An exchange under way: the answer, what was read of it, and the text that was read ahead."""

    answer: Answer
    reply: wire.Reply
    _ahead: list[str] = field(default_factory=list[str])

    @classmethod
    async def begin(cls, answer: Answer, *, backend: str) -> _Call:
        """Read up to the first text, so that whatever fails before it can be tried again."""
        call = cls(answer, wire.Reply(backend))
        try:
            first = await call.next()
        except BaseException:
            await answer.aclose()
            raise
        if first is not None:
            call._ahead.append(first)
        return call

    async def next(self) -> str | None:
        """The next text; None when the answer is complete.

        Raises:
            ProtocolError: It ended before it was complete.
        """
        if self._ahead:
            return self._ahead.pop()
        while (chunk := await self.answer.next()) is not None:
            if text := self.reply.add(chunk):
                return text
        if not self._is_complete:
            message = "the stream was cut off" if self.answer.is_stream else "no `choices`"
            raise ProtocolError(message, backend=self.reply.backend)
        return None

    @property
    def _is_complete(self) -> bool:
        if self.reply.finish_reason is not None:
            return True
        return self.reply.has_choice and (self.answer.is_done or not self.answer.is_stream)


def _is_at_cap(usage: Usage, terms: _Terms) -> bool:
    cap, used = terms.asked.cap, usage.output_tokens
    return cap is not None and used is not None and used >= cap


def _remarks(
    text: str, calls: tuple[ToolCall, ...], reason: FinishReason, terms: _Terms
) -> list[str]:
    remarks: list[str] = []
    if not text and not calls:
        remarks.append("the reply is empty")
    if terms.request.tool_choice == "required" and not calls and reason != "length":
        remarks.append("a tool call was required, and the server answered without one")
    return remarks


def from_place(
    place: str, *, api_key: str | None, client: httpx.AsyncClient | None
) -> OpenAIBackend:
    """The backend of `<base url>#<model>`, as `connect` takes it.

    Without `api_key`, `OPENAI_API_KEY` is used for api.openai.com and `AGENTDIFF_API_KEY` for any
    other server, so that a key never goes where it does not belong.

    Raises:
        ConfigurationError: The address or the model is missing.
    """
    base_url, _, model = place.rpartition("#")
    if not base_url or not model:
        raise ConfigurationError(
            "`openai:` needs an address and a model, as in openai:http://localhost:8000/v1#my-model"
        )
    profile = OPENAI if host_of(base_url) == "api.openai.com" else GENERIC
    key = api_key or os.environ.get(profile.key_env) or None
    return OpenAIBackend(base_url, model, api_key=key, profile=profile, client=client)
