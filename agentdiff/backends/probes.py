"""What a backend really does, found out by asking it: a few small requests, each with one question.

A server's word is compared with its answers. What a profile does not promise cannot be broken; what a
server does beyond it is told, too. The prompts are fixed and say nothing of anybody.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from agentdiff.backends import decisions, wire
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.policies import STRENGTH
from agentdiff.backends.profiles import GENERIC, EngineProfile, guess
from agentdiff.backends.rendering import Rendering
from agentdiff.backends.reply import Reply
from agentdiff.backends.validation import unfenced, validator
from agentdiff.errors import (
    AuthenticationFailed,
    BackendError,
    BudgetTooSmall,
    OutputInvalid,
    Rejected,
)
from agentdiff.generation import (
    Backend,
    Budget,
    Capabilities,
    Commit,
    Draft,
    Finish,
    Question,
    Request,
    Result,
    Sampling,
    finish,
    generate,
)
from agentdiff.messages import Json, Message, ToolSpec, user

Verdict = Literal["holds", "differs", "more", "open"]
"""`more`: it does what was not promised. `open`: the answer does not tell."""

ODD_TEMPERATURE: Final = 0.3
SEED: Final = 11
CUT: Final = 4
"""Tokens of the budget that is too small."""
DEADLINE_S: Final = 60.0
UNLIKELY: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {
        "kq7": {"type": "string", "enum": ["vz3-mauve", "vz9-ochre"]},
        "w0": {"type": "boolean"},
    },
    "required": ["kq7", "w0"],
    "additionalProperties": False,
}
"""A schema that nobody satisfies who has not decoded by it: the prompt does not mention it."""

_SEA = user("Write one short sentence about the sea.")
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
_RANDOM = user("Write five random words.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question."""

    question: str
    said: str
    """What the profile, or `capabilities`, says."""
    found: str
    verdict: Verdict


async def examine(backend: Backend) -> AsyncGenerator[Finding]:
    """Ask everything, one question after the other.

    Raises:
        BackendError: It does not answer at all.
    """
    for finding in await _words(backend):
        yield finding
    remote = backend if isinstance(backend, OpenAIBackend) else None
    if remote is not None:
        yield await _profile(remote)
        yield await _decoding(remote)
    yield await _structure(backend)
    yield await _call(backend)
    if remote is not None:
        yield await _temperature(remote)
        yield await _remote_seed(remote)
    else:
        yield await _seed(backend)
    yield await _cut(backend)
    if remote is not None and remote.profile.decisions:
        yield await _decision(remote)


# --- what every backend is asked ---


async def _words(backend: Backend) -> list[Finding]:
    """One answer in words: whether it comes, in how many pieces, with usage."""
    drafts = commits = 0
    texts: list[str] = []
    result: Result | None = None
    async with backend.stream(_asks(_SEA)) as events:
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
            verdict="holds" if counted is not None or not promised else "differs",
        ),
    ]


async def _structure(backend: Backend) -> Finding:
    """What a caller gets for a schema."""
    said = backend.capabilities.enforcement
    try:
        result = await generate(backend, _asks(_SEA, schema=UNLIKELY))
    except AuthenticationFailed:
        raise
    except BackendError as error:
        return Finding(question="schema, here", said=said, found=_failure(error), verdict="differs")
    except OutputInvalid:
        # Nothing wrong was delivered; only a promise of more is broken.
        is_promised = said not in ("validated", "repaired", "none")
        verdict: Verdict = "differs" if is_promised else "holds"
        return Finding(
            question="schema, here", said=said, found="invalid, and raised", verdict=verdict
        )
    found = result.enforcement
    is_valid = _is_valid(result.text)
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
    asked = replace(_asks(_NOTE), tools=(_ADD_NOTE,), kind="route")
    try:
        result = await generate(backend, asked)
    except AuthenticationFailed:
        raise
    except OutputInvalid:  # tools in words, and a model that cannot follow them
        return Finding(question="tool call", said=said, found="invalid, and raised", verdict="open")
    except BackendError as error:
        verdict: Verdict = "differs" if backend.capabilities.tools else "holds"
        return Finding(question="tool call", said=said, found=_failure(error), verdict=verdict)
    if not result.tool_calls:
        found = "refused" if result.reason == "refused" else "answered in words"
        return Finding(question="tool call", said=said, found=found, verdict="open")
    is_valid = result.enforcement != "none"
    found = result.enforcement if is_valid else "called, with arguments that are invalid"
    return Finding(
        question="tool call", said=said, found=found, verdict="holds" if is_valid else "open"
    )


