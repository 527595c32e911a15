"""`decide`: one of a few options, with probabilities where the backend gives them.

The three wires of typed decisions as pure functions, and the way that is open everywhere: an output
whose schema allows the options only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from agentdiff.backends.loose import a_count, a_list, a_number, a_string, an_object
from agentdiff.errors import BackendError, ProtocolError
from agentdiff.generation import (
    Backend,
    Budget,
    Decides,
    Decision,
    Question,
    Request,
    Sampling,
    generate,
)
from agentdiff.messages import Json, Message, Usage, user

NAME: Final = "choice"
"""What the one question is called on the wire."""
LABELS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""One token each in every vocabulary that matters; as many options can be scored by their logprobs."""
TOP_LOGPROBS: Final = 20
"""The most that OpenAI and vLLM give."""


async def decide(backend: Backend, question: Question) -> Decision:
    """Choose one of the options, by the best way that the backend has.

    Raises:
        BackendError: The backend failed, or wrote something else than an option.
    """
    if isinstance(backend, Decides):
        return await backend.decide(question)
    return await constrained_choice(backend, question)


async def constrained_choice(backend: Backend, question: Question) -> Decision:
    """Let the backend write an output that can only be one of the options; no probabilities."""
    longest = max(len(option.encode()) for option in question.options) + 2
    result = await generate(
        backend,
        Request(
            kind="route",
            messages=(*question.messages, user(in_words(question))),
            schema={"type": "string", "enum": list(question.options)},
            budget=Budget(target=max(8, longest // 3), ceiling=max(16, longest), source="decide"),
            sampling=Sampling(effort="speed"),
            deadline_s=question.deadline_s,
        ),
    )
    try:
        choice = a_string(json.loads(result.text))
    except ValueError:
        choice = ""
    if choice not in question.options:
        raise ProtocolError("the reply is none of the options", backend=backend.name)
    return Decision(
        choice=choice,
        confidence=result.stats.confidence,
        usage=result.usage,
        stats=result.stats,
        enforcement=result.enforcement,
        model=result.model,
        warnings=result.warnings,
    )


def in_words(question: Question) -> str:
    """The question and its options, for a model that reads."""
    return "\n".join([question.instructions, "Choose one:", *map(_line, *_pairs(question))])


# --- OpenAI's Decisions, as vLLM speaks it too: a list of questions about an input ---


def questions_body(question: Question, *, model: str) -> dict[str, Json]:
    """The body for `/v1/decisions` in OpenAI's form."""
    choices = [
        {"value": option, "description": meaning} if meaning else {"value": option}
        for option, meaning in question.options.items()
    ]
    asked = {
        "type": "choice",
        "name": NAME,
        "instructions": question.instructions,
        "choices": choices,
    }
    said = question.messages
    is_plain = len(said) == 1 and said[0].role == "user" and not said[0].tool_calls
    return {
        "model": model,
        # The wire takes messages of the user only, so a conversation goes as one text.
        "input": said[0].content if is_plain else json.dumps(_rows(said), ensure_ascii=False),
        "questions": [asked],
    }


def questions_answer(body: Mapping[str, Json], question: Question, *, backend: str) -> Decision:
    """The decision in an answer of OpenAI's form.

    Raises:
        ProtocolError: It holds no choice, or one that was not offered.
        BackendError: The model declined.
    """
    for answer in map(an_object, a_list(body.get("answers"))):
        if answer.get("type") == "refusal":
            raise BackendError("the model declined to decide", backend=backend)
        listed = map(an_object, a_list(answer.get("probabilities")))
        scores = {a_string(one.get("value")): one.get("probability") for one in listed}
        return _decision(answer, scores, body, question, backend=backend)
    raise ProtocolError("there is no answer to the question", backend=backend)


# --- System One, as Inception and transformers speak it: a map of questions about a state ---


def state_body(question: Question, *, model: str) -> dict[str, Json]:
    """The body in System One's form."""
    said = question.messages
    is_plain = len(said) == 1 and not said[0].tool_calls
    asked = {
        "type": "choice",
        "instructions": question.instructions,
        "criteria": {option: meaning or None for option, meaning in question.options.items()},
    }
    return {
        "model": model,
        "state": said[0].content if is_plain else _rows(said),
        "questions": {NAME: asked},
    }


def state_answer(body: Mapping[str, Json], question: Question, *, backend: str) -> Decision:
    """The decision in an answer of System One's form.

    Raises:
        ProtocolError: It holds no choice, or one that was not offered.
    """
    answer = an_object(an_object(body.get("answers")).get(NAME))
    scores = dict(an_object(answer.get("probabilities")))
    return _decision(answer, scores, body, question, backend=backend)


# --- The first token of a chat completion ---


def labels_body(question: Question, *, model: str, length_field: str) -> dict[str, Json]:
    """The body of a completion of one token, whose probabilities are the answer."""
    lines = [
        _line(f"{label} = {option}", meaning)
        for label, option, meaning in zip(LABELS, *_pairs(question), strict=False)
    ]
    text = "\n".join([question.instructions, *lines, "Answer with one letter."])
    return {
        "model": model,
        "messages": [*_rows(question.messages), {"role": "user", "content": text}],
        length_field: 1,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
    }


def labels_answer(body: Mapping[str, Json], question: Question) -> Decision | None:
    """The decision that the probabilities of the first token make; None where there are none."""
    choices = a_list(body.get("choices"))
    logprobs = an_object(an_object(choices[0] if choices else None).get("logprobs"))
    tokens = a_list(logprobs.get("content"))
    first = an_object(tokens[0] if tokens else None)
    by_label = dict(zip(LABELS, question.options, strict=False))
    scores = dict.fromkeys(question.options, 0.0)
    for entry in map(an_object, a_list(first.get("top_logprobs"))):
        option = by_label.get(a_string(entry.get("token")).strip())
        logprob = a_number(entry.get("logprob"))
        if option is not None and logprob is not None:
            scores[option] += math.exp(logprob)
    total = sum(scores.values())
    if total <= 0:
        return None
    probabilities = {option: score / total for option, score in scores.items()}
    choice = max(probabilities, key=probabilities.__getitem__)
    return Decision(
        choice=choice,
        probabilities=probabilities,
        confidence=probabilities[choice],
        usage=_usage(an_object(body.get("usage"))),
        enforcement="native",
        model=a_string(body.get("model")),
    )


def _decision(
    answer: Mapping[str, Json],
    scores: Mapping[str, Json],
    body: Mapping[str, Json],
    question: Question,
    *,
    backend: str,
) -> Decision:
    choice = a_string(answer.get("choice"))
    if choice not in question.options:
        raise ProtocolError("the answer is none of the options", backend=backend)
    known = {option: a_number(scores.get(option)) for option in question.options}
    probabilities = {option: p for option, p in known.items() if p is not None}
    total = sum(probabilities.values())
    is_whole = len(probabilities) == len(question.options) and total > 0
    return Decision(
        choice=choice,
        probabilities={o: p / total for o, p in probabilities.items()} if is_whole else None,
        confidence=a_number(answer.get("confidence")),
        usage=_usage(an_object(body.get("usage"))),
        enforcement="native",
        model=a_string(body.get("model")),
    )


def _usage(said: Mapping[str, Json]) -> Usage:
    return Usage(
        input_tokens=a_count(said.get("input_tokens", said.get("prompt_tokens"))),
        output_tokens=a_count(said.get("output_tokens", said.get("completion_tokens"))),
    )


def _rows(messages: tuple[Message, ...]) -> list[dict[str, Json]]:
    rows: list[dict[str, Json]] = []
    for message in messages:
        text = message.content
        for call in message.tool_calls:
            text += f"\n[called {call.name} with {json.dumps(dict(call.arguments))}]"
        # Results of tools without their calls are refused by chat servers.
        role = "user" if message.role == "tool" else message.role
        said = f"[{message.name or 'tool'} returned] {text}" if message.role == "tool" else text
        rows.append({"role": role, "content": said.strip()})
    return rows


def _pairs(question: Question) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(question.options), tuple(question.options.values())


def _line(option: str, meaning: str) -> str:
    return f"- {option}: {meaning}" if meaning else f"- {option}"
