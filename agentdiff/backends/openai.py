"""Any server that speaks OpenAI's chat completions.

The path: `Request` → body (`wire`) → exchange (`service`, `http`, `sse`) → chunks → `Reply` → events.
What the server says it enforced is checked (`validation`) before it is committed. Nothing here knows
one engine from another: that is in the profile.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio

from agentdiff.backends import decisions, pinned_canvas, tools_in_words, wire
from agentdiff.backends.actions import parse_reply
from agentdiff.backends.http import Auth, HttpClient, host_of
from agentdiff.backends.limiter import RateLimit, RateLimiter
from agentdiff.backends.loose import a_count, a_list
from agentdiff.backends.models import KNOWN, ModelCard, cards
from agentdiff.backends.profiles import (
    GENERIC,
    EngineProfile,
    guess,
    profile_named,
    profile_of_host,
)
from agentdiff.backends.retry import within
from agentdiff.backends.service import Call, Service
from agentdiff.backends.validation import arguments_hold, check_output, unfenced, validator
from agentdiff.errors import (
    AuthenticationFailed,
    BackendError,
    ConfigurationError,
    OutputInvalid,
    Rejected,
)
from agentdiff.generation import (
    Budget,
    Capabilities,
    Commit,
    Decision,
    Draft,
    Enforcement,
    Event,
    Finish,
    FinishReason,
    Question,
    Request,
    Stats,
)
from agentdiff.messages import ToolCall, Usage
from agentdiff.telemetry import traced

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_CANVAS: Final = Budget(target=128, ceiling=256, source="default")
_IDENTIFY_S = 3.0


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
        given = profile_named(profile) if isinstance(profile, str) else profile
        known = given or profile_of_host(host_of(base_url))
        self._name = name or f"openai:{model}"
        self._model = model
        self._profile = known or GENERIC
        self._is_identified = known is not None
        self._is_guess = known is None
        self._is_streaming = streaming
        self._can_pin = True
        self._token_ids: dict[str, tuple[int, ...]] = {}
        self._is_concurrency_given = concurrency is not None
        self._service = Service(
            base_url,
            backend=self._name,
            profile=self._profile,
            api_key=api_key,
            headers=headers or {},
            auth=auth,
            client=client,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
            concurrency=concurrency or self._profile.concurrency,
            limit=limit,
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
    def profile(self) -> EngineProfile:
        """The profile in use: `generic` until `identify` has asked the server, where none was given."""
        return self._profile

    @property
    def service(self) -> Service:
        """The server behind it, for requests that are no generations."""
        return self._service

    @property
    def capabilities(self) -> Capabilities:
        """What the profile promises; every schema is validated here, whatever the server enforces."""
        card = KNOWN.get(self._model)
        how = " (guessed)" if self._is_guess and self._is_identified else ""
        return Capabilities(
            enforcement=self._profile.enforcement,
            drafts=self._profile.diffusing,
            model=f"{self._model}, profile {self._profile.name}{how}",
            context_tokens=None if card is None else card.context_tokens,
            tokenizer=self._model,
        )

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
        if self._is_identified:
            return self._profile
        async with self._service.alone:
            if self._is_identified:
                return self._profile
            found = None
            with anyio.move_on_after(_IDENTIFY_S):
                try:
                    models, headers = await self._service.endpoint.fetch("GET", "/models")
                    found = guess(models, headers.get("server", ""), self._model)
                except BackendError:
                    pass  # whoever asked will meet the error again, in their own request
            if found is not None:
                self._profile = found
                if not self._is_concurrency_given:
                    self._service.endpoint.limit_to(found.concurrency)
            self._is_identified = True
        return self._profile

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
        profile = self._profile
        with within(deadline, backend=self._name):
            profile = await self.identify()
            found, warnings = None, ()
            try:
                found = await self._decided(question, profile, deadline)
            except AuthenticationFailed:
                raise
            except Rejected as error:
                # No such endpoint, or a question that it does not take.
                warnings = (f"answered in writing, because {error}",)
            if found is not None:
                return replace(found, stats=Stats(total_s=anyio.current_time() - began))
        left = None if deadline == math.inf else max(0.001, deadline - anyio.current_time())
        written = await decisions.constrained_choice(self, replace(question, deadline_s=left))
        return replace(written, warnings=(*warnings, *written.warnings))

    async def aclose(self) -> None:
        """Close the connections. Calling it twice is safe; an injected client stays open."""
        await self._service.aclose()

    async def _decided(
        self, question: Question, profile: EngineProfile, deadline: float
    ) -> Decision | None:
        model = profile.decision_model or self._model
        hidden = tuple(m.content for m in question.messages)
        if profile.decisions:
            is_list = profile.decision_wire == "questions"
            make = decisions.questions_body if is_list else decisions.state_body
            read = decisions.questions_answer if is_list else decisions.state_answer
            body = await self._service.fetch(
                "POST",
                profile.decisions,
                make(question, model=model),
                prompt=hidden,
                deadline=deadline,
            )
            return read(body, question, backend=self._name)
        if profile.logprobs and len(question.options) <= decisions.TOP_LOGPROBS:
            asked = decisions.labels_body(
                question, model=self._model, length_field=profile.length_field
            )
            body = await self._service.fetch(
                "POST", "/chat/completions", asked, prompt=hidden, deadline=deadline
            )
            return decisions.labels_answer(body, question)
        return None

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        began = anyio.current_time()
        deadline = began + (math.inf if request.deadline_s is None else request.deadline_s)
        schema = None if request.schema is None else validator(request.schema)
        with within(deadline, backend=self._name):
            profile = await self.identify()
            spoken = None
            if request.tools and profile.tools == "words":
                spoken, request = request, tools_in_words.in_words(request)
                schema = validator(request.schema or {})
            terms = _Terms(
                request=request, spoken=spoken, schema=schema, began=began, deadline=deadline
            )
            call = await self._answered(terms, profile)
        try:
            async with aclosing(self._events(call, terms, profile)) as events:
                yield events
        finally:
            await call.aclose()

    async def _answered(self, terms: _Terms, profile: EngineProfile) -> Call:
        """The answer that counts, read up to its first text, or to its end where there is a schema."""
        request = terms.request
        asked = wire.ask(
            request,
            model=self._model,
            profile=profile,
            streamed=self._is_streaming or profile.diffusing,
        )
        if profile.structured == "pinned_canvas" and request.schema is not None:
            call = await self._pinned(asked, terms, profile)
            if call is not None:
                return call
        call = await self._open(asked, terms, profile)
        if call.is_over and not call.text and call.reply.was_spent_on_reasoning(call.asked.cap):
            spent = call.reply.usage
            terms.spent += spent
            cap = call.asked.cap or spent.output_tokens or 0
            await call.aclose()
            call = await self._open(call.asked.with_cap(2 * max(cap, 512)), terms, profile)
            terms.warnings.append(
                f"all {spent.reasoning_tokens or cap} tokens went into reasoning; asked again with room "
                f"for {call.asked.cap}"
            )
        return call

    async def _open(self, asked: wire.Asked, terms: _Terms, profile: EngineProfile) -> Call:
        """The answer to `asked`, retried, in whichever length field the server takes."""
        is_held = terms.schema is not None and not profile.diffusing

        async def opened(asked: wire.Asked) -> Call:
            return await self._service.call(
                asked,
                prompt=tuple(wire.prompt_texts(terms.request)),
                deadline=terms.deadline,
                is_held=is_held,
                may_retry=terms.request.may_retry,
                count=terms.count,
            )

        try:
            return await opened(asked)
        except Rejected as error:
            other = wire.other_length_field(asked, str(error))
            if other is None:
                raise
            call = await opened(asked.with_length_field(other))
        self._profile = replace(self._profile, length_field=other)
        return call

    async def _pinned(
        self, asked: wire.Asked, terms: _Terms, profile: EngineProfile
    ) -> Call | None:
        """A valid answer in a pinned canvas; None where there is none, and words must do."""
        request = terms.request
        parts = None
        if self._can_pin and not request.tools and request.schema and terms.schema:
            parts = pinned_canvas.skeleton(request.schema)
        if parts is None or terms.schema is None:
            return None
        budget = request.budget or _CANVAS
        call = None
        try:
            canvas = pinned_canvas.lay_out(
                parts,
                await self._ids_of(pinned_canvas.texts_of(parts), terms.deadline),
                target=budget.target,
                ceiling=min(budget.ceiling, profile.canvas_tokens),
            )
            if canvas is None:
                terms.warnings.append("the canvas is too narrow for the schema; nothing is pinned")
                return None
            call = await self._open(wire.pinned(asked, canvas), terms, profile)
            call.text = pinned_canvas.read(call.text or "", parts)
            check_output(call.text, terms.schema, backend=self._name)
        except AuthenticationFailed:
            raise
        except Rejected as error:
            self._can_pin = False  # an older engine, or another one: not asked again
            terms.warnings.append(f"nothing is pinned, because {error}")
            return None
        except OutputInvalid:
            if call is not None:
                terms.spent += call.reply.usage
                await call.aclose()
            terms.warnings.append("what was written into the pinned canvas is invalid; asked again")
            return None
        call.enforcement = "pinned_canvas"
        return call

    async def _ids_of(self, texts: set[str], deadline: float) -> Mapping[str, tuple[int, ...]]:
        """The token ids of texts, by the server's own tokenizer; asked for once each."""

        async def look_up(text: str) -> None:
            body = await self._service.fetch(
                "POST",
                "//tokenize",
                {"model": self._model, "prompt": text, "add_special_tokens": False},
                prompt=(text,),
                deadline=deadline,
            )
            found = map(a_count, a_list(body.get("tokens")))
            ids = tuple(one for one in found if one is not None)
            if not ids:
                raise Rejected("the server's tokenizer gives no ids", backend=self._name)
            self._token_ids[text] = ids

        # One after the other: the first schema costs a moment, and an engine has few slots.
        for text in sorted(texts - self._token_ids.keys()):
            await look_up(text)
        return self._token_ids

    async def _events(
        self, call: Call, terms: _Terms, profile: EngineProfile
    ) -> AsyncGenerator[Event]:
        text = ""
        first_commit_s = None
        is_held = terms.schema is not None or profile.diffusing
        try:
            while (piece := await self._next(call, terms)) is not None:
                text = piece if profile.diffusing else text + piece
                if profile.diffusing:
                    yield Draft(text)
                elif not is_held:
                    if first_commit_s is None:
                        first_commit_s = anyio.current_time() - terms.began
                    yield Commit(piece)
            finish = self._finish(call, text, terms)
        except BackendError as error:
            error.partial = text
            raise
        if is_held and text:
            first_commit_s = anyio.current_time() - terms.began
            yield Commit(unfenced(text) if terms.schema and finish.enforcement != "none" else text)
        yield replace(finish, stats=replace(finish.stats, first_commit_s=first_commit_s))

    async def _next(self, call: Call, terms: _Terms) -> str | None:
        with within(terms.deadline, backend=self._name):
            return await call.next()

    def _finish(self, call: Call, text: str, terms: _Terms) -> Finish:
        reply = call.reply
        call.settle()
        usage = replace(terms.spent + reply.usage, requests=terms.attempts)
        reason = reply.reason()
        calls = () if reason == "length" else reply.calls()
        is_full = _is_at_cap(reply.usage, call.asked.cap)
        try:
            enforcement = self._enforcement(text, calls, reason, call, terms)
        except OutputInvalid as error:
            if not is_full:
                error.usage = usage
                raise
            # Some servers say "stop" where their cap has cut the output.
            reason, enforcement = "length", "none"
        said = None
        if terms.spoken is not None and enforcement != "none":
            action = parse_reply(
                unfenced(text),
                terms.spoken,
                tools_in_words.FORMAT,
                call_id=f"call_{uuid4().hex[:12]}",
            )
            reason, said, calls = action.reason, action.text, action.tool_calls
        return Finish(
            reason=reason,
            tool_calls=calls,
            usage=usage,
            stats=Stats(total_s=anyio.current_time() - terms.began, attempts=terms.attempts),
            text=said,
            enforcement=enforcement,
            budget=terms.request.budget,
            model=reply.model or self._model,
            warnings=(
                *call.asked.warnings,
                *terms.warnings,
                *reply.warnings,
                *_remarks(text, calls, reason, terms.request, is_full=is_full),
            ),
        )

    def _enforcement(
        self,
        text: str,
        calls: tuple[ToolCall, ...],
        reason: FinishReason,
        call: Call,
        terms: _Terms,
    ) -> Enforcement:
        if reason == "length":
            return "none"
        if calls:
            return "validated" if arguments_hold(calls, terms.request.tools) else "none"
        if terms.schema is None:
            return "none"
        check_output(unfenced(text), terms.schema, backend=self._name)
        if call.enforcement is not None:
            return call.enforcement
        is_native = self._profile.enforcement == "native" and unfenced(text) == text
        return "native" if is_native else "validated"


