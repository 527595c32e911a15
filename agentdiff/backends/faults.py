"""What went wrong on the wire, as an error of ours.

The status decides the class; the body only adds words, and only words that repeat neither the
prompt nor the key: servers echo what they were sent.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, cast

from agentdiff.errors import (
    AuthenticationFailed,
    BackendError,
    ContextTooLong,
    RateLimited,
    Rejected,
    TimedOut,
    Unavailable,
)
from agentdiff.messages import Json

MAX_WORDS = 300
"""Characters of a server's message that an error repeats."""

_SLUG = re.compile(r"[A-Za-z][\w.-]{0,63}")
_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|prompt is too long|too many (input )?tokens",
    re.I,
)


Texts = Iterable[str]
"""Texts that can be gone through again; only where there is an error are they looked at."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Texts that no error may repeat."""

    secrets: tuple[str, ...] = field(repr=False)
    """What the headers hold: keys and tokens."""
    prompt: Texts = field(repr=False)

    def is_in(self, words: str) -> bool:
        """Whether `words` repeat a stretch of the prompt or of a key."""
        return any(_repeats(words, secret, 6) for secret in self.secrets) or any(
            _repeats(words, text.strip(), 16) for text in self.prompt
        )


def _repeats(words: str, hidden: str, stretch: int) -> bool:
    if len(hidden) <= stretch:
        return len(hidden) >= 4 and hidden in words
    return any(words[i : i + stretch] in hidden for i in range(len(words) - stretch + 1))


def from_status(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    *,
    backend: str,
    key_env: str,
    hidden: Hidden,
) -> BackendError:
    """The error for an answer whose status is not 2xx."""
    retry_after = retry_after_s(headers)
    code, words = _read(_loads(body))
    if status in (401, 403):
        return AuthenticationFailed(
            f"the key was refused ({status}); pass `api_key=` or set {key_env}",
            backend=backend,
            status=status,
        )
    if status < 400:
        message = f"the server redirects ({status}); give the address it redirects to"
        return Rejected(message, backend=backend, status=status)
    message = f"the server answered {status}{_suffix(code, words, hidden)}"
    kind = _kind(status, f"{code} {words}")
    return kind(message, backend=backend, status=status, retry_after_s=retry_after)


def from_chunk(chunk: Mapping[str, Json], *, backend: str, hidden: Hidden) -> BackendError | None:
    """The error that a body or a chunk with status 200 holds; None where it holds none."""
    if not chunk.get("error") and chunk.get("object") != "error":
        return None
    code, words = _read(chunk)
    status = int(code) if re.fullmatch(r"[45]\d\d", code) else None
    kind = _kind(status or 500, f"{code} {words}")
    message = f"the server reported an error in its answer{_suffix(code, words, hidden)}"
    return kind(message, backend=backend, status=status)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait; None where it does not say, infinite where it says never.

    `retry-after-ms` counts first, then `retry-after` in seconds or as a date; a past date is 0.
    """
    if headers.get("x-should-retry", "").lower() == "false":
        return math.inf
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return seconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _kind(status: int, words: str) -> type[BackendError]:
    if status == 429:
        return Rejected if "insufficient_quota" in words else RateLimited
    if status in (408, 504):
        return TimedOut
    if status in (409, 425) or status >= 500:
        return Unavailable
    if status == 413 or _TOO_LONG.search(words):
        return ContextTooLong
    return Rejected


def _suffix(code: str, words: str, hidden: Hidden) -> str:
    code = f" {code}" if _SLUG.fullmatch(code) and not hidden.is_in(code) else ""
    words = " ".join(words.split())[:MAX_WORDS]
    if hidden.is_in(words):
        words = "(its message repeats what was sent and is left out)"
    return f"{code}: {words}" if words else code


def _loads(body: bytes) -> Json:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # HTML, plain text, nothing: not ours to repeat
        return None


def _read(body: Json) -> tuple[str, str]:
    """`(code, words)` of a body: nested, flat, FastAPI's `detail`, problem+json, or a string."""
    if isinstance(body, str):
        return "", body
    if not isinstance(body, Mapping):
        return "", ""
    problem = cast("Mapping[str, Any]", body)
    inner: Json = problem.get("error")
    if isinstance(inner, str):
        return "", inner
    if isinstance(inner, Mapping):
        problem = cast("Mapping[str, Any]", inner)
    code = problem.get("code") or problem.get("type") or ""
    words = problem.get("message") or problem.get("detail") or problem.get("title") or ""
    return str(code), _words(words)


def _words(value: Json) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    lines: list[str] = []
    for item in cast("list[Json]", value):
        if isinstance(item, Mapping):
            # FastAPI's items hold the input too; only the place and the message are taken.
            entry = cast("Mapping[str, Any]", item)
            lines.append(f"{'.'.join(map(str, entry.get('loc') or ()))}: {entry.get('msg', '')}")
    return "; ".join(lines)
