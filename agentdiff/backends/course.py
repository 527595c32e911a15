"""One request on its way through a router: who was asked, what it cost, and the time that is left.

Knows no events and no wire: the router opens streams, this decides whom to, for how long, and what
becomes of a failure.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NoReturn, TypeVar

import anyio

from agentdiff.backends.breaker import Breaker
from agentdiff.backends.latency import Latencies, Taken
from agentdiff.backends.policies import Attempt, Objection, Policy, RouteContext, Rule
from agentdiff.errors import (
    AgentDiffError,
    BackendError,
    BudgetTooSmall,
    ConfigurationError,
    ContextTooLong,
    OutputInvalid,
    SchemaError,
    TimedOut,
    Unavailable,
)
from agentdiff.generation import Backend, Request, Stats
from agentdiff.messages import Usage
from agentdiff.telemetry.routing import RouteSpan

IN_DOUBT: Final = "in doubt"
MARGIN_S: Final = 0.05
"""Kept for the next backend beside twice the time that it has lately taken."""
_ANOTHER_MAY = (BudgetTooSmall, ContextTooLong, SchemaError, OutputInvalid)
"""Not worth a second try with the same backend, but with another."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend of a router."""

    backend: Backend
    name: str
    """Its name, numbered where two have the same."""
    breaker: Breaker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all requests of a router have in common."""

    name: str
    candidates: tuple[Candidate, ...]
    rules: tuple[Rule, ...]
    policies: tuple[Policy, ...]
    """The last of them always has an opinion."""
    max_attempts: int
    latencies: Latencies

    @property
    def names(self) -> dict[int, str]:
        """What each backend is called, by `id`."""
        return {id(each.backend): each.name for each in self.candidates}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A decision."""

    backend: Backend | None
    """None where nobody is left, or nobody may be asked."""
    reason: str
    objections: dict[int, Objection]
    """By `id` of the backend; against others it was only that they were not preferred."""


def select(setup: Setup, context: RouteContext, objections: dict[int, Objection]) -> Selection:
    """Ask the rules, then the policies. `objections` are those that hold already."""
    found = dict(objections)
    for backend in context.candidates:
        if id(backend) not in found:
            said = (rule.objection(context, backend) for rule in setup.rules)
            if (objection := next(filter(None, said), None)) is not None:
                found[id(backend)] = objection
    free = [b for b in context.candidates if id(b) not in found]
    usable = free or [b for b in context.candidates if not found[id(b)].is_final]
    if usable:
        narrowed = replace(context, candidates=tuple(usable))
        for policy in setup.policies:
            if (backend := policy.select(narrowed)) is not None:
                if not any(backend is each for each in usable):
                    raise ConfigurationError(
                        f"{setup.name}: a policy chose {backend.name!r}, which is not among the "
                        f"candidates ({', '.join(each.name for each in usable)})"
                    )
                reason = policy.reason if free else f"{policy.reason}, of those with a bad sign"
                return Selection(backend=backend, reason=reason, objections=found)
    return Selection(backend=None, reason="", objections=found)


@dataclass(slots=True)
class _Open:
    """The attempt that is being made."""

    candidate: Candidate
    has_others: bool
    """Whether another backend could take over."""
    began: float
    """By anyio's clock, as the next one."""
    until: float
    """When it has to have begun to answer, so that another one still can."""
    waited_s: float = 0.0
    """Seconds spent waiting for the backend, not for the caller."""
    first_s: float | None = None


