from typing import Any

import pytest

from agentdiff.backends.mercury import mercury
from agentdiff.backends.models import KNOWN
from agentdiff.errors import ConfigurationError, Rejected
from agentdiff.generation import (
    Budget,
    Commit,
    Draft,
    Effort,
    Finish,
    Infills,
    Question,
    Request,
    Sampling,
    generate,
)
from agentdiff.messages import Usage, user
from tests.backends.fakes import DONE, USAGE, Server, chunk, completion, stream, whole


async def asked(**options: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    server = Server(completion("hi"))
    backend = mercury(api_key="key", client=server.client())
    result = await generate(backend, Request(messages=(user("hello"),), **options))
    return server.bodies[0], result.warnings


async def test_a_plain_request_sends_no_options() -> None:
    body, warnings = await asked()
    assert body == {"model": "mercury-2", "messages": [{"role": "user", "content": "hello"}]}
    assert warnings == ()


@pytest.mark.parametrize(
    ("effort", "sent", "cap"),
    [("speed", "instant", 40), ("balanced", None, 2088), ("quality", "high", 8232)],
)
async def test_effort_is_reasoning_effort_with_room_for_it(
    effort: Effort, sent: str | None, cap: int
) -> None:
    body, _ = await asked(sampling=Sampling(effort=effort), budget=Budget(target=20, ceiling=40))
    assert body.get("reasoning_effort") == sent
    assert body["max_completion_tokens"] == cap
    assert "max_tokens" not in body


async def test_what_the_service_would_replace_or_refuse_is_told() -> None:
    body, warnings = await asked(sampling=Sampling(temperature=0, top_p=0.9, seed=3))
    assert body["temperature"] == 0.5
    assert "top_p" not in body
    assert "seed" not in body
    assert warnings == (
        "`temperature` was 0, sent as 0.5: mercury takes 0.5 to 1",
        "`top_p` was not sent: mercury does not take it",
        "`seed` was not sent: mercury does not take it",
    )


async def test_drafts_replace_and_only_the_last_is_committed() -> None:
    server = Server(
        stream(
            chunk(content="?ell? ?orld"),
            chunk(content="Hell? World"),
            chunk(content="Hello World"),
            chunk(finish="stop"),
            USAGE,
            DONE,
        )
    )
    backend = mercury(api_key="key", client=server.client(), drafts=True)
    async with backend.stream(Request(messages=(user("hello"),))) as stream_:
        events = [event async for event in stream_]
    assert server.bodies[0]["diffusing"] is True
    assert server.bodies[0]["stream"] is True
    assert backend.capabilities.drafts
    assert events[:-1] == [
        Draft("?ell? ?orld"),
        Draft("Hell? World"),
        Draft("Hello World"),
        Commit("Hello World"),
    ]
    assert isinstance(events[-1], Finish)


async def test_a_warning_of_the_service_and_flat_usage_are_kept() -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "hi"}}
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "reasoning_tokens": 7}
    server = Server(whole({"choices": [choice], "usage": usage, "warning": "temperature replaced"}))
    result = await generate(
        mercury(api_key="key", client=server.client()), Request(messages=(user("hello"),))
    )
    assert result.warnings == ("temperature replaced",)
    assert (result.usage.output_tokens, result.usage.reasoning_tokens) == (9, 7)
    assert result.model == "mercury-2"


REASONED = {
    "choices": [{"index": 0, "finish_reason": "length", "message": {"content": ""}}],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 2068,
        "completion_tokens_details": {"reasoning_tokens": 2068},
    },
}


async def test_a_budget_that_went_into_reasoning_is_asked_for_again_once_with_more_room() -> None:
    request = Request(messages=(user("hello"),), budget=Budget(target=10, ceiling=20))
    server = Server(whole(REASONED), completion("hi"))
    result = await generate(mercury(api_key="key", client=server.client()), request)
    caps = [body["max_completion_tokens"] for body in server.bodies]
    assert caps == [2068, 4136]
    assert (result.text, result.stats.attempts, result.usage.requests) == ("hi", 2, 2)
    assert result.usage.output_tokens == 2068 + 3  # what was spent is not forgotten
    assert "2068 tokens went into reasoning" in result.warnings[0]

    twice = Server(whole(REASONED))
    result = await generate(mercury(api_key="key", client=twice.client()), request)
    assert len(twice.requests) == 2
    assert (result.text, result.reason) == ("", "length")


async def test_an_empty_answer_for_another_reason_is_not_asked_for_again() -> None:
    server = Server(completion("", finish="stop"))
    result = await generate(
        mercury(api_key="key", client=server.client()), Request(messages=(user("hello"),))
    )
    assert len(server.requests) == 1
    assert result.warnings == ("the reply is empty",)


async def test_a_text_is_written_between_two_others() -> None:
    choice = {"index": 0, "finish_reason": "stop", "text": "return a + b\n"}
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    server = Server(whole({"model": "mercury-edit-2", "choices": [choice], "usage": usage}))
    backend = mercury(api_key="key", client=server.client())
    assert isinstance(backend, Infills)
    result = await backend.infill("def add(a, b):\n    ", "\nadd(1, 2)")
    assert (result.text, result.reason, result.usage.output_tokens) == ("return a + b\n", "stop", 5)
    assert server.requests[0].url.path == "/v1/fim/completions"
    assert server.bodies[0] == {
        "model": "mercury-edit-2",
        "prompt": "def add(a, b):\n    ",
        "suffix": "\nadd(1, 2)",
    }


