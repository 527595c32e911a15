"""One generation of a run: its budget, its stream, and what happens when the budget cuts it.

A generation that was cut is made once more with twice the room, unless the backend extends on its
own up to the ceiling. What still is cut then has no text, so it reaches no parser and no history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentdiff.agent.calls import Emit
from agentdiff.agent.config import RunConfig
from agentdiff.agent.events import Committed, Drafting, StepStarted
from agentdiff.agent.limits import Spending
from agentdiff.agent.output import OutputT
from agentdiff.errors import OutputInvalid, ProtocolError
from agentdiff.generation import (
    Backend,
    Budget,
    Commit,
    Draft,
    Request,
    Result,
    StepKind,
    finish,
)
from agentdiff.length import StepContext, cost_of, schema_bounds
from agentdiff.messages import Json, Message, ToolSpec, Usage

_BYTES_PER_TOKEN = 4
"""For the length of the newest input, which only has to be told in the same way each time."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generation that is done, before the run knows what it is."""

    kind: StepKind
    result: Result
    """Of the last attempt."""
    budget: Budget
    """Of the last attempt."""
    usage: Usage
    """Of all attempts."""
    attempts: int
    warnings: tuple[str, ...]
    was_cut: bool
    """The budget's ceiling ended it and there is nothing whole in it; its text is gone."""


async def make_generation(
    config: RunConfig[OutputT], ask: Ask, *, spending: Spending, emit: Emit
) -> Generation:
    """Make a generation, twice if the budget cut the first attempt.

    Raises:
        LimitExceeded: The limits have no room for it.
        BackendError: The backend failed.
    """
    capabilities = config.backend.capabilities
    context = _context(config, ask)
    first = budget = config.predictor.predict(context, cost_of(capabilities))
    usage = Usage(requests=0)
    warnings: tuple[str, ...] = ()
    attempts = 0
    while True:
        spending.count_request()
        await emit(StepStarted(number=ask.number, kind=ask.kind, budget=budget))
        request = Request(
            kind=ask.kind,
            messages=ask.messages,
            tools=ask.tools,
            schema=ask.schema,
            budget=budget,
            sampling=config.sampling,
            deadline_s=spending.left_s(),
        )
        result = await _stream(config.backend, request, ask.number, emit)
        spending.usage += result.usage
        usage += result.usage
        attempts += result.stats.attempts
        was_cut = result.reason == "length" and not _is_whole(config, ask, result)
        if not was_cut or capabilities.extends or attempts > result.stats.attempts:
            break
        wider = 2 * budget.ceiling
        warnings += (f"cut at {budget.ceiling} tokens; made again with {wider}",)
        budget = Budget(target=wider, ceiling=wider, source=f"{budget.source}, doubled after a cut")
    if result.usage.output_tokens is not None:
        config.predictor.observe(
            context, first, used=result.usage.output_tokens, truncated=result.reason == "length"
        )
    return Generation(
        kind=ask.kind,
        result=replace(result, text="") if was_cut else result,
        budget=result.budget or budget,
        usage=usage,
        attempts=attempts,
        warnings=warnings + result.warnings,
        was_cut=was_cut,
    )


async def _stream(backend: Backend, request: Request, number: int, emit: Emit) -> Result:
    committed: list[str] = []
    async with backend.stream(request) as events:
        async for event in events:
            if isinstance(event, Draft):
                await emit(Drafting(number=number, text=event.text))
            elif isinstance(event, Commit):
                committed.append(event.text)
                await emit(Committed(number=number, text=event.text))
            else:
                return finish(event, "".join(committed))
    raise ProtocolError("the stream ended without `Finish`", backend=backend.name)


def _is_whole(config: RunConfig[OutputT], ask: Ask, result: Result) -> bool:
    """Whether a reply that ended at the ceiling says all: calls that parsed, or a valid output."""
    if result.tool_calls:
        return True
    if ask.schema is None:
        return False
    try:
        config.output.parse(result.text)
    except OutputInvalid:
        return False
    return True


def _context(config: RunConfig[OutputT], ask: Ask) -> StepContext:
    shortest, longest = 0, None
    if ask.schema is not None:
        bounds = schema_bounds(ask.schema)
        shortest, longest = bounds.min_tokens, bounds.max_tokens
    elif ask.tools:
        shortest = min(schema_bounds(tool.parameters).min_tokens for tool in ask.tools)
    newest = ask.messages[-1].content.encode(errors="replace")
    return StepContext(
        agent=config.agent,
        kind=ask.kind,
        model=config.backend.capabilities.tokenizer or config.backend.name,
        schema_min=shortest,
        schema_max=longest,
        last_tokens=len(newest) // _BYTES_PER_TOKEN,
    )
