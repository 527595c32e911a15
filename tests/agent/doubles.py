"""A backend that says what it was told to say, so that these tests need no other room."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

import anyio

from agentdiff.generation import (
    Capabilities,
    Commit,
    Draft,
    Enforcement,
    Event,
    Finish,
    FinishReason,
    Request,
)
from agentdiff.messages import Json, ToolCall, Usage

Reply = Sequence[Event] | BaseException


def says(text: str, *, enforcement: Enforcement = "none") -> list[Event]:
    """A reply in words, seen as a draft first."""
    return [
        Draft(text[:1] + "␣"),
        Commit(text),
        Finish(reason="stop", usage=spent(), enforcement=enforcement, model="double-1"),
    ]


def calls(*wanted: tuple[str, Mapping[str, Json]], ids: Sequence[str] = ()) -> list[Event]:
    """A reply that calls tools, with the ids `c1`, `c2`, … or those given."""
    named = [
        ToolCall(id=ids[at] if ids else f"c{at + 1}", name=name, arguments=arguments)
        for at, (name, arguments) in enumerate(wanted)
    ]
    finish = Finish(
        reason="tool_calls", tool_calls=tuple(named), text="", usage=spent(), model="double-1"
    )
    return [Commit("{…}"), finish]


def ends(reason: FinishReason, text: str = "") -> list[Event]:
    """A reply that ends otherwise."""
    return [Commit(text), Finish(reason=reason, usage=spent(), model="double-1")]


def spent() -> Usage:
    return Usage(input_tokens=10, output_tokens=5)


class Double:
    """Plays its replies in order; remembers the requests, and whether a stream is open."""

    def __init__(
        self,
        *replies: Reply,
        capabilities: Capabilities | None = None,
        repeat_last: bool = False,
        hang_at: int | None = None,
    ) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.open = 0
        self.name = "double"
        self.capabilities = capabilities or Capabilities()
        self._repeat_last = repeat_last
        self._hang_at = hang_at

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        number = len(self.requests)
        self.requests.append(request)
        self.open += 1
        try:
            async with aclosing(self._events(number)) as events:
                yield events
        finally:
            self.open -= 1

    async def _events(self, number: int) -> AsyncGenerator[Event]:
        await anyio.lowlevel.checkpoint()
        reply = self.replies[min(number, len(self.replies) - 1) if self._repeat_last else number]
        if isinstance(reply, BaseException):
            raise reply
        for event in reply:
            if number == self._hang_at:
                await anyio.sleep_forever()
            yield event

    async def aclose(self) -> None:
        pass

    def told(self) -> list[str]:
        """What the tools had said when the last request was made."""
        return [m.content for m in self.requests[-1].messages if m.role == "tool"]
