"""Inception's hosted Mercury: the OpenAI dialect with its own profile and key, and what it has beyond."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.profiles import MERCURY, EngineProfile
from agentdiff.backends.reply import Reply
from agentdiff.errors import ConfigurationError, ProtocolError
from agentdiff.generation import Budget, Result, Stats
from agentdiff.messages import Json
from agentdiff.telemetry.calls import CallSpan

if TYPE_CHECKING:
    from agentdiff.backends.http import Auth, HttpClient
    from agentdiff.backends.limiter import RateLimit, RateLimiter

BASE_URL: Final = "https://api.inceptionlabs.ai/v1"
EDIT_MODEL: Final = "mercury-edit-2"
"""The model of the endpoints for code: chat models do not answer there."""


class Mercury(OpenAIBackend):
    """Hosted Mercury: chat, typed decisions (`decide`), infilling and next edits of code.

    It `Infills`, and it `Decides`, by a model of its own.
    """

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """Write what belongs between `prefix` and `suffix`, with the model for code.

        Raises:
            BackendError: The service could not be reached, failed, or refused.
        """
        body = {"model": EDIT_MODEL, "prompt": prefix, "suffix": suffix}
        with CallSpan("infill", backend=self.name) as span:
            return await self._coded(
                "/fim/completions",
                body,
                (prefix, suffix),
                budget=budget,
                deadline_s=deadline_s,
                span=span,
            )

    async def edit(
        self,
        sections: Mapping[str, str],
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """The next edit of a file: the new text of the part that is to be edited.

        Args:
            sections: What the model is shown, by tag, in order: `recently_viewed_code_snippets`,
                `current_file_content` (with `<|code_to_edit|>…<|/code_to_edit|>` and `<|cursor|>` in
                it), `edit_diff_history`. Tags that are absent are sent empty.
            budget: None for the service's default.
            deadline_s: Seconds for the answer, retries included.

        Raises:
            BackendError: The service could not be reached, failed, or refused.
            ConfigurationError: A section has a name that the model does not know.
        """
        if unknown := sections.keys() - set(_SECTIONS):
            raise ConfigurationError(
                f"there is no section {sorted(unknown)[0]!r}; known: {', '.join(_SECTIONS)}"
            )
        content = "\n\n".join(
            f"<|{tag}|>\n{sections.get(tag, '')}\n<|/{tag}|>" for tag in _SECTIONS
        )
        body = {"model": EDIT_MODEL, "messages": [{"role": "user", "content": content}]}
        with CallSpan("edit", backend=self.name) as span:
            return await self._coded(
                "/edit/completions",
                body,
                tuple(sections.values()),
                budget=budget,
                deadline_s=deadline_s,
                span=span,
            )

    async def _coded(
        self,
        path: str,
        body: dict[str, Json],
        hidden: tuple[str, ...],
        *,
        budget: Budget | None,
        deadline_s: float | None,
        span: CallSpan,
    ) -> Result:
        began = anyio.current_time()
        attempts = 0

        def count() -> None:
            nonlocal attempts
            attempts += 1

        if budget is not None:
            body["max_tokens"] = budget.ceiling
        found = await self.service.fetch(
            "POST",
            path,
            body,
            prompt=hidden,
            tokens=512 if budget is None else budget.ceiling,
            deadline=math.inf if deadline_s is None else began + deadline_s,
            count=count,
        )
        reply = Reply(self.name)
        text = reply.add(found)
        if not reply.has_choice:
            raise ProtocolError("no `choices`", backend=self.name)
        result = Result(
            text=text,
            tool_calls=(),
            reason=reply.reason(),
            usage=replace(reply.usage, requests=attempts),
            stats=Stats(total_s=anyio.current_time() - began, attempts=attempts),
            enforcement="none",
            budget=budget,
            model=reply.model or EDIT_MODEL,
            warnings=tuple(reply.warnings),
        )
        span.finish(result)
        return result


_SECTIONS: Final = ("recently_viewed_code_snippets", "current_file_content", "edit_diff_history")


def mercury(
    model: str = "mercury-2",
    *,
    api_key: str | None = None,
    base_url: str = BASE_URL,
    drafts: bool = False,
    client: HttpClient | None = None,
    timeout_s: float = 60.0,
    max_attempts: int = 3,
    limit: RateLimit | RateLimiter | None = None,
    headers: Mapping[str, str] | None = None,
    auth: Auth | None = None,
    key_header: str = MERCURY.key_header,
) -> Mercury:
    """Hosted Mercury.

    The model answers in a few blocks, so that streaming its text gains little: the answer comes as
    one commit, or, with `drafts`, as `Draft`s of the whole text while it is being denoised and one
    commit of the last of them.

    Args:
        model: The model's name; the service lists what it has.
        api_key: None takes `INCEPTION_API_KEY` from the environment.
        base_url: For a gateway with the same dialect, such as Azure AI Foundry's.
        drafts: Ask for a `diffusing` stream.
        client: Used as it is and never closed here.
        timeout_s: Seconds without a byte from the server.
        max_attempts: Calls for one request, the first included.
        limit: What the account may do in a minute.
        headers: Sent with each request.
        auth: Called before each request for the headers that authorise it; no key is needed then.
        key_header: The header for the key; a gateway's may be `api-key`.

    Raises:
        ConfigurationError: There is no key, or an argument cannot be used.
    """
    key = api_key or (None if auth else os.environ.get(MERCURY.key_env))
    if not key and auth is None:
        raise ConfigurationError(f"Mercury needs a key: set {MERCURY.key_env} or pass `api_key=`")
    profile: EngineProfile = replace(
        MERCURY, key_header=key_header, stream_unit="draft" if drafts else MERCURY.stream_unit
    )
    return Mercury(
        base_url,
        model,
        api_key=key,
        profile=profile,
        client=client,
        name=f"mercury:{model}",
        streaming=drafts,
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        limit=limit,
        headers=headers,
        auth=auth,
    )


def from_place(
    place: str,
    *,
    api_key: str | None,
    client: HttpClient | None,
    profile: EngineProfile | str | None = None,
) -> Mercury:
    """The backend of `<model>`, as `connect` takes it.

    Raises:
        ConfigurationError: There is no model or no key, or a profile was given.
    """
    if not place:
        raise ConfigurationError("`mercury:` needs a model, as in mercury:mercury-2")
    if profile is not None:
        raise ConfigurationError("`mercury:` has its own profile; leave `profile` out")
    return mercury(place, api_key=api_key, client=client)
