"""Who answers: the backends, and `connect`, which makes one from a line of text.

A backend's module is imported when a spec names it, so that this one costs nothing and the base
install needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from agentdiff.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from agentdiff.backends.http import HttpClient
    from agentdiff.backends.profiles import EngineProfile
    from agentdiff.generation import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One form of a backend spec."""

    target: str
    """`module:function`, called with what follows the colon, or with the name alone."""
    form: str
    example: str
    is_remote: bool = False
    """Whether it speaks HTTP; the function then takes `api_key`, `client` and `profile` too."""


SCHEMES: Final[Mapping[str, Scheme]] = {
    "embedded": Scheme(
        target="agentdiff.backends.local:LocalBackend.load", form="embedded", example="embedded"
    ),
    "local": Scheme(
        target="agentdiff.backends.local:LocalBackend.load",
        form="local:<path or hub id>",
        example="local:./my-checkpoint",
    ),
    "openai": Scheme(
        target="agentdiff.backends.openai:from_place",
        form="openai:<base url>#<model>",
        example="openai:http://localhost:8000/v1#my-model",
        is_remote=True,
    ),
    "mercury": Scheme(
        target="agentdiff.backends.mercury:from_place",
        form="mercury:<model>",
        example="mercury:mercury-2",
        is_remote=True,
    ),
}
_LOCAL_PACKAGES = frozenset({"numpy", "safetensors", "tokenizers", "torch", "transformers"})


def connect(
    spec: str,
    *,
    api_key: str | None = None,
    client: HttpClient | None = None,
    profile: EngineProfile | str | None = None,
) -> Backend:
    """The backend that `spec` names. A model on this machine is loaded; no server is called yet.

    Args:
        spec: `embedded`, `local:<path or hub id>`, `openai:<base url>#<model>`, `mercury:<model>`.
        api_key: For a server. None takes it from the environment: `INCEPTION_API_KEY` for Mercury,
            `OPENAI_API_KEY` for api.openai.com, `AGENTDIFF_API_KEY` for any other.
        client: For a server: an `httpx.AsyncClient`, or httpx2's; used as it is and never closed by the
            backend.
        profile: For a server: what the engine takes and gives, or the name of it. None takes it from
            the host of a known service; any other server is asked before its first request.

    Raises:
        ConfigurationError: There is no such backend, or its address, model or key is missing.
        MissingExtra: A model on this machine needs packages that are not installed.
    """
    name, colon, place = spec.strip().partition(":")
    scheme = SCHEMES.get(name)
    if scheme is None or (":" in scheme.form) != bool(colon) or (colon and not place):
        raise ConfigurationError(_unknown(spec.strip(), name))
    if scheme.is_remote:
        return _target(scheme)(place, api_key=api_key, client=client, profile=profile)
    if api_key is not None or client is not None or profile is not None:
        raise ConfigurationError(
            f"`{name}` runs here; it takes no `api_key`, `client` or `profile`"
        )
    try:
        return _target(scheme)(place or name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in _LOCAL_PACKAGES:
            raise MissingExtra(f"`{name}`", extra="local") from error
        raise


def _target(scheme: Scheme) -> Any:
    module, _, attribute = scheme.target.partition(":")
    return attrgetter(attribute)(import_module(module))


def _unknown(spec: str, name: str) -> str:
    known = "; ".join(
        scheme.form if scheme.form == scheme.example else f"{scheme.form}, as in {scheme.example}"
        for scheme in SCHEMES.values()
    )
    return f"there is no backend {_shown(spec)!r}{_hint(spec, name)}. Known: {known}"


def _hint(spec: str, name: str) -> str:
    if name == "scripted":
        return " (`Scripted` is made in code: agentdiff.backends.scripted.Scripted)"
    if name in ("http", "https"):
        return "; did you mean openai:<that address>#<model>?"
    if close := get_close_matches(name.lower(), SCHEMES, n=1):
        return f"; did you mean {SCHEMES[close[0]].form}?"
    if ":" not in spec and "/" in spec:
        return "; did you mean local:<that path or hub id>?"
    return ""


def _shown(spec: str) -> str:
    """`spec` without what may be secret: credentials, a query, anything that looks like a key."""
    spec = re.sub(r"//[^/#?\s]*@", "//…@", spec)
    spec = re.sub(r"\?[^#]*", "?…", spec)
    spec = re.sub(r"(?=\w*\d)[\w-]{16,}|\bsk-[\w-]+", "…", spec)
    return spec if len(spec) <= 80 else f"{spec[:80]}…"
