"""Several backends as one: who is asked, and who takes over when that fails.

For each request the rules object, the policies prefer, and the one chosen is asked. Until the first
committed text has reached the caller another may take over; what the caller has seen of drafts is
replaced. One deadline holds for all attempts. Every decision is on the span.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from agentdiff.backends import decisions
from agentdiff.backends.breaker import Breaker, BreakerSettings
from agentdiff.backends.course import Candidate, Course, Setup, select
from agentdiff.backends.latency import Latencies
from agentdiff.backends.policies import (
    STRENGTH,
    Between,
    Capable,
    InOrder,
    Policy,
    RouteContext,
    Rule,
)
from agentdiff.errors import AgentDiffError, ConfigurationError, ProtocolError
from agentdiff.generation import (
    Backend,
    Budget,
    Capabilities,
    Commit,
    Decision,
    Event,
    Finish,
    Infills,
    Question,
    Request,
    Result,
)
from agentdiff.messages import user
from agentdiff.telemetry.routing import routing

_Answered = TypeVar("_Answered", Decision, Result)


class Router:
    """A backend that asks one of several, and another one when that fails.

    It fails over on errors that are `retryable`, and on those that another backend may not have: a
    prompt that is too long, a schema that cannot be enforced, an output that is invalid. The last
    one left is asked with its own retries; the others are not retried, since another is there.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        policy: Policy | Sequence[Policy] = (),
        rules: Sequence[Rule] = (),
        max_attempts: int | None = None,
        doubt_below: float | None = None,
        breaker: BreakerSettings | None = BreakerSettings(),  # noqa: B008 - it is frozen
        name: str = "router",
    ) -> None:
        """Nothing is asked yet.

        Args:
            backends: In order of preference, where no policy has an opinion. The router closes them.
            policy: Who is preferred; of several, the first with an opinion.
            rules: Who must not be asked, beside those that cannot do what is asked for.
            max_attempts: Backends asked for one request at most; None for each of them once.
            doubt_below: An answer whose `stats.confidence` is below this is asked for again from the
                next backend; the most confident stands where none is better. With it, texts are
                committed when they are complete.
            breaker: When a backend that fails is left alone; None for never.
            name: The router's name, for traces and errors.

        Raises:
            ConfigurationError: There are no backends, or a number makes no sense.
        """
        if not backends:
            raise ConfigurationError("`backends` is empty; a router needs at least one")
        if len({id(backend) for backend in backends}) < len(backends):
            raise ConfigurationError(
                "`backends` holds a backend twice; it is asked once in any case"
            )
        if max_attempts is not None and max_attempts < 1:
            raise ConfigurationError(f"`max_attempts` must be at least 1, got {max_attempts!r}")
        if doubt_below is not None and not 0 <= doubt_below <= 1:
            raise ConfigurationError(f"`doubt_below` must be in 0..1, got {doubt_below!r}")
        given = tuple(policy) if isinstance(policy, Sequence) else (policy,)
        self._setup = Setup(
            name=name,
            candidates=tuple(
                Candidate(
                    backend=backend,
                    name=its_name,
                    breaker=None if breaker is None else Breaker(breaker),
                )
                for backend, its_name in zip(backends, _names(backends), strict=True)
            ),
            rules=(Capable(), *rules),
            policies=(*given, InOrder()),
            max_attempts=max_attempts or len(backends),
            latencies=Latencies(),
        )
        self._doubt_below = doubt_below

    @property
    def name(self) -> str:
        """A short name for traces and errors."""
        return self._setup.name

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends, in the order given."""
        return tuple(each.backend for each in self._setup.candidates)

    @property
    def latencies(self) -> Latencies:
        """What is known of how fast the backends are."""
        return self._setup.latencies

    @property
    def capabilities(self) -> Capabilities:
        """What holds whoever is asked; room for what one of them has room for, since that one is chosen."""
        each = [backend.capabilities for backend in self.backends]
        tokenizers = dict.fromkeys(one.tokenizer for one in each)
        # A block of one that extends costs little where it is too long. Beside one that does not extend
        # it would look like a canvas, which costs all of its length at every pass.
        fixed = [one for one in each if not one.extends]
        return Capabilities(
            enforcement=STRENGTH[max(STRENGTH.index(one.enforcement) for one in each)],
            tools=any(one.tools for one in each),
            drafts=any(one.drafts for one in each),
            seed=all(one.seed for one in each),
            extends=not fixed,
            continues=all(one.continues for one in each),
            is_double=all(one.is_double for one in each),
            model=", ".join(candidate.name for candidate in self._setup.candidates),
            context_tokens=_most([one.context_tokens for one in each]),
            max_tools=_most([one.max_tools for one in each]),
            tokenizer="|".join(tokenizers),
            quantum=math.lcm(*(one.quantum for one in fixed or each)),
        )

    def select(self, context: RouteContext) -> Backend | None:
        """Whom the rules and policies choose; None where nobody is left or may be.

        For a real request those that have lately failed are left out too.
        """
        return select(self._setup, context, {}).backend

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of events; see `Backend.stream`.

        Raises:
            BackendError: Nobody answered, or the one that did failed after its first committed text.
                Of the last error's class; its message tells of every attempt.
            OutputInvalid: The output of the last one asked was invalid.
            ConfigurationError: No backend can do what was asked for.
        """
        return self._stream(request)

    async def decide(self, question: Question) -> Decision:
        """Choose one of the options; each backend by the best way that it has.

        Raises:
            BackendError: Nobody answered.
        """
        request = Request(messages=question.messages, kind="route", deadline_s=question.deadline_s)

        async def ask(backend: Backend, left_s: float | None) -> Decision:
            return await decisions.decide(backend, replace(question, deadline_s=left_s))

        return await self._asked(request, self._setup, ask)

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """Write what belongs between two texts: see `Infills.infill`. Those that cannot are not asked.

        Raises:
            BackendError: Nobody answered.
            ConfigurationError: No backend can.
        """
        messages = (user(prefix + suffix),)
        request = Request(messages=messages, budget=budget, deadline_s=deadline_s)
        setup = replace(self._setup, rules=(Between(), *self._setup.rules))

        async def ask(backend: Backend, left_s: float | None) -> Result:
            assert isinstance(backend, Infills), "the rule objects to others"
            return await backend.infill(prefix, suffix, budget=budget, deadline_s=left_s)

        return await self._asked(request, setup, ask)

    async def aclose(self) -> None:
        """Close all backends, whatever one of them raises. Calling it twice is safe."""
        async with AsyncExitStack() as stack:
            for backend in self.backends:
                stack.push_async_callback(backend.aclose)

    async def _asked(
        self,
        request: Request,
        setup: Setup,
        ask: Callable[[Backend, float | None], Awaitable[_Answered]],
    ) -> _Answered:
        """The answer to what is no stream, from one backend after the other."""
        with routing(self.name, request.kind, tuple(setup.names.values())) as span:
            course = Course(setup, request, span)
            while (backend := course.choose()) is not None:
                try:
                    found = await course.timed(ask(backend, course.left_s))
                except AgentDiffError as error:
                    # Which model can do it shows when it is asked.
                    course.failed(error, another_may=isinstance(error, ConfigurationError))
                    continue
                except BaseException:
                    course.left()
                    raise
                stats = course.stats(found.stats)
                course.answered(found.usage)
                span.finish(setup.names[id(backend)], attempts=course.attempts)
                warnings = (*course.warnings, *found.warnings)
                return replace(found, usage=course.spent, stats=stats, warnings=warnings)
        raise AssertionError("choosing ends with an error")

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        async with aclosing(self._events(request)) as events:
            yield events

    async def _events(self, request: Request) -> AsyncGenerator[Event]:
        with routing(self.name, request.kind, tuple(self._setup.names.values())) as span:
            course = Course(self._setup, request, span)
            best: _Answer | None = None
            while (backend := course.choose(has_answer=best is not None)) is not None:
                held: list[Commit] = []
                try:
                    async with AsyncExitStack() as stack:
                        opened = backend.stream(course.asked())
                        events = await course.timed(stack.enter_async_context(opened))
                        while not isinstance(event := await course.timed(_next(events)), Finish):
                            if isinstance(event, Commit):
                                course.committed(reaches_caller=self._doubt_below is None)
                                if self._doubt_below is not None:
                                    held.append(event)
                                    continue
                            yield event
                except AgentDiffError as error:
                    course.failed(error, has_answer=best is not None)
                    continue
                except BaseException:
                    course.left()
                    raise
                answer = _Answer(
                    backend=self._setup.names[id(backend)],
                    commits=tuple(held),
                    finish=replace(event, stats=course.stats(event.stats)),
                )
                if not self._is_in_doubt(answer):
                    course.answered(event.usage)
                    best = answer
                    break
                course.doubted(event.usage)
                if best is None or answer.confidence > best.confidence:
                    best = answer
            assert best is not None, "choosing ends with an answer or an error"
            span.finish(best.backend, attempts=course.attempts)
            for commit in best.commits:
                yield commit
            yield replace(
                best.finish,
                usage=course.spent,
                warnings=(*course.warnings, *best.finish.warnings),
            )

    def _is_in_doubt(self, answer: _Answer) -> bool:
        return self._doubt_below is not None and answer.confidence < self._doubt_below


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a backend has answered."""

    backend: str
    commits: tuple[Commit, ...]
    """Those that were held back."""
    finish: Finish

    @property
    def confidence(self) -> float:
        """Its confidence; where it says none, there is no doubt."""
        said = self.finish.stats.confidence
        return 1.0 if said is None else said


async def _next(events: AsyncIterator[Event]) -> Event:
    async for event in events:
        return event
    raise ProtocolError("the stream ended without `Finish`")


def _names(backends: Sequence[Backend]) -> list[str]:
    """What the backends are called: two servers of one model have the same name."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for backend in backends:
        seen[backend.name] += 1
        number = seen[backend.name]
        names.append(backend.name if number == 1 else f"{backend.name} ({number})")
    return names


def _most(rooms: Sequence[int | None]) -> int | None:
    """The most room; None where one of them has no known end."""
    known = [room for room in rooms if room is not None]
    return max(known) if len(known) == len(rooms) else None
