"""Backends that answer what they were told to: the doubles for tests of everything that asks.

`Scripted` answers from a list, `FunctionBackend` asks a function each time, `TestBackend` needs to
be told nothing: it calls every tool once and then answers. They behave like a real one: texts come
in drafts and commits, structured outputs are validated, and every stream ends with `Finish`. A
token is four characters here, so that usage has numbers.
"""

from __future__ import annotations

import inspect
import json
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
from dataclasses import replace
from typing import TypeAlias, cast

import anyio.lowlevel

from agentdiff.backends.filling import shortest
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
from agentdiff.messages import Json, ToolCall, Usage
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
    enforcement="validated",
    drafts=True,
    seed=True,
    is_double=True,
    tokenizer="scripted: 4 characters",
)


class _Double:
    """What the doubles share: how a reply becomes a stream."""

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self.requests: list[Request] = []
        """Every request, in the order of arrival."""
        self._name = name
        self._capabilities = capabilities

    @property
    def name(self) -> str:
        """A short name for traces and errors."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What it was told to claim, and that it is a double."""
        return self._capabilities

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of the reply to `request`; see `Backend.stream`.

        Raises:
            ConfigurationError: There is no reply for it.
            OutputInvalid: The text that was given does not satisfy `request.schema`.
        """
        return traced(self, request, self._stream(request))

    async def aclose(self) -> None:
        """Nothing is held; any number of calls is safe."""

    def _scene(self, request: Request) -> Scene:
        """What is said to the newest request."""
        raise NotImplementedError

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        self.requests.append(request)
        scene = self._scene(request)
        said = scene(request) if callable(scene) else scene
        events = self._play(request, await said if inspect.isawaitable(said) else said)
        async with aclosing(events):
            yield events

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


class Scripted(_Double):
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
        super().__init__(name, replace(capabilities, is_double=True))
        self._replies = deque(replies)

    def assert_done(self) -> None:
        """Raise `AssertionError` where replies are left over."""
        if self._replies:
            raise AssertionError(
                f"{self._name}: {len(self._replies)} of its replies were never asked for, "
                f"after {len(self.requests)} requests"
            )

    def _scene(self, request: Request) -> Scene:
        if not self._replies:
            raise ConfigurationError(
                f"{self._name} has no reply left for request {len(self.requests)} "
                f"(kind {request.kind!r}); give `Scripted` one more"
            )
        return self._replies.popleft()


class FunctionBackend(_Double):
    """Answers each request with what a function says to it."""

    def __init__(
        self,
        function: Callable[[Request], Said | Awaitable[Said]],
        *,
        name: str = "function",
        capabilities: Capabilities = _DOUBLE,
    ) -> None:
        """Take the function.

        Args:
            function: Sync or async; see `Said` for what it may say.
            name: The backend's name.
            capabilities: What it claims; without `drafts`, texts come in commits alone.
        """
        super().__init__(name, replace(capabilities, is_double=True))
        self._function = function

    def _scene(self, request: Request) -> Scene:
        return self._function


class TestBackend(_Double):
    """Calls every tool once, all in one turn, and then answers; needs to be told nothing.

    Arguments and typed outputs are the shortest that satisfy their schema; strings are `a`. It
    exercises the wiring of an agent, not its wits.
    """

    __test__ = False  # pytest looks for classes named like this

    def __init__(
        self,
        *,
        calls: Sequence[str] | None = None,
        answer: str = "done",
        name: str = "test",
        capabilities: Capabilities = _DOUBLE,
    ) -> None:
        """Nothing is said yet.

        Args:
            calls: The names of the tools to call; None calls every one.
            answer: What it says where text is wanted.
            name: The backend's name.
            capabilities: What it claims.
        """
        super().__init__(name, replace(capabilities, is_double=True))
        self._calls = calls
        self._answer = answer

    def _scene(self, request: Request) -> Scene:
        wanted = [tool for tool in request.tools if self._calls is None or tool.name in self._calls]
        if wanted and not _has_called(request):
            return [
                ToolCall(
                    id=f"call_{place}",
                    name=tool.name,
                    arguments=cast("dict[str, Json]", shortest(tool.parameters)),
                )
                for place, tool in enumerate(wanted, 1)
            ]
        if request.schema is not None:
            return json.dumps(shortest(request.schema))
        return self._answer


def _has_called(request: Request) -> bool:
    """Whether tools were called since the user last spoke."""
    for message in reversed(request.messages):
        if message.role == "user":
            return False
        if message.tool_calls:
            return True
    return False


def _tokens(text: str) -> int:
    return -(-len(text) // 4)