async def _seed(backend: Backend) -> Finding:
    said = "same seed, same output" if backend.capabilities.seed else "no promise"
    asked = replace(_asks(_RANDOM), sampling=Sampling(effort="speed", temperature=1.0, seed=SEED))
    one, two = await generate(backend, asked), await generate(backend, asked)
    return _twice(one.text == two.text, said, is_promised=backend.capabilities.seed)


async def _cut(backend: Backend) -> Finding:
    """Whether a budget that is too small ends the output."""
    budget = Budget(target=CUT, ceiling=CUT, source="doctor")
    question, said = "budget", f"ends after {CUT} tokens"
    try:
        result = await generate(backend, replace(_asks(_COUNT), budget=budget))
    except (BudgetTooSmall, Rejected) as error:
        verdict: Verdict = "holds" if isinstance(error, BudgetTooSmall) else "differs"
        return Finding(question=question, said=said, found="refused", verdict=verdict)
    used = result.usage.output_tokens
    seen = f"{_many(used, 'token') if used is not None else f'{len(result.text)} characters'}, {result.reason}"
    if (used is not None and used > CUT) or len(result.text) > 16 * CUT:
        return Finding(question=question, said=said, found=f"wrote {seen}", verdict="differs")
    is_cut = result.reason == "length"
    return Finding(question=question, said=said, found=seen, verdict="holds" if is_cut else "open")


# --- what a server is asked, without our help ---


async def _profile(backend: OpenAIBackend) -> Finding:
    """Whether the server says to be another engine than its profile is for."""
    used = backend.profile
    try:
        models, headers = await backend.service.endpoint.fetch("GET", "/models")
    except AuthenticationFailed:
        raise
    except BackendError as error:
        found = f"no list of models ({type(error).__name__})"
        return Finding(question="engine", said=used.name, found=found, verdict="open")
    named = guess(models, headers.get("server", ""), backend.model)
    if named is None:
        return Finding(
            question="engine", said=used.name, found="does not say what it is", verdict="open"
        )
    is_other = named.name != used.name and used.name != GENERIC.name
    return Finding(
        question="engine",
        said=used.name,
        found=named.name,
        verdict="differs" if is_other else "holds",
    )


async def _decoding(backend: OpenAIBackend) -> Finding:
    """Whether the engine decodes by a schema of which its model has not been told."""
    profile = backend.profile
    bare = replace(profile, structured="response_format", enforcement="native")
    said = (
        "decodes by it"
        if profile.enforcement == "native"
        else "may ignore it"
        if profile.structured == "response_format"
        else "takes none"
    )
    answer = await _raw(backend, _asks(_SEA, schema=UNLIKELY), profile=bare)
    if isinstance(answer, str):
        found, does = answer, False
    else:
        does = _is_valid(unfenced(answer.text))
        found = "decodes by it" if does else "ignores it, with status 200"
    is_promised = profile.enforcement == "native"
    verdict: Verdict = "holds"
    if does != is_promised:
        verdict = "more" if does else "differs"
    return Finding(question="schema, there", said=said, found=found, verdict=verdict)


async def _temperature(backend: OpenAIBackend) -> Finding:
    profile = backend.profile
    low, high = profile.temperature_range or (0.0, float("inf"))
    is_used = "temperature" in profile.sampling_fields
    is_inside = low <= ODD_TEMPERATURE <= high
    said = "not sent" if not is_used else "taken" if is_inside else f"moved to {low:g}"
    answer = await _raw(backend, _asks(_SEA), more={"temperature": ODD_TEMPERATURE})
    verdict: Verdict = "holds"
    if isinstance(answer, str):
        found = answer
        verdict = "differs" if is_used and is_inside else "holds"
    elif answer.warnings:
        found = "replaced, with a warning"
        verdict = "differs" if is_used and is_inside else "holds"
    else:
        found = "taken, or ignored"
    return Finding(
        question=f"temperature {ODD_TEMPERATURE}", said=said, found=found, verdict=verdict
    )


