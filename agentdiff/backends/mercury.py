"""Inception's hosted Mercury: the OpenAI dialect with its own profile and key."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.profiles import MERCURY
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx

BASE_URL = "https://api.inceptionlabs.ai/v1"


def mercury(
    model: str = "mercury-2",
    *,
    api_key: str | None = None,
    base_url: str = BASE_URL,
    drafts: bool = False,
    client: httpx.AsyncClient | None = None,
    timeout_s: float = 60.0,
    max_attempts: int = 3,
) -> OpenAIBackend:
    """Hosted Mercury.

    The model answers in a few blocks, so that streaming its text gains little: the answer comes as
    one commit, or, with `drafts`, as `Draft`s of the whole text while it is being denoised and one
    commit of the last of them.

    Args:
        model: The model's name; the service lists what it has.
        api_key: None takes `INCEPTION_API_KEY` from the environment.
        base_url: For a gateway with the same dialect.
        drafts: Ask for a `diffusing` stream.
        client: Used as it is and never closed here.
        timeout_s: Seconds without a byte from the server.
        max_attempts: Calls for one request, the first included.

    Raises:
        ConfigurationError: There is no key, or an argument cannot be used.
    """
    key = api_key or os.environ.get(MERCURY.key_env)
    if not key:
        raise ConfigurationError(f"Mercury needs a key: set {MERCURY.key_env} or pass `api_key=`")
    return OpenAIBackend(
        base_url,
        model,
        api_key=key,
        profile=replace(MERCURY, diffusing=drafts),
        client=client,
        name=f"mercury:{model}",
        streaming=drafts,
        timeout_s=timeout_s,
        max_attempts=max_attempts,
    )


def from_place(
    place: str, *, api_key: str | None, client: httpx.AsyncClient | None
) -> OpenAIBackend:
    """The backend of `<model>`, as `connect` takes it.

    Raises:
        ConfigurationError: There is no model or no key.
    """
    if not place:
        raise ConfigurationError("`mercury:` needs a model, as in mercury:mercury-2")
    return mercury(place, api_key=api_key, client=client)
