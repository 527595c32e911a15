"""Writing on from a reply that was cut: what is sent of it, and how both parts are joined.

Whoever asks puts the reply so far behind the conversation, as a message of the assistant, and gets
what follows it. Engines that can are told by their profile's fields; one that refuses is asked in
words, once and from then on.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from agentdiff.messages import user

if TYPE_CHECKING:
    from agentdiff.backends.profiles import EngineProfile
    from agentdiff.generation import Request

GO_ON: Final = (
    "Your last message was cut off. Go on exactly where it ends; repeat nothing, explain nothing."
)
_TELLING: Final = 16
"""Characters of a reply that, written a second time, are no chance."""


def prefix_of(request: Request, profile: EngineProfile) -> str:
    """What is written of the reply already, where the engine can go on from it; else empty."""
    last = request.messages[-1]
    can = profile.continue_fields is not None and last.role == "assistant" and not last.tool_calls
    return last.content if can and last.content.strip() else ""


def in_words(request: Request) -> Request:
    """The same for an engine that takes the reply so far for a message like others."""
    return replace(request, messages=(*request.messages, user(GO_ON)))


class Seam:
    """The text that follows a reply, without what some servers repeat of it.

    A template drops the blanks at the end of what was written, so the model may write them again;
    some gateways, and models that are asked in words, begin with all of it.
    """

    def __init__(self, prefix: str) -> None:
        sent = prefix.rstrip()
        self._written = sent if len(sent) >= _TELLING else ""
        self._blanks = prefix[len(sent) :]
        self._held: str | None = ""
        """What may still be a repetition; None when nothing may any more."""
        self.was_repeated = False
        """Whether the server began with all that had been written."""

    def add(self, text: str) -> str:
        """What of the text so far is new; empty where that is not known yet."""
        if self._held is None:
            return text
        self._held += text
        if self._written:
            if self._held.startswith(self._written):
                self._held = self._held[len(self._written) :]
                self.was_repeated = True
            elif self._written.startswith(self._held):
                return ""
            self._written = ""
        if self._blanks.startswith(self._held):
            return ""
        return self.end()

    def end(self) -> str:
        """What was held back, when no more comes."""
        held, self._held = self._held or "", None
        pairs = zip(held, self._blanks, strict=False)
        return held[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]