async def _remote_seed(backend: OpenAIBackend) -> Finding:
    takes = "seed" in backend.profile.sampling_fields
    said = "taken, no promise" if takes else "not sent"
    one = await _raw(backend, _asks(_RANDOM), more={"seed": SEED})
    if isinstance(one, str):
        verdict: Verdict = "differs" if takes else "holds"
        return Finding(question="seed, twice", said=said, found=one, verdict=verdict)
    two = await _raw(backend, _asks(_RANDOM), more={"seed": SEED})
    is_same = not isinstance(two, str) and one.text == two.text
    return _twice(is_same, said, is_promised=False)


async def _decision(backend: OpenAIBackend) -> Finding:
    question = Question(
        messages=(_SEA,),
        instructions="Is this about water?",
        options={"yes": "", "no": ""},
        deadline_s=DEADLINE_S,
    )
    said = f"has {backend.profile.decisions}"
    try:
        decision = await decisions.decide(backend, question)
    except (BackendError, OutputInvalid) as error:
        found = f"fails ({type(error).__name__})"
        return Finding(question="decision", said=said, found=found, verdict="differs")
    is_there = decision.enforcement == "native"
    found = "answers with probabilities" if decision.probabilities else "answers"
    return Finding(
        question="decision",
        said=said,
        found=found if is_there else "has no such place",
        verdict="holds" if is_there else "differs",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    text: str
    warnings: tuple[str, ...]


async def _raw(
    backend: OpenAIBackend,
    request: Request,
    *,
    profile: EngineProfile | None = None,
    more: Mapping[str, Json] | None = None,
) -> _Raw | str:
    """The server's own answer to `request`, not checked; what it refuses or breaks on, in words."""
    asked = wire.ask(
        request, model=backend.model, profile=profile or backend.profile, streamed=False
    )
    if more:
        asked = asked.with_fields(more)
    try:
        answer = await backend.service.endpoint.send(
            "POST", "/chat/completions", asked.body(Rendering())
        )
        try:
            body = await answer.next()
        finally:
            await answer.aclose()
    except AuthenticationFailed:
        raise
    except BackendError as error:
        return _failure(error)
    reply = Reply(backend.name)
    text = reply.add(body or {})
    return _Raw(text=text or "", warnings=tuple(reply.warnings))


def _asks(message: Message, *, schema: Mapping[str, Json] | None = None) -> Request:
    return Request(
        messages=(message,),
        schema=schema,
        budget=Budget(target=48, ceiling=192, source="doctor"),
        sampling=Sampling(effort="speed"),
        deadline_s=DEADLINE_S,
    )


def _streamed(drafts: int, claims: Capabilities, *, is_whole: bool) -> Verdict:
    if bool(drafts) == claims.drafts:
        return "holds"
    return "differs" if drafts or is_whole else "open"


def _twice(is_same: bool, said: str, *, is_promised: bool) -> Finding:
    verdict: Verdict = "holds" if is_same or not is_promised else "differs"
    found = "the same output" if is_same else "two outputs"
    return Finding(question="seed, twice", said=said, found=found, verdict=verdict)


def _failure(error: BackendError) -> str:
    how = "refused" if isinstance(error, Rejected) else "breaks on it"
    return f"{how} ({error.status or type(error).__name__})"


def _unit(backend: Backend, claims: Capabilities) -> str:
    if isinstance(backend, OpenAIBackend) and not claims.drafts:
        return f"a {backend.profile.stream_unit} at a time"
    return "drafts" if claims.drafts else "no drafts"


def _is_valid(text: str) -> bool:
    try:
        return validator(UNLIKELY).is_valid(json.loads(text))
    except ValueError:
        return False


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
