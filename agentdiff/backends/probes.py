"""What a backend really does, found out by asking it: a few small requests, each with one question.

A server's word is compared with its answers. What a profile does not promise cannot be broken; what a
server does beyond it is told, too. The prompts are fixed and say nothing of anybody.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from agentdiff.backends import server_probes
from agentdiff.backends.findings import (
    DEADLINE_S,
    RANDOM,
    SEA,
    SEED,
    UNLIKELY,
    Finding,
    Verdict,
    asks,
    failure,
    is_unlikely,
    twice,
)
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.policies import STRENGTH
from agentdiff.errors import (
    AuthenticationFailed,
    BackendError,
    BudgetTooSmall,
    OutputInvalid,
    Rejected,
    TimedOut,
)
from agentdiff.generation import (
    Backend,
    Budget,
    Capabilities,
    Commit,
    Draft,
    Finish,
    Result,
    Sampling,
    finish,
    generate,
)
from agentdiff.messages import ToolSpec, user

__all__ = ["Finding", "Verdict", "examine"]

CUT: Final = 4
"""Tokens of the budget that is too small."""

_COUNT = user("Count from one to fifty, in words.")
_NOTE = user("add a note that says buy milk")
_ADD_NOTE = ToolSpec(
    name="add_note",
    description="Save a note.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
)


async def examine(backend: Backend) -> AsyncGenerator[Finding]:
    """Ask everything, one question after the other.

    Raises:
        BackendError: It does not answer at all.
    """
    for finding in await _words(backend):
        yield finding
    for question, ask in _questions(backend):
        try:
            yield await ask()
        except TimedOut:
            found = f"no answer in {DEADLINE_S:g} s"
            yield Finding(question=question, said="answers", found=found, verdict="open")


def _questions(backend: Backend) -> Iterator[tuple[str, Callable[[], Awaitable[Finding]]]]:
    """The questions after the first, by name."""
    remote = backend if isinstance(backend, OpenAIBackend) else None
    if remote is not None:
        yield "engine", partial(server_probes.engine, remote)
        yield "schema, there", partial(server_probes.decoding, remote)
    yield "schema, here", partial(_structure, backend)
    yield "tool call", partial(_call, backend)
    if remote is not None:
        yield (
            f"temperature {server_probes.ODD_TEMPERATURE}",
            partial(server_probes.temperature, remote),
        )
        yield "seed, twice", partial(server_probes.seed, remote)
    else:
        yield "seed, twice", partial(_seed, backend)
    yield "budget", partial(_cut, backend)
    if remote is not None:
        yield "cut reply", partial(server_probes.continuing, remote)
        if remote.profile.decisions:
            yield "decision", partial(server_probes.decision, remote)


async def _words(backend: Backend) -> list[Finding]:
    """One answer in words: whether it comes, in how many pieces, with usage."""
    drafts = commits = 0
    texts: list[str] = []
    result: Result | None = None
    async with backend.stream(asks(SEA)) as events:
        async for event in events:
            match event:
                case Draft():
                    drafts += 1
                case Commit(text):
                    commits += 1
                    texts.append(text)
                case Finish():
                    result = finish(event, "".join(texts))
                    break
    if result is None:
        return [
            Finding(question="answer", said="ends", found="breaks off", verdict="differs"),
        ]
    claims = backend.capabilities
    counted = result.usage.output_tokens
    is_empty = not result.text and result.reason == "stop"
    promised = not isinstance(backend, OpenAIBackend) or backend.profile.stream_usage
    return [
        Finding(
            question="answer",
            said=claims.model or backend.name,
            found="empty" if is_empty else f"{result.model or backend.name}: {result.reason}",
            verdict="differs" if is_empty else "holds",
        ),
        Finding(
            question="stream",
            said=_unit(backend, claims),
            found=f"{_many(drafts, 'draft')}, {_many(commits, 'commit')}",
            verdict=_streamed(drafts, claims, is_whole=result.reason == "stop" and not is_empty),
        ),
        Finding(
            question="usage",
            said="counts tokens" if promised else "may not count",
            found="not counted" if counted is None else _many(counted, "token"),
            verdict=_counted(counted is not None, promised),
        ),
    ]


async def _structure(backend: Backend) -> Finding:
    """What a caller gets for a schema."""
    said = backend.capabilities.enforcement
    try:
        result = await generate(backend, asks(SEA, schema=UNLIKELY))
    except (AuthenticationFailed, TimedOut):
        raise
    except BackendError as error:
        return Finding(question="schema, here", said=said, found=failure(error), verdict="differs")
    except OutputInvalid:
        # Nothing wrong was delivered; only a promise of more is broken.
        is_promised = said not in ("validated", "repaired", "none")
        verdict: Verdict = "differs" if is_promised else "holds"
        return Finding(
            question="schema, here", said=said, found="invalid, and raised", verdict=verdict
        )
    found = result.enforcement
    is_valid = is_unlikely(result.text)
    if found != "none" and not is_valid and result.reason == "stop":
        return Finding(
            question="schema, here",
            said=said,
            found=f"{found}, and it is invalid",
            verdict="differs",
        )
    if result.reason != "stop":
        return Finding(question="schema, here", said=said, found=result.reason, verdict="open")
    is_weaker = STRENGTH.index(found) > STRENGTH.index(said)
    return Finding(
        question="schema, here", said=said, found=found, verdict="differs" if is_weaker else "holds"
    )


async def _call(backend: Backend) -> Finding:
    """Whether it calls a tool, with arguments that satisfy the tool's schema."""
    said = "calls tools" if backend.capabilities.tools else "calls none"
    asked = replace(asks(_NOTE), tools=(_ADD_NOTE,), kind="route")
    try:
        result = await generate(backend, asked)
    except (AuthenticationFailed, TimedOut):
        raise
    except OutputInvalid:  # tools in words, and a model that cannot follow them
        return Finding(question="tool call", said=said, found="invalid, and raised", verdict="open")
    except BackendError as error:
        verdict: Verdict = "differs" if backend.capabilities.tools else "holds"
        return Finding(question="tool call", said=said, found=failure(error), verdict=verdict)
    if not result.tool_calls:
        found = "answered in words" if result.reason == "stop" else result.reason
        return Finding(question="tool call", said=said, found=found, verdict="open")
    is_valid = result.enforcement != "none"
    found = result.enforcement if is_valid else "called, with arguments that are invalid"
    return Finding(
        question="tool call", said=said, found=found, verdict="holds" if is_valid else "open"
    )


