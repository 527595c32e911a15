"""One generation of a run: its budget, its stream, and what happens when the budget cuts it.

A cut generation is extended by a backend that can, else continued by one that can, else made again
with twice the room, as often as the agent allows. What still is cut then has no text, so it reaches
no parser and no history. A budget that was given is a law: nothing goes beyond its ceiling.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from agentdiff.agent.budgets import BudgetChoice, given
from agentdiff.agent.config import Emit, RunConfig
from agentdiff.agent.events import Committed, Drafting, StepStarted
from agentdiff.agent.limits import Spending
from agentdiff.agent.output import OutputT
from agentdiff.errors import BudgetTooSmall, OutputInvalid, ProtocolError
from agentdiff.generation import (
    Backend,
    Budget,
    Capabilities,
    Commit,
    Draft,
    Effort,
    Request,
    Result,
    Stats,
    StepKind,
    check_allowed,
    finish,
)
from agentdiff.length import StepContext, cost_of, schema_bounds
from agentdiff.messages import Json, Message, ToolSpec, Usage, assistant
from agentdiff.telemetry import RunSpan

_CHARACTERS_PER_TOKEN = 4
"""For the lengths of inputs, which only have to be told in the same way each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A generation that the run wants."""

    number: int
    """Of the step that it belongs to."""
    kind: StepKind
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    schema: Mapping[str, Json] | None = None
    """Of the output, where the reply must be the output."""
    tool: str | None = None
    """The tool whose arguments are the output."""
    is_choice: bool = False
    """Whether only the name of a tool is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generation that is done, before the run knows what it is."""

    kind: StepKind
    result: Result
    """Of the last attempt."""
    budget: Budget | None
    """Of the last attempt; None where none was sent."""
    predicted: Budget
    """Of the first attempt."""
    usage: Usage
    """Of all attempts."""
    requests: int
    """Requests of the run: 1, and one for each that was cut and made again or continued."""
    attempts: int
    """Calls of the backend, its own retries included."""
    warnings: tuple[str, ...]
    was_cut: bool
    """The budget's ceiling ended it and there is nothing whole in it; its text is gone."""
    duration_s: float
    is_choice: bool = False
    """Whether only the name of a tool was wanted."""


async def make_generation(
    config: RunConfig[OutputT],
    ask: Ask,
    *,
    spending: Spending,
    emit: Emit | None,
    budget: BudgetChoice | None = None,
    episode: str | None = None,
    span: RunSpan | None = None,
) -> Generation:
    """Make a generation, more than once if its budget cut it.

    Args:
        config: The agent.
        ask: What is wanted.
        spending: Of the run; counts every attempt.
        emit: Takes the events; None where nobody watches.
        budget: What was given for this run.
        episode: Names the run, so that its earlier steps tell something about the next.
        span: Of the run; told about every cut.

    Raises:
        LimitExceeded: The limits have no room for it.
        BackendError: The backend failed.
    """
    backend, sampling = config.backend_of(ask.kind), config.sampling_of(ask.kind)
    check_allowed(backend)
    capabilities = backend.capabilities
    allowed = _given(config, ask, budget)
    context = None
    if allowed is None:
        tokenizer = capabilities.tokenizer or backend.name
        context = _context(config, ask, tokenizer, sampling.effort, episode)
        allowed = config.predictor.predict(context, cost_of(capabilities))
    first = allowed
    send = _with_hooks(config, backend, ask.number, emit)
    usage, requests, attempts = None, 0, 0
    warnings: tuple[str, ...] = ()
    written = ""
    started = time.perf_counter()
    while True:
        spending.count_request()
        requests += 1
        if emit is not None:
            await emit(StepStarted(number=ask.number, kind=ask.kind, budget=allowed))
            if written:
                await emit(Committed(number=ask.number, text=written))
        request = Request(
            kind=ask.kind,
            messages=(*ask.messages, assistant(written)) if written else ask.messages,
            tools=ask.tools,
            schema=ask.schema,
            budget=None if allowed.is_off else allowed,
            sampling=sampling,
            deadline_s=spending.left_s(),
        )
        try:
            result = await send(request)
        except BudgetTooSmall as small:
            if context is None or small.needed <= allowed.ceiling:
                raise
            warnings += (f"nothing fits in {allowed.ceiling} tokens; given {small.needed}",)
            allowed = Budget(
                target=small.needed, ceiling=small.needed, source=f"{allowed.source}, the least"
            )
            continue
        spending.add(result.usage, model=result.model)
        usage = result.usage if usage is None else usage + result.usage
        attempts += result.stats.attempts
        if written:
            result = replace(result, text=written + result.text)
        was_cut = result.reason == "length" and not _is_whole(config, ask, result)
        if not was_cut:
            break
        then = "fail"
        if context is not None and requests <= config.cut_retries:
            then = _recovery(capabilities, ask, result)
        if span is not None:
            used = result.usage.output_tokens
            ceiling = None if allowed.is_off else allowed.ceiling
            span.cut(step=ask.number, ceiling=ceiling, used=used, then=then)
        if then == "fail":
            break
        if then == "continue":
            written = result.text
            warnings += (f"cut at {allowed.ceiling} tokens; continued",)
            continue
        wider = 2 * allowed.ceiling
        warnings += (f"cut at {allowed.ceiling} tokens; made again with {wider}",)
        allowed = Budget(
            target=wider, ceiling=wider, source=f"{allowed.source}, doubled after a cut"
        )
    used = usage.output_tokens if written else result.usage.output_tokens
    if context is not None and used is not None:
        config.predictor.observe(context, first, used=used, truncated=result.reason == "length")
    return Generation(
        kind=ask.kind,
        result=replace(result, text="") if was_cut else result,
        budget=result.budget or (None if allowed.is_off else allowed),
        predicted=first,
        usage=usage,
        requests=requests,
        attempts=attempts,
        warnings=warnings + result.warnings,
        was_cut=was_cut,
        duration_s=time.perf_counter() - started,
        is_choice=ask.is_choice,
    )