class Course:
    """The way of one request. After each `choose`, exactly one outcome is to be told."""

    def __init__(self, setup: Setup, request: Request, span: RouteSpan) -> None:
        self._setup = setup
        self._request = request
        self._span = span
        self._began = anyio.current_time()
        self._deadline = math.inf
        if request.deadline_s is not None:
            self._deadline = self._began + request.deadline_s
        self._attempts: list[Attempt] = []
        self._spent = Usage(requests=0)
        self._objections: Mapping[int, Objection] = {}
        self._now: _Open | None = None
        self._has_reached_caller = False
        self._is_answered = False

    # -- deciding ----

    def choose(self, *, has_answer: bool = False) -> Backend | None:
        """The backend to ask next; None where nobody is left and there is an answer all the same.

        Raises:
            BackendError: Nobody is left. The last error's class, and what each attempt came to.
            OutputInvalid: Nobody is left, and the last output was invalid.
            ConfigurationError: No backend can do what was asked for.
        """
        found = self._selected()
        self._objections = found.objections
        if found.backend is None:
            if has_answer:
                return None
            self._give_up()
        context = self._context()
        self._span.chose(
            context.name_of(found.backend),
            attempt=len(self._attempts) + 1,
            reason=found.reason,
            rejected=self._rejected(),
        )
        self._now = self._opened(found.backend, context)
        return found.backend

    def asked(self) -> Request:
        """The request for the attempt: with the time that is left; retried by the last backend only."""
        may_retry = self._request.may_retry and not self._attempt.has_others
        return replace(self._request, deadline_s=self.left_s, may_retry=may_retry)

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, always more than none; None where there is no deadline."""
        if self._deadline == math.inf:
            return None
        return max(0.001, self._deadline - anyio.current_time())

    async def timed(self, work: Awaitable[_T]) -> _T:
        """Wait for the backend, no longer than there is time; the spans it makes belong to the route's.

        Raises:
            TimedOut: It took longer.
        """
        now = self._attempt
        until = self._deadline if self._has_reached_caller else min(self._deadline, now.until)
        began = anyio.current_time()
        try:
            with self._span.current(), anyio.CancelScope(deadline=until):
                return await work
        finally:
            now.waited_s += anyio.current_time() - began
        kept = "" if until == self._deadline else ", which leaves time for another backend"
        message = f"no answer within {until - now.began:.2f} s{kept}"
        raise TimedOut(message, backend=now.candidate.name)

    # -- what became of the attempt ----

    def committed(self, *, reaches_caller: bool) -> None:
        """Text has come; once it reaches the caller nobody can take over."""
        now = self._attempt
        if now.first_s is None:
            now.first_s = now.waited_s
        self._has_reached_caller = self._has_reached_caller or reaches_caller

    def answered(self, usage: Usage) -> None:
        """The backend has answered, and that counts."""
        self._is_answered = True
        self._done(usage)

    def doubted(self, usage: Usage) -> None:
        """The backend has answered with too little confidence, so that another one is asked."""
        self._note(self._done(usage), IN_DOUBT)

    def failed(
        self, error: AgentDiffError, *, has_answer: bool = False, another_may: bool = False
    ) -> None:
        """The backend has failed; `another_may` where another could do what this one cannot.

        Raises:
            AgentDiffError: Nobody may take over; the error, in the router's name.
        """
        now = self._closed()
        if now.candidate.breaker is not None:
            now.candidate.breaker.failed(error)
        if isinstance(error, TimedOut):  # it would have taken longer still
            self._observe(now)
        # What a failed request has cost is seldom known.
        self._spent += error.usage if isinstance(error.usage, Usage) else Usage()
        self._note(now, error)
        another_may = another_may or error.retryable or isinstance(error, _ANOTHER_MAY)
        if self._has_reached_caller or not (another_may or has_answer):
            self._raise(error)

    def left(self) -> None:
        """The caller has gone."""
        now, self._now = self._now, None
        if now is not None and now.candidate.breaker is not None:
            now.candidate.breaker.left()

    # -- the sum of it ----

    @property
    def spent(self) -> Usage:
        """Of all attempts."""
        return self._spent

    @property
    def attempts(self) -> int:
        """Backends asked so far, the one that has answered included."""
        return len(self._attempts) + self._is_answered

    @property
    def warnings(self) -> tuple[str, ...]:
        """One for each attempt that brought no answer, or one in doubt: each may be billed."""
        return tuple(
            f"`{self._name_of(each.backend)}` answered with too little confidence"
            if each.why == IN_DOUBT
            else f"`{self._name_of(each.backend)}` was asked before: {_kind_of(each.why)}"
            for each in self._attempts
        )

    def stats(self, stats: Stats) -> Stats:
        """The stats of the attempt that is ending, as they are for whoever asked the router."""
        if not self._attempts:
            return stats
        before_s = self._attempt.began - self._began
        first_s, total_s = stats.first_commit_s, stats.total_s
        return replace(
            stats,
            attempts=stats.attempts + len(self._attempts),
            first_commit_s=None if first_s is None else before_s + first_s,
            total_s=None if total_s is None else before_s + total_s,
        )

    # -- its parts ----

    @property
    def _attempt(self) -> _Open:
        assert self._now is not None, "no attempt is under way"
        return self._now

    def _selected(self) -> Selection:
        is_late = self._deadline <= anyio.current_time()
        if is_late or len(self._attempts) >= self._setup.max_attempts:
            return Selection(backend=None, reason="", objections={})
        resting = {
            id(each.backend): Objection(reason=why, wait_s=each.breaker.wait_s)
            for each in self._setup.candidates
            if each.breaker is not None and (why := each.breaker.objection()) is not None
        }
        return select(self._setup, self._context(), resting)

    def _context(self) -> RouteContext:
        tried = {id(attempt.backend) for attempt in self._attempts}
        backends = [each.backend for each in self._setup.candidates]
        return RouteContext(
            request=self._request,
            candidates=tuple(b for b in backends if id(b) not in tried),
            attempts=tuple(self._attempts),
            left_s=self.left_s,
            latencies=self._setup.latencies,
            names=self._setup.names,
        )

    def _opened(self, backend: Backend, context: RouteContext) -> _Open:
        (candidate,) = (c for c in self._setup.candidates if c.backend is backend)
        others = [
            b
            for b in context.candidates
            if b is not backend
            and (id(b) not in self._objections or not self._objections[id(b)].is_final)
        ]
        has_others = bool(others) and len(self._attempts) + 1 < self._setup.max_attempts
        began = anyio.current_time()
        until = self._deadline
        if has_others and until < math.inf:
            needed = [
                context.latencies.total_s(context.name_of(b), self._request.kind, share=0.9)
                for b in others
            ]
            quickest = min((s for s in needed if s is not None), default=math.inf)
            # Half of the time where nobody knows how long another one would take.
            until -= min(2 * quickest + MARGIN_S, (until - began) / 2)
        if candidate.breaker is not None:
            candidate.breaker.begin()
        return _Open(candidate=candidate, has_others=has_others, began=began, until=until)

    def _closed(self) -> _Open:
        now, self._now = self._attempt, None
        return now

    def _done(self, usage: Usage) -> _Open:
        now = self._closed()
        if now.candidate.breaker is not None:
            now.candidate.breaker.succeeded()
        self._observe(now)
        self._spent += usage
        return now

    def _observe(self, now: _Open) -> None:
        taken = Taken(total_s=now.waited_s, first_s=now.first_s)
        self._setup.latencies.observe(now.candidate.name, self._request.kind, taken)

    def _note(self, now: _Open, why: AgentDiffError | str) -> None:
        self._attempts.append(Attempt(backend=now.candidate.backend, why=why, seconds=now.waited_s))
        self._span.gave_up(now.candidate.name, attempt=len(self._attempts), why=why)

    def _name_of(self, backend: Backend) -> str:
        return self._setup.names[id(backend)]

    def _rejected(self) -> list[str]:
        tried = [f"{self._name_of(each.backend)}: {_kind_of(each.why)}" for each in self._attempts]
        objected = [
            f"{each.name}: {objection.reason}"
            for each in self._setup.candidates
            if (objection := self._objections.get(id(each.backend))) is not None
        ]
        return tried + objected

    # -- the end without an answer ----

    def _give_up(self) -> NoReturn:
        if self._attempts:
            why = self._attempts[-1].why
            assert not isinstance(why, str), "an answer in doubt is an answer"
            self._raise(why)
        if self._deadline <= anyio.current_time():
            raise TimedOut("no time is left to ask anybody", backend=self._setup.name)
        waits = [each.wait_s for each in self._objections.values() if each.wait_s is not None]
        message = f"no backend can take this request ({'; '.join(self._rejected())})"
        if waits:
            raise Unavailable(message, backend=self._setup.name, retry_after_s=min(waits))
        raise ConfigurationError(f"{self._setup.name}: {message}")

    def _raise(self, error: AgentDiffError) -> NoReturn:
        """Raise `error` in the router's name, with what every attempt came to."""
        if not isinstance(error, BackendError):
            error.usage = self._spent
            raise error
        told = [_told(self._name_of(each.backend), each.why) for each in self._attempts]
        objected = self._rejected()[len(self._attempts) :]
        # A subclass of somebody else's may be made in another way.
        kind = next(k for k in type(error).__mro__ if k.__init__ is BackendError.__init__)
        waits = [
            each.why.retry_after_s
            for each in self._attempts
            if isinstance(each.why, BackendError) and each.why.retry_after_s is not None
        ]
        raised = kind(
            "; ".join(told + objected),
            backend=self._setup.name,
            status=error.status,
            retry_after_s=min(waits, default=None),
        )
        raised.partial = error.partial
        raised.usage = self._spent
        raise raised from error


def _kind_of(why: AgentDiffError | str) -> str:
    return why if isinstance(why, str) else type(why).__name__


def _told(name: str, why: AgentDiffError | str) -> str:
    """What an attempt came to; most errors begin with the backend's name by themselves."""
    return str(why) if str(why).startswith(name) else f"{name}: {why}"
