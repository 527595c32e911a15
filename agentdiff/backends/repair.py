"""An invalid output is shown its faults and asked for once more.

For whoever asks a backend directly. A run of an agent repairs by itself, since there it is a step like
others: it counts against the limits of the run, is kept in its journal and has a budget of its own.
So what an agent asks for as a repair passes through here, and nothing is mended twice.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio

from agentdiff.backends import decisions
from agentdiff.backends.validation import check_output, validator
from agentdiff.errors import (
    AgentDiffError,
    ConfigurationError,
    OutputInvalid,
    ProtocolError,
)
from agentdiff.generation import (
    Backend,
    Budget,
    Capabilities,
    Commit,
    Decision,
    Draft,
    Event,
    Finish,
    Infills,
    Question,
    Request,
    Result,
)
from agentdiff.messages import Message, Usage, assistant, user
from agentdiff.telemetry.routing import repairing

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


class Repairing:
    """The same backend, whose outputs satisfy the schema that was asked for, or fail.

    What the backend does not say to be enforced is validated here. An output that is invalid is shown
    to the model with every fault, within the same deadline and with the same budget; then
    `enforcement` is `repaired`. Structured output is committed when it is known to be valid.
    """

    def __init__(self, backend: Backend, *, repairs: int = 1) -> None:
        """Nothing is asked yet.

        Args:
            backend: Who answers; closed with this.
            repairs: Further calls for one request, at most.

        Raises:
            ConfigurationError: `repairs` is negative.
        """
        if repairs < 0:
            raise ConfigurationError(f"`repairs` must be at least 0, got {repairs!r}")
        self._backend = backend
        self._repairs = repairs

    @property
    def name(self) -> str:
        """The backend's own."""
        return self._backend.name

    @property
    def capabilities(self) -> Capabilities:
        """The backend's own; every schema gets `repaired` at least."""
        own = self._backend.capabilities
        return replace(own, enforcement="repaired") if own.enforcement == "none" else own

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of events; see `Backend.stream`.

        Raises:
            OutputInvalid: The output was still invalid after the last repair; carries the usage of all
                calls. Nothing was committed.
            BackendError: The backend failed; carries the usage so far.
        """
        if request.schema is None or request.kind == "repair":
            return self._backend.stream(request)
        return self._stream(request, validator(request.schema))

    async def decide(self, question: Question) -> Decision:
        """The backend's decision, which is one of the options in any case.

        Raises:
            BackendError: The backend failed.
        """
        return await decisions.decide(self._backend, question)

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """What the backend writes between two texts; there is nothing to repair.

        Raises:
            BackendError: The backend failed.
            ConfigurationError: The backend cannot.
        """
        if not isinstance(self._backend, Infills):
            raise ConfigurationError(f"{self.name} does not write between two texts")
        return await self._backend.infill(prefix, suffix, budget=budget, deadline_s=deadline_s)

    async def aclose(self) -> None:
        """Close the backend. Calling it twice is safe."""
        await self._backend.aclose()

    @asynccontextmanager
    async def _stream(
        self, request: Request, schema: Validator
    ) -> AsyncGenerator[AsyncIterator[Event]]:
        async with aclosing(self._events(request, schema)) as events:
            yield events

    async def _events(self, request: Request, schema: Validator) -> AsyncGenerator[Event]:
        mending = _Mending(request=request, began=anyio.current_time())
        while True:
            committed = ""
            finish = None
            mending.calls += 1
            try:
                async with self._backend.stream(mending.asked()) as events:
                    async for event in events:
                        match event:
                            case Draft():
                                yield event
                            case Commit(text):
                                committed += text
                            case Finish():
                                finish = event
                                break
                if finish is None:
                    raise ProtocolError("the stream ended without `Finish`", backend=self.name)
                finish = mending.finished(finish, committed, schema, backend=self.name)
            except OutputInvalid as invalid:
                mending.note(invalid)
                if mending.calls > self._repairs or mending.is_late:
                    raise
                repairing(self.name, attempt=mending.calls, faults=len(_faults(invalid)))
                continue
            except AgentDiffError as error:
                mending.note(error)
                raise
            if committed:
                yield Commit(committed)
            yield finish
            return


@dataclass(slots=True, kw_only=True)
class _Mending:
    """What has been tried for a request, and what it cost."""

    request: Request
    began: float
    calls: int = 0
    spent: Usage = field(default_factory=lambda: Usage(requests=0))
    attempts: int = 0
    """Calls that the backend has made for the outputs that were invalid."""
    added: tuple[Message, ...] = ()
    """What follows the conversation: the invalid output, and what is wrong with it."""
    faults: tuple[str, ...] = ()
    call_began: float = 0.0

    @property
    def _deadline(self) -> float:
        limit_s = self.request.deadline_s
        return math.inf if limit_s is None else self.began + limit_s

    @property
    def is_late(self) -> bool:
        return anyio.current_time() >= self._deadline

    def asked(self) -> Request:
        """The next call."""
        self.call_began = anyio.current_time()
        if self.calls == 1:
            return self.request
        left_s = None
        if self._deadline < math.inf:
            left_s = max(0.001, self._deadline - self.call_began)
        messages = (*self.request.messages, *self.added)
        return replace(self.request, kind="repair", messages=messages, deadline_s=left_s)

    def finished(
        self, finish: Finish, committed: str, schema: Validator, *, backend: str
    ) -> Finish:
        """The end of the stream, with what was tried before it.

        Raises:
            OutputInvalid: The output is not valid.
        """
        text = committed if finish.text is None else finish.text
        is_output = finish.reason == "stop" and not finish.tool_calls
        enforcement = finish.enforcement
        if is_output and enforcement == "none":
            try:
                check_output(text, schema, backend=backend)
            except OutputInvalid as invalid:
                invalid.usage = finish.usage
                raise
            enforcement = "validated"
        if self.calls == 1:
            return replace(finish, enforcement=enforcement)
        before_s = self.call_began - self.began
        first_s, total_s = finish.stats.first_commit_s, finish.stats.total_s
        return replace(
            finish,
            enforcement="repaired" if is_output else enforcement,
            usage=self.spent + finish.usage,
            stats=replace(
                finish.stats,
                attempts=self.attempts + finish.stats.attempts,
                first_commit_s=None if first_s is None else before_s + first_s,
                total_s=None if total_s is None else before_s + total_s,
            ),
            warnings=(
                *(f"repaired, because {fault}" for fault in self.faults),
                *finish.warnings,
            ),
        )

    def note(self, error: AgentDiffError) -> None:
        """Count what a call that failed has cost; after an invalid output, say what is wrong with it."""
        usage = error.usage if isinstance(error.usage, Usage) else Usage()
        self.spent += usage
        self.attempts += usage.requests
        error.usage = self.spent
        if not isinstance(error, OutputInvalid):
            return
        self.faults = _faults(error)
        lines = "\n".join(f"- {fault}" for fault in self.faults)
        shown = (assistant(error.text),) if error.text.strip() else ()
        complaint = (
            f"That is not valid:\n{lines}\nReply again, with one JSON value and nothing else."
        )
        self.added = (*shown, user(complaint))


def _faults(invalid: OutputInvalid) -> tuple[str, ...]:
    return invalid.faults or (str(invalid),)