def predicted(config: RunConfig[OutputT], ask: Ask) -> Budget:
    """The budget that the predictor would give; nothing is asked and nothing is learned."""
    backend = config.backend_of(ask.kind)
    capabilities = backend.capabilities
    tokenizer = capabilities.tokenizer or backend.name
    context = _context(config, ask, tokenizer, config.sampling_of(ask.kind).effort)
    return config.predictor.predict(context, cost_of(capabilities))


def _with_hooks(
    config: RunConfig[OutputT], backend: Backend, number: int, emit: Emit | None
) -> Callable[[Request], Awaitable[Result]]:
    """The way of a request through the hooks, the first of them outermost."""
    way: Callable[[Request], Awaitable[Result]] = functools.partial(_stream, backend, number, emit)
    for hook in reversed(config.model_hooks):
        way = functools.partial(_hooked, hook, way)
    return way


async def _hooked(
    hook: Callable[[Request, Callable[[Request], Awaitable[Result]]], Awaitable[Result]],
    way: Callable[[Request], Awaitable[Result]],
    request: Request,
) -> Result:
    return await hook(request, way)


async def _stream(backend: Backend, number: int, emit: Emit | None, request: Request) -> Result:
    committed: list[str] = []
    try:
        async with backend.stream(request) as events:
            async for event in events:
                if isinstance(event, Commit):
                    committed.append(event.text)
                    if emit is not None:
                        await emit(Committed(number=number, text=event.text))
                elif isinstance(event, Draft):
                    if emit is not None:
                        await emit(Drafting(number=number, text=event.text))
                else:
                    return finish(event, "".join(committed))
    except OutputInvalid as invalid:
        return _invalid(invalid, "".join(committed), request)
    raise ProtocolError("the stream ended without `Finish`", backend=backend.name)


def _invalid(invalid: OutputInvalid, committed: str, request: Request) -> Result:
    """An output that the backend found invalid, for the run to show its faults and ask again."""
    return Result(
        text=invalid.text or committed,
        tool_calls=(),
        reason="stop",
        usage=invalid.usage if isinstance(invalid.usage, Usage) else Usage(),
        stats=Stats(),
        enforcement="none",
        budget=request.budget,
        model="",
        warnings=(str(invalid),),
    )


def _recovery(
    capabilities: Capabilities, ask: Ask, result: Result
) -> Literal["continue", "again", "fail"]:
    """What to do about a reply that was cut. One that its backend has extended is at its most."""
    if capabilities.continues and ask.schema is None and result.text:
        return "continue"
    return "fail" if capabilities.extends else "again"


def _is_whole(config: RunConfig[OutputT], ask: Ask, result: Result) -> bool:
    """Whether a reply that ended at the ceiling says all: calls that parsed, or a valid output."""
    if result.tool_calls:
        return True
    if ask.schema is None or ask.schema is not config.output.schema:
        return False
    try:
        config.output.parse(result.text)
    except OutputInvalid:
        return False
    return True


def _given(config: RunConfig[OutputT], ask: Ask, budget: BudgetChoice | None) -> Budget | None:
    settings = config.steps.get(ask.kind)
    own = config.tool_budgets
    names = [] if not own else [ask.tool] if ask.tool else [spec.name for spec in ask.tools]
    return given(
        (budget, None if settings is None else settings.budget, config.budget),
        kind=ask.kind,
        tool=ask.tool,
        of_tools=[own.get(name) for name in names],
    )


def _context(
    config: RunConfig[OutputT],
    ask: Ask,
    tokenizer: str,
    effort: Effort,
    episode: str | None = None,
) -> StepContext:
    shortest, longest = 0, None
    if ask.schema is not None:
        is_output = ask.schema is config.output.schema
        bounds = config.output.bounds if is_output else schema_bounds(ask.schema)
        shortest, longest = bounds.min_tokens, bounds.max_tokens
    elif ask.tools:
        shortest = config.shortest_call
    lengths = [len(message.content) for message in ask.messages]
    return StepContext(
        agent=config.agent,
        kind=ask.kind,
        tool=ask.tool,
        model=tokenizer if effort == "balanced" else f"{tokenizer}@{effort}",
        schema_min=shortest,
        schema_max=longest,
        prompt_tokens=sum(lengths) // _CHARACTERS_PER_TOKEN,
        last_tokens=lengths[-1] // _CHARACTERS_PER_TOKEN,
        episode=episode,
    )
