"""Which engine answers at an address: the profile in use, given, known by the host, or asked for.

What a server shows to be otherwise than its profile says is kept here too, for the next requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from agentdiff.backends.profiles import (
    GENERIC,
    EngineProfile,
    LengthField,
    guess,
    profile_named,
    profile_of_host,
)
from agentdiff.errors import BackendError

if TYPE_CHECKING:
    from agentdiff.backends.service import Service

_IDENTIFY_S = 3.0


class Identity:
    """The profile of one server."""

    def __init__(self, profile: EngineProfile | str | None, *, host: str, model: str) -> None:
        """Take the profile that was given, or that of a hosted service; else the server is to be asked.

        Raises:
            ConfigurationError: There is no such profile.
        """
        given = profile_named(profile) if isinstance(profile, str) else profile
        known = given or profile_of_host(host)
        self._model = model
        self.profile = known or GENERIC
        """The profile in use: `generic` until the server was asked."""
        self.is_known = known is not None
        """Whether the server need not be asked, or has been."""
        self._is_guess = known is None

    @property
    def shown(self) -> str:
        """The profile's name, for people."""
        how = " (guessed)" if self._is_guess and self.is_known else ""
        return f"{self.profile.name}{how}"

    async def ask(self, service: Service, *, sets_concurrency: bool) -> EngineProfile:
        """The profile of the server, asked for once where it is not known.

        Never fails: a server that does not say what it is, is `generic`.

        Args:
            service: The server.
            sets_concurrency: Whether the profile says how many requests run at once.
        """
        if self.is_known:
            return self.profile
        async with service.alone:
            if self.is_known:
                return self.profile
            found = None
            with anyio.move_on_after(_IDENTIFY_S):
                try:
                    models, headers = await service.endpoint.fetch("GET", "/models")
                    found = guess(models, headers.get("server", ""), self._model)
                except BackendError:
                    pass  # whoever asked will meet the error again, in their own request
            if found is not None:
                self.profile = found
                if sets_concurrency:
                    service.endpoint.limit_to(found.concurrency)
            self.is_known = True
        return self.profile

    def takes_length_in(self, name: LengthField) -> None:
        """Note that the server wants its cap in another field."""
        self.profile = replace(self.profile, length_field=name)

    def does_not_continue(self) -> None:
        """Note that the server refuses to write on from a message."""
        self.profile = replace(self.profile, continue_fields=None)
