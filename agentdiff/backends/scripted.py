"""A backend that answers what it was told to: the double for tests of everything that asks.

It behaves like a real one: texts come in drafts and commits, structured outputs are validated, and
every stream ends with `Finish`. A token is four characters here, so that usage has numbers.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TypeAlias, cast

import anyio.lowlevel

from agentdiff.backends.validation import arguments_hold, check_output, validator
from agentdiff.errors import ConfigurationError
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

BLOCK = 16
"""Characters of one block; each is drafted once and then committed."""

Said: TypeAlias = str | ToolCall | Sequence[ToolCall] | Sequence[Event | Exception] | Exception
"""A text; a call, or several; an exception to raise; or the events themselves.

Among events, an exception is raised where it stands.
"""
Scene: TypeAlias = Said | Callable[[Request], Said | Awaitable[Said]]
"""What is said, or a function, async or not, that says it for a request."""

_DOUBLE = Capabilities(
    enforcement="validated", drafts=True, seed=True, tokenizer="scripted: 4 characters"
)


class Scripted:
    """Answers each request with the next reply."""

    def __init__(
        self,
        replies: Iterable[Scene],
        *,
        name: str = "scripted",
        capabilities: Capabilities = _DOUBLE,
    ) -> None:
        """Take the replies, in the order in which streams will be opened.

        Args:
            replies: One for each request. Events are sent as they are; `Finish` must be among them.
            name: The backend's name.
            capabilities: What it claims; without `drafts`, texts come in commits alone.
        """
        self.requests: list[Request] = []
        """Every request, in the order of arrival."""
        self._replies = deque(replies)
        self._name = name
        self._capabilities = capabilities

    @property
    def name(self) -> str:
        """A short name for traces and errors."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What it was told to claim."""
        return self._capabilities

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of the next reply; see `Backend.stream`.

        Raises:
            ConfigurationError: There is no reply left.
            OutputInvalid: The text that was given does not satisfy `request.schema`.
        """
        return traced(self, request, self._stream(request))

    async def aclose(self) -> None:
        """Nothing is held; any number of calls is safe."""

    def assert_done(self) -> None:
        """Raise `AssertionError` where replies are left over."""
        if self._replies:
            raise AssertionError(
                f"{self._name}: {len(self._replies)} of its replies were never asked for, "
                f"after {len(self.requests)} requests"
            )

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        events = self._play(request, await self._next(request))
        async with aclosing(events):
            yield events

    async def _next(self, request: Request) -> Said:
        self.requests.append(request)
        if not self._replies:
            raise ConfigurationError(
                f"{self._name} has no reply left for request {len(self.requests)} "
                f"(kind {request.kind!r}); give `Scripted` one more"
            )
        scene = self._replies.popleft()
        if not callable(scene):
            return scene
        said = scene(request)
        return await said if inspect.isawaitable(said) else said

    async def _play(self, request: Request, said: Said) -> AsyncGenerator[Event]:
        for event in self._events(request, said):
            await anyio.lowlevel.checkpoint()
            if isinstance(event, Exception):
                raise event
            yield event

    def _events(self, request: Request, said: Said) -> Iterator[Event | Exception]:
        match said:
            case str():
                yield from self._speak(request, said)
            case ToolCall():
                yield self._call(request, (said,))
            case Exception():
                yield said
            case _ if said and all(isinstance(item, ToolCall) for item in said):
                yield self._call(request, tuple(cast("Sequence[ToolCall]", said)))
            case _:
                yield from cast("Sequence[Event | Exception]", said)

    def _speak(self, request: Request, text: str) -> Iterator[Event]:
        for start in range(0, len(text), BLOCK):
            block = text[start : start + BLOCK]
            if self._capabilities.drafts:
                yield Draft(block[: len(block) // 2] + "␣" * (len(block) - len(block) // 2))
            yield Commit(block)
        enforcement: Enforcement = "none"
        if request.schema is not None:
            check_output(text, validator(request.schema), backend=self._name)
            enforcement = "validated"
        yield self._finish(request, "stop", enforcement=enforcement, written=text)

    def _call(self, request: Request, calls: tuple[ToolCall, ...]) -> Finish:
        enforcement = "validated" if arguments_hold(calls, request.tools) else "none"
        written = "".join(f"{call.name}{dict(call.arguments)}" for call in calls)
        return self._finish(
            request, "tool_calls", calls=calls, enforcement=enforcement, written=written
        )

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        written: str,
        enforcement: Enforcement,
        calls: tuple[ToolCall, ...] = (),
    ) -> Finish:
        read = "".join(message.content for message in request.messages)
        return Finish(
            reason=reason,
            tool_calls=calls,
            usage=Usage(input_tokens=_tokens(read), output_tokens=_tokens(written)),
            stats=Stats(),
            enforcement=enforcement,
            budget=request.budget,
            model=self._name,
        )


def _tokens(text: str) -> int:
    return -(-len(text) // 4)