@dataclass(slots=True, kw_only=True)
class _Terms:
    """What one stream has to keep to, and what it has cost so far."""

    request: Request
    spoken: Request | None
    """The request as it was made, where its tools had to be put into words."""
    schema: Validator | None
    began: float
    deadline: float
    """By anyio's clock; infinite where the request has none."""
    attempts: int = 0
    spent: Usage = field(default_factory=lambda: Usage(requests=0))
    """Of answers that came and do not count."""
    warnings: list[str] = field(default_factory=list[str])

    def count(self) -> None:
        """One more call."""
        self.attempts += 1


def _is_at_cap(usage: Usage, cap: int | None) -> bool:
    return cap is not None and usage.output_tokens is not None and usage.output_tokens >= cap


def _remarks(
    text: str,
    calls: tuple[ToolCall, ...],
    reason: FinishReason,
    request: Request,
    *,
    is_full: bool,
) -> list[str]:
    remarks: list[str] = []
    if not text and not calls:
        remarks.append("the reply is empty")
    if is_full and reason == "stop" and request.schema is None:
        remarks.append("the reply may be cut: it is as long as it was allowed to be")
    if request.tool_choice == "required" and not calls and reason != "length":
        remarks.append("a tool call was required, and the server answered without one")
    given = {tool.name for tool in request.tools}
    remarks += [
        f"the server called {call.name[:64]!r}, a tool that it was not given"
        for call in calls
        if call.name not in given
    ]
    return remarks


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
