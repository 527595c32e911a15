"""The agent: a backend, instructions, tools, and the type of the output."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, overload

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agentdiff.agent.config import RunConfig
from agentdiff.agent.events import RunEvent, RunResult
from agentdiff.agent.limits import UsageLimits
from agentdiff.agent.output import Output, OutputT
from agentdiff.agent.run import run
from agentdiff.agent.tools import AnyTool, as_tool, by_name
from agentdiff.errors import ConfigurationError
from agentdiff.generation import Backend, Sampling
from agentdiff.length import LengthPredictor
from agentdiff.messages import Message, system

_AHEAD = 32
"""Events that a run may be ahead of the one who reads them."""


class Agent(Generic[OutputT]):
    """Answers prompts with a backend and tools.

    An agent keeps nothing of its runs but what its predictor learned about lengths, so any number
    of runs may be under way at once. It does not own the backend: close that yourself.
    """

    @overload
    def __init__(
        self: Agent[str],
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: str = "",
        name: str = "agent",
        limits: UsageLimits | None = None,
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        max_output_repairs: int = 1,
    ) -> None: ...
    @overload
    def __init__(
        self,
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: str = "",
        output_type: type[OutputT],
        name: str = "agent",
        limits: UsageLimits | None = None,
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        max_output_repairs: int = 1,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any],
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: str = "",
        output_type: object,
        name: str = "agent",
        limits: UsageLimits | None = None,
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        max_output_repairs: int = 1,
    ) -> None: ...
    def __init__(
        self,
        backend: Backend,
        *,
        tools: Sequence[AnyTool | Callable[..., Any]] = (),
        instructions: str = "",
        output_type: object = str,
        name: str = "agent",
        limits: UsageLimits | None = None,
        predictor: LengthPredictor | None = None,
        sampling: Sampling | None = None,
        max_output_repairs: int = 1,
    ) -> None:
        """Put an agent together; nothing is sent.

        Args:
            backend: Who answers.
            tools: What the model may call: `Tool`s or typed functions.
            instructions: The system message.
            output_type: `str`, or any type that pydantic reads from JSON: a model, a dataclass, a
                list, a union.
            name: For traces, and to tell the lengths of this agent's steps from those of others.
            limits: Of each run; `UsageLimits()` by default.
            predictor: Sets the budget of every step and learns from it; a new one, in memory, by
                default.
            sampling: How tokens are chosen.
            max_output_repairs: How often an output that is not valid is shown its faults and asked
                for again.

        Raises:
            ConfigurationError: A tool or the output type cannot be used, or the backend cannot do
                it.
        """
        if not isinstance(backend, Backend):  # pyright: ignore[reportUnnecessaryIsInstance] (not everyone checks types)
            raise ConfigurationError(
                f"`backend` must be a Backend, got {backend!r}; `connect(...)` makes one"
            )
        if max_output_repairs < 0:
            raise ConfigurationError(
                f"`max_output_repairs` must not be negative, got {max_output_repairs!r}"
            )
        named = by_name([as_tool(each) for each in tools])
        _check_tools(backend, len(named))
        self.name = name
        self.instructions = instructions
        self.backend = backend
        self.tools = tuple(named.values())
        output: Output[OutputT] = Output(output_type)
        self._config = RunConfig(
            agent=name,
            backend=backend,
            tools=named,
            output=output,
            limits=limits or UsageLimits(),
            predictor=predictor or LengthPredictor(),
            sampling=sampling or Sampling(),
            max_output_repairs=max_output_repairs,
        )

    async def run(self, prompt: str, *, history: Sequence[Message] = ()) -> RunResult[OutputT]:
        """Answer a prompt.

        Args:
            prompt: What the user asks.
            history: The conversation before it, such as `messages` of an earlier result. This
                agent's instructions take the place of the system message there.

        Raises:
            ConfigurationError: The prompt is empty, or the backend cannot do what was asked for.
            RunError: The run ended without an output.
            BackendError: The backend failed. Like every error that ends a run, it carries the
                `messages`, the `usage` and the `steps` until then.
        """
        return await run(self._config, prompt, before=self._before(prompt, history), emit=_ignore)

    def run_sync(self, prompt: str, *, history: Sequence[Message] = ()) -> RunResult[OutputT]:
        """`run` for code that is not async; the same errors.

        Raises:
            ConfigurationError: There is a running event loop in this thread.
        """
        if _in_event_loop():
            raise ConfigurationError(
                "`run_sync` was called inside a running event loop; use `await agent.run(...)`"
            )

        async def main() -> RunResult[OutputT]:
            return await self.run(prompt, history=history)

        return anyio.run(main)

    @asynccontextmanager
    async def run_events(
        self, prompt: str, *, history: Sequence[Message] = ()
    ) -> AsyncGenerator[AsyncIterator[RunEvent]]:
        """`run` as it goes on: opens an iterator of events, the last of which is `RunFinished`.

        Leaving the context early cancels the generation and the tools. An error of the run is
        raised by the iterator.
        """
        before = self._before(prompt, history)
        send, receive = anyio.create_memory_object_stream[RunEvent](_AHEAD)
        events = _Events(receive)
        failure: BaseException | None = None
        with receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, prompt, before, send, events)
                try:
                    yield events
                except (Exception, KeyboardInterrupt, SystemExit) as error:
                    failure = error  # raised outside the task group, which would wrap it
                finally:
                    tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _send(
        self,
        prompt: str,
        before: Sequence[Message],
        send: MemoryObjectSendStream[RunEvent],
        events: _Events,
    ) -> None:
        with send:
            try:
                await run(self._config, prompt, before=before, emit=send.send)
            except Exception as error:
                events.failure = error

    def _before(self, prompt: str, history: Sequence[Message]) -> list[Message]:
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty; say what is to be done")
        if not self.instructions:
            return list(history)
        return [system(self.instructions), *(each for each in history if each.role != "system")]


class _Events:
    """The events of a run, and at their end its error."""

    def __init__(self, receive: MemoryObjectReceiveStream[RunEvent]) -> None:
        self._receive = receive
        self.failure: Exception | None = None

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> RunEvent:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            pass
        if self.failure is not None:
            raise self.failure
        raise StopAsyncIteration


async def _ignore(event: RunEvent) -> None:
    """For a run that nobody watches."""


def _check_tools(backend: Backend, count: int) -> None:
    capabilities = backend.capabilities
    if count and not capabilities.tools:
        raise ConfigurationError(
            f"backend `{backend.name}` cannot call tools, and {count} were given"
        )
    if capabilities.max_tools is not None and count > capabilities.max_tools:
        raise ConfigurationError(
            f"backend `{backend.name}` takes at most {capabilities.max_tools} tools, got {count};"
            " give it fewer, or use a larger model"
        )


def _in_event_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True
