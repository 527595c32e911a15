"""A plan as dataflow: each step begins when what it needs is there.

No levels, no polling: a step waits for the steps it needs and for nothing else. Steps may be added while others run, so
a plan can begin before its end is written.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from agentdiff.agent.plan import Plan, PlanStep, filled
from agentdiff.messages import Json

Status = Literal["done", "failed", "skipped"]
CallStep = Callable[[PlanStep, Mapping[str, Json]], Awaitable["Returned"]]
"""Runs one step with its arguments filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a call came to."""

    result: Json = None
    error: str | None = None
    """Why it failed; None when it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A step that is over."""

    step: PlanStep
    status: Status
    result: Json = None
    error: str | None = None
    """Why it failed, or which step it would have needed."""
    started_s: float = 0.0
    """Seconds from the start of the plan."""
    ended_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Seconds that its call took."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """A plan that has run."""

    outcomes: tuple[Outcome, ...]
    """In the order of the plan."""
    wall_ms: float
    """From the start of the first step to the end of the last."""

    @property
    def results(self) -> dict[str, Json]:
        """Id -> result of the steps that are done."""
        return {o.step.id: o.result for o in self.outcomes if o.status == "done"}

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The steps that failed themselves."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    @property
    def sum_ms(self) -> float:
        """What the calls would take one after the other."""
        return 1000 * sum(outcome.duration_s for outcome in self.outcomes)

    @property
    def critical_path_ms(self) -> float:
        """What they would take if nothing waited but for what it needs."""
        ends: dict[str, float] = {}
        left = {outcome.step.id: outcome for outcome in self.outcomes}
        while left:
            for id, outcome in list(left.items()):
                needs = [need for need in outcome.step.needs if need in ends or need in left]
                if all(need in ends for need in needs):
                    begin = max((ends[need] for need in needs), default=0.0)
                    ends[id] = begin + outcome.duration_s
                    del left[id]
        return 1000 * max(ends.values(), default=0.0)

    @property
    def parallel_gain(self) -> float:
        """`sum_ms` over `wall_ms`: how many times faster than one call after the other."""
        return self.sum_ms / self.wall_ms if self.wall_ms > 0 else 1.0


class Dataflow:
    """Steps on their way; use `dataflow`."""

    def __init__(
        self,
        tasks: TaskGroup,
        call: CallStep,
        *,
        max_concurrency: int,
        done: Mapping[str, Json],
    ) -> None:
        self._tasks = tasks
        self._call = call
        self._limiter = anyio.CapacityLimiter(max_concurrency)
        self._results = dict(done)
        self._over: dict[str, anyio.Event] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._steps: list[PlanStep] = []
        self._started = time.perf_counter()
        self._changed = anyio.Event()

    def start(self, step: PlanStep) -> None:
        """Let a step begin as soon as what it needs is there, also what is started later."""
        self._steps.append(step)
        self._over[step.id] = anyio.Event()
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        self._tasks.start_soon(self._run, step)

    def finished(self) -> PlanRun:
        """What became of all steps, once the block has been left."""
        outcomes = tuple(
            self._outcomes[step.id] for step in self._steps if step.id in self._outcomes
        )
        begun = [o for o in outcomes if o.status != "skipped"]
        first = min((o.started_s for o in begun), default=0.0)
        last = max((o.ended_s for o in begun), default=0.0)
        return PlanRun(outcomes=outcomes, wall_ms=1000 * (last - first))

    async def _run(self, step: PlanStep) -> None:
        try:
            self._outcomes[step.id] = outcome = await self._outcome(step)
        finally:
            self._over[step.id].set()
        if outcome.status == "failed" and step.on_error == "fail":
            self._tasks.cancel_scope.cancel()

    async def _outcome(self, step: PlanStep) -> Outcome:
        for need in step.needs:
            if need in self._results:
                continue
            await self._end_of(need)
            if need not in self._results:
                return Outcome(step=step, status="skipped", error=f"`{need}` has no result")
        async with self._limiter:
            started = time.perf_counter() - self._started
            try:
                arguments: dict[str, Json] = filled(step.arguments, self._results)
            except LookupError as error:
                returned = Returned(error=str(error.args[0]))
            else:
                returned = await self._call(step, arguments)
            ended = time.perf_counter() - self._started
        if returned.error is None:
            self._results[step.id] = returned.result
        return Outcome(
            step=step,
            status="done" if returned.error is None else "failed",
            result=returned.result,
            error=returned.error,
            started_s=started,
            ended_s=ended,
        )

    async def _end_of(self, id: str) -> None:
        while id not in self._over:  # a plan that is still being written may name it later
            await self._changed.wait()
        await self._over[id].wait()


@asynccontextmanager
async def dataflow(
    call: CallStep, *, max_concurrency: int = 16, done: Mapping[str, Json] | None = None
) -> AsyncGenerator[Dataflow]:
    """Open a dataflow; leaving it waits for every step.

    Args:
        call: Runs one step.
        max_concurrency: Calls at the same time.
        done: Id -> result of steps that ran before; they may be referred to and do not run again.
    """
    failures: list[Exception] = []

    async def guarded(step: PlanStep, arguments: Mapping[str, Json]) -> Returned:
        try:
            return await call(step, arguments)
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()
            return Returned(error=str(error))

    try:
        async with anyio.create_task_group() as tasks:
            flow = Dataflow(tasks, guarded, max_concurrency=max_concurrency, done=done or {})
            try:
                yield flow
            except Exception as error:  # of who adds the steps, and not in a group of one
                failures.append(error)
                tasks.cancel_scope.cancel()
    finally:
        if failures:
            raise failures[0]


async def execute(
    plan: Plan,
    call: CallStep,
    *,
    max_concurrency: int = 16,
    done: Mapping[str, Json] | None = None,
) -> PlanRun:
    """Run a whole plan. It must have passed `check_plan`, else a step may wait for ever."""
    async with dataflow(call, max_concurrency=max_concurrency, done=done) as flow:
        for step in plan.steps:
            flow.start(step)
    return flow.finished()