async def test_the_next_edit_is_one_message_of_the_user_with_tagged_sections() -> None:
    server = Server(completion("def add(first, second):"))
    backend = mercury(api_key="key", client=server.client())
    result = await backend.edit(
        {"current_file_content": "<|code_to_edit|>\ndef add<|cursor|>(a, b):\n<|/code_to_edit|>"},
        budget=Budget(target=50, ceiling=200),
    )
    assert result.text == "def add(first, second):"
    body = server.bodies[0]
    assert server.requests[0].url.path == "/v1/edit/completions"
    assert (body["model"], body["max_tokens"]) == ("mercury-edit-2", 200)
    assert [message["role"] for message in body["messages"]] == ["user"]
    sections = body["messages"][0]["content"]
    assert sections.startswith("<|recently_viewed_code_snippets|>\n\n<|/recently_viewed_code_snip")
    assert sections.endswith("<|edit_diff_history|>\n\n<|/edit_diff_history|>")
    with pytest.raises(ConfigurationError, match="there is no section 'instructions'"):
        await backend.edit({"instructions": "rename"})


async def test_a_decision_goes_to_the_model_that_decides() -> None:
    answer = {"type": "choice", "choice": "b", "confidence": 0.7, "probabilities": {"a": 1, "b": 3}}
    usage = {"input_tokens": 40, "output_tokens": 0}
    server = Server(
        whole({"model": "mercury-decide", "answers": {"choice": answer}, "usage": usage})
    )
    backend = mercury(api_key="key", client=server.client())
    question = Question(
        messages=(user("x"),), instructions="Which?", options={"a": "", "b": "the second"}
    )
    decision = await backend.decide(question)
    assert decision.probabilities == {"a": 0.25, "b": 0.75}
    assert (decision.choice, decision.confidence, decision.enforcement) == ("b", 0.7, "native")
    assert server.bodies[0] == {
        "model": "mercury-decide",
        "state": "x",
        "questions": {
            "choice": {
                "type": "choice",
                "instructions": "Which?",
                "criteria": {"a": None, "b": "the second"},
            }
        },
    }


async def test_a_service_without_decisions_is_asked_in_writing() -> None:
    missing = whole({"error": {"message": "no such path"}}, status=404)
    server = Server(missing, completion('"b"'))
    backend = mercury(api_key="key", client=server.client())
    question = Question(messages=(user("x"),), instructions="Which?", options={"a": "", "b": ""})
    decision = await backend.decide(question)
    assert (decision.choice, decision.probabilities) == ("b", None)
    assert decision.enforcement == "native"
    assert "answered in writing" in decision.warnings[0]
    with pytest.raises(ConfigurationError, match="at least two"):
        Question(messages=(user("x"),), instructions="Which?", options={"a": ""})


async def test_models_are_listed_with_room_and_prices() -> None:
    listed = {
        "id": "mercury-3",
        "context_length": 1_000_000,
        "max_output_length": 131_072,
        "pricing": {"prompt": "0.0000001", "completion": "0.00000035", "input_cache_reads": None},
        "supported_endpoints": ["chat.completions"],
    }
    server = Server(whole({"data": [listed, {"id": "bare"}, {"name": "no id"}, 7]}))
    first, bare = await mercury(api_key="key", client=server.client()).models()
    assert (first.context_tokens, first.max_output_tokens) == (1_000_000, 131_072)
    assert first.price is not None
    assert (first.price.input, first.price.output) == pytest.approx((0.1, 0.35))
    usage = Usage(input_tokens=2_000_000, output_tokens=1_000_000)
    assert first.price.of(usage) == pytest.approx(0.55)
    assert first.price.of(Usage(input_tokens=1)) is None
    assert (bare.price, bare.context_tokens, bare.endpoints) == (None, None, ())


def test_what_is_known_without_asking_says_of_which_day_it_is() -> None:
    for card in KNOWN.values():
        assert card.price is not None
        assert card.price.date
    assert mercury(api_key="key").capabilities.context_tokens == 128_000


async def test_a_gateway_has_its_own_address_header_and_tokens() -> None:
    server = Server(completion("hi"))
    tokens = iter(["first-token-of-entra", "second-token-of-entra"])

    async def fresh() -> dict[str, str]:
        return {"Authorization": f"Bearer {next(tokens)}"}

    backend = mercury(
        base_url="https://place.services.ai.azure.com/openai/v1?api-version=preview",
        auth=fresh,
        headers={"x-team": "agents"},
        client=server.client(),
    )
    for _ in range(2):
        await generate(backend, Request(messages=(user("hello"),)))
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer first-token-of-entra", "Bearer second-token-of-entra"]
    assert server.requests[0].headers["x-team"] == "agents"
    assert server.requests[0].url.params["api-version"] == "preview"

    keyed = mercury(api_key="k-1", key_header="api-key", client=server.client())
    await generate(keyed, Request(messages=(user("hello"),)))
    assert server.requests[-1].headers["api-key"] == "k-1"
    assert "authorization" not in server.requests[-1].headers


async def test_a_token_that_a_server_repeats_is_not_repeated() -> None:
    async def fresh() -> dict[str, str]:
        return {"Authorization": "Bearer secret-token-of-entra"}

    echo = whole({"error": {"message": "bad token: Bearer secret-token-of-entra"}}, status=400)
    backend = mercury(auth=fresh, client=Server(echo).client())
    with pytest.raises(Rejected, match="left out") as caught:
        await generate(backend, Request(messages=(user("hello"),)))
    assert "secret-token" not in str(caught.value)
