"""Any server that speaks OpenAI's chat completions.

The path: `Request` → body (`wire`, `rendering`) → the answer that counts (`completing`) over an exchange
(`service`, `http`, `answer`, `sse`) → chunks → `Reply` → events → `outcome`. What the server says it
enforced is checked (`validation`) before it is committed. Nothing here knows one engine from another:
that is in the profile.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace

import anyio

from agentdiff.backends import decisions, tools_in_words
from agentdiff.backends.completing import Completing
from agentdiff.backends.continuing import Seam
from agentdiff.backends.deciding import own_decision
from agentdiff.backends.http import Auth, HttpClient, host_of
from agentdiff.backends.identity import Identity
from agentdiff.backends.limiter import RateLimit, RateLimiter
from agentdiff.backends.models import KNOWN, ModelCard, cards
from agentdiff.backends.outcome import finished
from agentdiff.backends.profiles import (
    GENERIC,
    EngineProfile,
    profile_named,
    profile_of_host,
)
from agentdiff.backends.retry import within
from agentdiff.backends.service import Call, Service
from agentdiff.backends.terms import Terms
from agentdiff.backends.validation import unfenced, validator
from agentdiff.errors import AuthenticationFailed, BackendError, ConfigurationError, Rejected
from agentdiff.generation import (
    Capabilities,
    Commit,
    Decision,
    Draft,
    Event,
    Question,
    Request,
    Stats,
)
from agentdiff.telemetry import traced
from agentdiff.telemetry.calls import CallSpan


class OpenAIBackend:
    """Chat completions over long-lived connections.

    A schema travels as the profile says, and the output is validated here before any of it is
    committed. Calls are retried while nothing of the answer has been handed on.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        profile: EngineProfile | str | None = GENERIC,
        client: HttpClient | None = None,
        name: str | None = None,
        streaming: bool = True,
        timeout_s: float = 60.0,
        max_attempts: int = 3,
        concurrency: int | None = None,
        limit: RateLimit | RateLimiter | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
    ) -> None:
        """Nothing is opened before the first request.

        Args:
            base_url: Where the API begins, such as `http://localhost:8000/v1`; a query is kept.
            model: The model's name on that server.
            api_key: Sent in the profile's header; None sends none.
            profile: What the engine takes and gives, or the name of it. None takes the profile of a
                hosted service by its host, and asks any other server what it is before the first
                request; where its answer leaves a doubt, `generic`.
            client: An `httpx.AsyncClient`, or httpx2's. Used as it is and never closed here; for
                proxies, certificates and tests.
            name: The backend's name; None for `openai:<model>`.
            streaming: Ask for a stream of events; otherwise the answer is one commit.
            timeout_s: Seconds without a byte from the server.
            max_attempts: Calls for one request, the first included.
            concurrency: Requests at once, others wait here; None for what the profile says.
            limit: Requests and output tokens per minute; a `RateLimiter` may be shared.
            headers: Sent with each request.
            auth: Called before each request for the headers that authorise it, such as a token that
                is refreshed.

        Raises:
            ConfigurationError: The address, the model, the key or the profile cannot be used.
        """
        if not model.strip():
            raise ConfigurationError("`model` is empty; name a model that the server has")
        if max_attempts < 1:
            raise ConfigurationError(f"`max_attempts` must be at least 1, got {max_attempts!r}")
        if timeout_s <= 0:
            raise ConfigurationError(f"`timeout_s` must be positive, got {timeout_s!r}")
        self._name = name or f"openai:{model}"
        self._model = model
        self._identity = Identity(profile, host=host_of(base_url), model=model)
        self._is_concurrency_given = concurrency is not None
        self._service = Service(
            base_url,
            backend=self._name,
            profile=self.profile,
            api_key=api_key,
            headers=headers or {},
            auth=auth,
            client=client,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
            concurrency=concurrency or self.profile.concurrency,
            limit=limit,
        )
        self._completing = Completing(
            self._service,
            self._identity,
            backend=self._name,
            model=model,
            streaming=streaming,
        )
        self._promised: tuple[str, EngineProfile, Capabilities] | None = None

    @property
    def name(self) -> str:
        """A short name for traces and errors."""
        return self._name

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    @property
    def profile(self) -> EngineProfile:
        """The profile in use: `generic` until `identify` has asked the server, where none was given."""
        return self._identity.profile

    @property
    def service(self) -> Service:
        """The server behind it, for requests that are no generations."""
        return self._service

    @property
    def capabilities(self) -> Capabilities:
        """What the profile promises; every schema is validated here, whatever the server enforces."""
        profile = self.profile
        shown = self._identity.shown
        if self._promised is None or self._promised[:2] != (shown, profile):
            card = KNOWN.get(self._model)
            promised = Capabilities(
                enforcement=profile.enforcement,
                drafts=profile.diffusing,
                continues=profile.continue_fields is not None,
                model=f"{self._model}, profile {shown}",
                context_tokens=None if card is None else card.context_tokens,
                tokenizer=self._model,
            )
            self._promised = shown, profile, promised
        return self._promised[2]

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of events; see `Backend.stream`.

        With `request.schema`, nothing is committed before the whole output is known to be valid.

        Raises:
            BackendError: The server could not be reached, failed, or refused.
            OutputInvalid: The output does not satisfy `request.schema`; carries it, what is wrong
                with it, and the usage. Nothing was committed.
            ConfigurationError: The request cannot be sent as it is, or the backend is closed.
        """
        return traced(self, request, self._stream(request))

    async def identify(self) -> EngineProfile:
        """The profile of the server, asked for once where none was given.

        Never fails: a server that does not say what it is, is `generic`.
        """
        return await self._identity.ask(
            self._service, sets_concurrency=not self._is_concurrency_given
        )

    async def models(self) -> tuple[ModelCard, ...]:
        """The models that the server lists.

        Raises:
            BackendError: The server failed or has no list.
        """
        return cards(await self._service.fetch("GET", "/models"))

    async def decide(self, question: Question) -> Decision:
        """Choose one of the options: by the server's own endpoint, by logprobs, or in writing.

        Raises:
            BackendError: The server could not be reached, failed, or wrote none of the options.
        """
        began = anyio.current_time()
        deadline = began + (math.inf if question.deadline_s is None else question.deadline_s)
        with CallSpan("decide", backend=self._name) as span:
            found, warnings = None, ()
            with within(deadline, backend=self._name):
                profile = await self.identify()
                try:
                    found = await own_decision(
                        question,
                        service=self._service,
                        profile=profile,
                        backend=self._name,
                        model=self._model,
                        deadline=deadline,
                    )
                except AuthenticationFailed:
                    raise
                except Rejected as error:
                    # No such endpoint, or a question that it does not take.
                    warnings = (f"answered in writing, because {error}",)
            if found is not None:
                decision = replace(found, stats=Stats(total_s=anyio.current_time() - began))
                span.finish(decision)
                return decision
            left = None if deadline == math.inf else max(0.001, deadline - anyio.current_time())
            written = await decisions.constrained_choice(self, replace(question, deadline_s=left))
            return replace(written, warnings=(*warnings, *written.warnings))

    async def aclose(self) -> None:
        """Close the connections. Calling it twice is safe; an injected client stays open."""
        await self._service.aclose()

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        began = anyio.current_time()
        deadline = began + (math.inf if request.deadline_s is None else request.deadline_s)
        spoken = None
        with within(deadline, backend=self._name):
            profile = self.profile if self._identity.is_known else await self.identify()
            if request.tools and profile.tools == "words":
                spoken, request = request, tools_in_words.in_words(request)
            terms = Terms(
                request=request,
                spoken=spoken,
                schema=None if request.schema is None else validator(request.schema),
                began=began,
                deadline=deadline,
            )
            call = await self._completing.answer(terms, profile)
        try:
            async with aclosing(self._events(call, terms, profile)) as events:
                yield events
        finally:
            await call.aclose()

    async def _events(
        self, call: Call, terms: Terms, profile: EngineProfile
    ) -> AsyncGenerator[Event]:
        text = ""
        first_commit_s = None
        prefix = call.asked.prefix
        seam = Seam(prefix) if prefix else None
        is_held = terms.schema is not None or profile.diffusing
        try:
            while (piece := await self._next(call, terms)) is not None:
                if profile.diffusing:
                    text = piece
                    yield Draft(text)
                    continue
                if seam is not None and not (piece := seam.add(piece)):
                    continue
                text += piece
                if not is_held:
                    if first_commit_s is None:
                        first_commit_s = anyio.current_time() - terms.began
                    yield Commit(piece)
            if seam is not None:
                rest = seam.end()
                text += rest
                if rest and not is_held:
                    yield Commit(rest)
                if seam.was_repeated:
                    terms.warnings.append("the server repeated the reply before it went on")
            finish = finished(call, text, terms, profile, first_commit_s=first_commit_s)
        except BackendError as error:
            error.partial = text
            raise
        if is_held and text:
            is_whole = terms.schema and finish.enforcement != "none" and not prefix
            yield Commit(unfenced(text) if is_whole else text)
        yield finish

    async def _next(self, call: Call, terms: Terms) -> str | None:
        if terms.deadline == math.inf:
            return await call.next()
        with within(terms.deadline, backend=self._name):
            return await call.next()


def from_place(
    place: str,
    *,
    api_key: str | None,
    client: HttpClient | None,
    profile: EngineProfile | str | None = None,
) -> OpenAIBackend:
    """The backend of `<base url>#<model>`, as `connect` takes it.

    Without `api_key`, the environment variable of the profile is read: `OPENAI_API_KEY` for
    api.openai.com, `AGENTDIFF_API_KEY` for any server that is not known, so that a key never goes
    where it does not belong.

    Raises:
        ConfigurationError: The address or the model is missing, or there is no such profile.
    """
    base_url, _, model = place.rpartition("#")
    if not base_url or not model:
        raise ConfigurationError(
            "`openai:` needs an address and a model, as in openai:http://localhost:8000/v1#my-model"
        )
    given = profile_named(profile) if isinstance(profile, str) else profile
    of_host = profile_of_host(host_of(base_url))
    key_env = (of_host or given or GENERIC).key_env
    # A hosted service's key stays with its host: a profile alone does not send it elsewhere.
    if of_host is None and given is not None and given.key_env != GENERIC.key_env:
        key_env = GENERIC.key_env
    key = api_key or os.environ.get(key_env) or None
    return OpenAIBackend(base_url, model, api_key=key, profile=given, client=client)
