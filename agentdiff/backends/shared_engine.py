"""One engine, many streams: their blocks share forward passes, and nothing runs when nobody waits.

Whoever waits for tokens takes the step for all, in a worker thread. Who comes and who leaves is told to the engine
between steps, so that nobody waits for a step to come or to leave. Streams may live in several event loops.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from agentdiff.errors import BackendError, ConfigurationError

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.engine import DecodeParams, Engine, Update


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One sequence to be decoded."""

    prompt: list[int]
    params: DecodeParams
    matcher: Matcher | None
    number: int | None = None
    """The engine's number for it; None until the engine knows it."""
    refusal: ConfigurationError | None = None
    """Why the engine would not have it."""
    updates: deque[Update] = field(default_factory=deque["Update"])
    """What the engine has done for it and its stream has not yet told."""
    is_over: bool = False
    """Whether nobody waits for it any more."""


class SharedEngine:
    """An engine for streams of any thread."""

    def __init__(self, engine: Engine, *, name: str) -> None:
        """Share an engine; `name` is whose errors say."""
        self._engine = engine
        self._name = name
        self._engine_lock = threading.Lock()
        self._changed: deque[Job] = deque()
        """Who came or left since the engine was last told."""
        self._jobs: dict[int, Job] = {}
        """Whom the engine decodes for, by sequence; only touched under the engine's lock."""
        self._lock: RunVar[anyio.Lock] = RunVar(f"agentdiff-engine-{id(self)}")

    @property
    def held(self) -> int:
        """Jobs that something is still held for."""
        return len(self._jobs) + len(self._changed)

    def join(self, job: Job) -> None:
        """Let a job in at the next step."""
        self._changed.append(job)

    def leave(self, job: Job) -> None:
        """Let a job go without waiting for a step that is under way; twice is safe."""
        job.is_over = True
        self._changed.append(job)
        self._settle_soon()

    def close(self) -> None:
        """Let all jobs go; their streams end with a `BackendError`."""
        for job in [*self._jobs.values(), *self._changed]:
            self.leave(job)

    async def follow(self, job: Job) -> AsyncGenerator[list[Update]]:
        """What each step did for a job, up to its last update; empty where a step was for others only.

        Raises:
            BackendError: The engine failed, or was closed.
            ConfigurationError: The engine does not take the job.
        """
        try:
            lock = self._lock.get()
        except LookupError:
            lock = anyio.Lock()
            self._lock.set(lock)
        while True:
            async with lock:
                if not job.updates and not job.is_over:
                    try:
                        await anyio.to_thread.run_sync(self._step)
                    except Exception as error:
                        raise self.failed(error) from error
            if job.refusal is not None:
                raise job.refusal
            if job.is_over:
                raise BackendError("closed before the reply was complete", backend=self._name)
            updates: list[Update] = []
            while job.updates:
                updates.append(job.updates.popleft())
            yield updates

    def failed(self, error: Exception) -> BackendError:
        """What a failed decode is called: by the kind of its error, whose words may quote the prompt."""
        return BackendError(f"the decode failed: {type(error).__name__}", backend=self._name)

    def _step(self) -> None:
        """One engine step for everybody. Runs in a worker thread."""
        try:
            with self._engine_lock:
                self._settle()
                for update in self._engine.step():
                    self._jobs[update.sequence].updates.append(update)
        finally:
            self._settle_soon()

    def _settle_soon(self) -> None:
        """Settle now, or leave it to whoever has the engine: they come here once they let go of it."""
        while self._changed and self._engine_lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._engine_lock.release()

    def _settle(self) -> None:
        """Tell the engine who came and who left; under its lock."""
        while self._changed:
            job = self._changed.popleft()
            if not job.is_over:
                try:
                    job.number = self._engine.add(job.prompt, job.params, job.matcher)
                except ConfigurationError as error:
                    job.refusal = error
                else:
                    self._jobs[job.number] = job
            elif job.number is not None:
                self._engine.cancel(job.number)
                self._jobs.pop(job.number, None)
