"""What a server is asked, without our help: what it does by itself with a schema, a seed, a cut reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from agentdiff.backends import decisions, wire
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
from agentdiff.backends.profiles import GENERIC, EngineProfile, guess
from agentdiff.backends.rendering import Rendering
from agentdiff.backends.reply import Reply
from agentdiff.backends.validation import unfenced
from agentdiff.errors import AuthenticationFailed, BackendError, OutputInvalid, TimedOut
from agentdiff.generation import Question, Request
from agentdiff.messages import Json, assistant, user

ODD_TEMPERATURE: Final = 0.3
BEGUN: Final = "one two three fo"
REST: Final = "ur"
_NUMBERS: Final = user("Write the numbers from one to ten in words, with one space between them.")


async def engine(backend: OpenAIBackend) -> Finding:
    """Whether the server says to be another engine than its profile is for."""
    used = backend.profile
    try:
        models, headers = await backend.service.endpoint.fetch("GET", "/models")
    except (AuthenticationFailed, TimedOut):
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


async def decoding(backend: OpenAIBackend) -> Finding:
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
    answer = await _raw(backend, asks(SEA, schema=UNLIKELY), profile=bare)
    if isinstance(answer, str):
        found, does = answer, False
    else:
        does = is_unlikely(unfenced(answer.text))
        found = "decodes by it" if does else "ignores it, with status 200"
    is_promised = profile.enforcement == "native"
    verdict: Verdict = "holds"
    if does != is_promised:
        verdict = "more" if does else "differs"
    return Finding(question="schema, there", said=said, found=found, verdict=verdict)


async def temperature(backend: OpenAIBackend) -> Finding:
    """What becomes of a temperature that is none of the usual ones."""
    profile = backend.profile
    low, high = profile.temperature_range or (0.0, float("inf"))
    is_used = "temperature" in profile.sampling_fields
    is_inside = low <= ODD_TEMPERATURE <= high
    said = "not sent" if not is_used else "taken" if is_inside else f"moved to {low:g}"
    answer = await _raw(backend, asks(SEA), more={"temperature": ODD_TEMPERATURE})
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


async def seed(backend: OpenAIBackend) -> Finding:
    """Whether two calls with one seed are answered alike."""
    takes = "seed" in backend.profile.sampling_fields
    said = "taken, no promise" if takes else "not sent"
    one = await _raw(backend, asks(RANDOM), more={"seed": SEED})
    if isinstance(one, str):
        verdict: Verdict = "differs" if takes else "holds"
        return Finding(question="seed, twice", said=said, found=one, verdict=verdict)
    two = await _raw(backend, asks(RANDOM), more={"seed": SEED})
    is_same = not isinstance(two, str) and one.text == two.text
    return twice(is_same, said, is_promised=False)


async def continuing(backend: OpenAIBackend) -> Finding:
    """Whether it writes on from the middle of a word; a message of its own would not begin so."""
    is_promised = backend.profile.continue_fields is not None
    said = "writes on" if is_promised else "no promise"
    answer = await _raw(backend, asks(_NUMBERS, assistant(BEGUN)))
    if isinstance(answer, str):
        verdict: Verdict = "differs" if is_promised else "holds"
        return Finding(question="cut reply", said=said, found=answer, verdict=verdict)
    if answer.text.startswith(REST):
        verdict = "holds" if is_promised else "more"
        return Finding(question="cut reply", said=said, found="writes on", verdict=verdict)
    is_anew = answer.text.strip().lower().startswith("one two")
    found = "begins anew" if is_anew else "writes something else"
    verdict = "holds" if not is_promised else "differs" if is_anew else "open"
    return Finding(question="cut reply", said=said, found=found, verdict=verdict)


async def decision(backend: OpenAIBackend) -> Finding:
    """Whether typed decisions are where the profile says."""
    question = Question(
        messages=(SEA,),
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
    except (AuthenticationFailed, TimedOut):
        raise
    except BackendError as error:
        return failure(error)
    reply = Reply(backend.name)
    text = reply.add(body or {})
    return _Raw(text=text or "", warnings=tuple(reply.warnings))