async def _seed(backend: Backend) -> Finding:
    said = "same seed, same output" if backend.capabilities.seed else "no promise"
    asked = replace(asks(RANDOM), sampling=Sampling(effort="speed", temperature=1.0, seed=SEED))
    one, two = await generate(backend, asked), await generate(backend, asked)
    return twice(one.text == two.text, said, is_promised=backend.capabilities.seed)


async def _cut(backend: Backend) -> Finding:
    """Whether a budget that is too small ends the output."""
    budget = Budget(target=CUT, ceiling=CUT, source="doctor")
    question, said = "budget", f"ends after {CUT} tokens"
    try:
        result = await generate(backend, replace(asks(_COUNT), budget=budget))
    except (BudgetTooSmall, Rejected) as error:
        verdict: Verdict = "holds" if isinstance(error, BudgetTooSmall) else "differs"
        return Finding(question=question, said=said, found="refused", verdict=verdict)
    used = result.usage.output_tokens
    seen = f"{_many(used, 'token') if used is not None else f'{len(result.text)} characters'}, {result.reason}"
    if (used is not None and used > CUT) or len(result.text) > 16 * CUT:
        return Finding(question=question, said=said, found=f"wrote {seen}", verdict="differs")
    is_cut = result.reason == "length"
    return Finding(question=question, said=said, found=seen, verdict="holds" if is_cut else "open")


def _streamed(drafts: int, claims: Capabilities, *, is_whole: bool) -> Verdict:
    if bool(drafts) == claims.drafts:
        return "holds"
    return "differs" if drafts or is_whole else "open"


def _counted(is_counted: bool, is_promised: bool) -> Verdict:
    if is_counted == is_promised:
        return "holds"
    return "more" if is_counted else "differs"


def _unit(backend: Backend, claims: Capabilities) -> str:
    if isinstance(backend, OpenAIBackend) and not claims.drafts:
        return f"a {backend.profile.stream_unit} at a time"
    return "drafts" if claims.drafts else "no drafts"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
