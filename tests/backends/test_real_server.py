"""A real autoregressive server that answers 200 and ignores a schema: transformers' own `serve`.

An optional job: it needs a server with an instruction model that runs, named by its address and model.

    HF_HUB_OFFLINE=1 transformers serve FOLDER --host 127.0.0.1 --port 8000 &
    AGENTDIFF_REAL_SERVER=http://127.0.0.1:8000/v1#FOLDER pytest -m real_server tests/backends
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from agentdiff.backends import connect
from agentdiff.backends.decisions import decide
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.errors import OutputInvalid, Rejected
from agentdiff.generation import (
    Budget,
    Commit,
    Finish,
    Question,
    Request,
    Sampling,
    finish,
    generate,
)
from agentdiff.messages import user

PLACE = os.environ.get("AGENTDIFF_REAL_SERVER", "")

pytestmark = [
    pytest.mark.real_server,
    pytest.mark.slow,
    pytest.mark.skipif(
        not PLACE,
        reason="AGENTDIFF_REAL_SERVER names no server, as in http://127.0.0.1:8000/v1#model",
    ),
]

ASK = Request(
    messages=(user("What is the capital of France?"),),
    budget=Budget(target=16, ceiling=32),
    sampling=Sampling(temperature=0.0),
)
ANSWER = {
    "type": "object",
    "properties": {"capital": {"type": "string"}},
    "required": ["capital"],
    "additionalProperties": False,
}


@asynccontextmanager
async def connected() -> AsyncGenerator[OpenAIBackend]:
    backend = connect(f"openai:{PLACE}", profile="transformers-serve")
    assert isinstance(backend, OpenAIBackend)
    try:
        yield backend
    finally:
        await backend.aclose()


async def test_it_answers_whole_and_in_a_stream() -> None:
    async with connected() as backend:
        result = await generate(backend, ASK)
        assert "Paris" in result.text
        assert result.usage.input_tokens
        pieces: list[str] = []
        async with backend.stream(ASK) as events:
            async for event in events:
                if isinstance(event, Commit):
                    pieces.append(event.text)
                elif isinstance(event, Finish):
                    assert finish(event, "".join(pieces)).text == result.text
        assert len(pieces) > 1


async def test_its_word_on_a_schema_is_not_taken() -> None:
    async with connected() as backend:
        request = replace(ASK, schema=ANSWER, budget=Budget(target=32, ceiling=64))
        result, invalid = None, None
        try:
            result = await generate(backend, request)
        except OutputInvalid as error:  # a model of this size often writes prose
            invalid = error
        if result is None:
            assert invalid is not None
            assert invalid.text
            assert invalid.faults
        else:
            assert result.enforcement == ("none" if result.reason == "length" else "validated")


async def test_it_decides_with_probabilities() -> None:
    async with connected() as backend:
        question = Question(
            messages=(user("I love this film, it is wonderful."),),
            instructions="What does the writer feel about the film?",
            options={"good": "they like it", "bad": "they do not like it"},
        )
        decision = await decide(backend, question)
        assert decision.choice in question.options
        assert decision.probabilities is not None
        assert decision.confidence is not None
        assert decision.enforcement == "native"


async def test_a_model_that_is_not_there_is_a_typed_error() -> None:
    url, _, _ = PLACE.rpartition("#")
    backend = OpenAIBackend(url, "no-such-model", profile="transformers-serve", max_attempts=1)
    with anyio.fail_after(60), pytest.raises(Rejected):
        await generate(backend, ASK)
    await backend.aclose()


async def test_a_cancelled_call_leaves_a_server_that_answers() -> None:
    async with connected() as backend:
        with anyio.move_on_after(0.05):
            await generate(backend, ASK)
        assert backend.service.in_use == 0
        assert (await generate(backend, ASK)).text
