"""Every profile against its engine's documented wire, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from agentdiff.backends import connect
from agentdiff.backends.decisions import decide
from agentdiff.backends.http import HttpClient
from agentdiff.backends.mercury import mercury
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.profiles import PROFILES
from agentdiff.errors import OutputInvalid, Rejected
from agentdiff.generation import Backend, Budget, Commit, Question, Request, Sampling, generate
from agentdiff.messages import assistant, tool_result, user
from tests.backends.conformance import CHECKS, CITY, NOTE, STRUCTURED, TEXTS, Subject
from tests.backends.server import Listening, dialect, serving
from tests.backends.server.dialects import DIALECTS, KEY, VALID, text_of

NAMES = sorted(PROFILES)


def test_each_profile_has_a_dialect() -> None:
    assert sorted(DIALECTS) == NAMES


@asynccontextmanager
async def speaking(name: str, **options: bool) -> AsyncGenerator[tuple[Listening, OpenAIBackend]]:
    async with serving(dialect(name, **options)) as server:
        key = KEY if DIALECTS[name].key_header else None
        backend = OpenAIBackend(server.url, "tiny", profile=name, api_key=key)
        try:
            yield server, backend
        finally:
            await backend.aclose()


async def keeps_the_contract(name: str, client: HttpClient | None = None) -> None:
    checks: list[Callable[[Subject], Awaitable[None]]] = [
        check for check in CHECKS if check.__name__ != "a_failure_names_the_backend"
    ]
    async with serving(dialect(name)) as server:
        key = KEY if DIALECTS[name].key_header else None

        def opened() -> Backend:
            return OpenAIBackend(server.url, "tiny", profile=name, api_key=key, client=client)

        def held(backend: Backend) -> int:
            assert isinstance(backend, OpenAIBackend)
            return backend.service.in_use

        for check in checks:
            await check(Subject(name=name, open=opened, held=held))


@pytest.mark.parametrize("name", NAMES)
async def test_a_profile_keeps_the_contract_on_its_engines_wire(name: str) -> None:
    await keeps_the_contract(name)


@pytest.mark.parametrize("name", ["generic", "mercury", "vllm-diffusiongemma"])
async def test_the_contract_holds_on_httpx2(name: str) -> None:
    async with pytest.importorskip("httpx2").AsyncClient(trust_env=False, verify=False) as client:
        await keeps_the_contract(name, client)


async def test_drafts_replace_on_mercurys_wire() -> None:
    async with serving(dialect("mercury")) as server:
        backend = mercury(base_url=server.url, model="tiny", api_key=KEY, drafts=True)
        async with backend.stream(STRUCTURED) as events:
            came = [event async for event in events]
        assert [type(event).__name__ for event in came] == ["Draft"] * 3 + ["Commit", "Finish"]
        assert isinstance(came[-2], Commit)
        assert came[-2].text == VALID
        await backend.aclose()


EVERYTHING = Request(
    messages=(user("where?"),),
    budget=Budget(target=30, ceiling=60),
    sampling=Sampling(effort="speed", temperature=0.2, top_p=0.9, seed=4),
)


@pytest.mark.parametrize("name", NAMES)
async def test_whatever_is_asked_for_is_sent_as_the_engine_takes_it(name: str) -> None:
    async with speaking(name) as (server, backend):
        for request in (
            EVERYTHING,
            replace(EVERYTHING, schema=CITY),
            replace(EVERYTHING, tools=(NOTE,), tool_choice="required"),
            replace(EVERYTHING, tools=(NOTE,), schema=CITY),
        ):
            result = await generate(backend, request)
            assert result.stats.attempts == 1
            sent = server.chats[-1]
            for field in ("temperature", "top_p", "seed"):
                was_told = any(f"`{field}`" in warning for warning in result.warnings)
                assert was_told == (sent.get(field) != getattr(EVERYTHING.sampling, field))


@pytest.mark.parametrize("name", NAMES)
async def test_a_structured_output_says_what_was_enforced(name: str) -> None:
    async with speaking(name) as (server, backend):
        result = await generate(backend, STRUCTURED)
        assert result.enforcement == PROFILES[name].enforcement
        assert backend.capabilities.enforcement == PROFILES[name].enforcement
        is_told = "JSON Schema" in str(server.chats[-1]["messages"])
        assert is_told == (PROFILES[name].enforcement != "native")


@pytest.mark.parametrize("name", NAMES)
async def test_a_profile_continues_where_its_engine_does(name: str) -> None:
    async with speaking(name) as (_, backend):
        assert backend.capabilities.continues == bool(DIALECTS[name].continues)


@pytest.mark.parametrize("name", NAMES)
async def test_words_instead_of_the_output_are_never_delivered(name: str) -> None:
    async with speaking(name, only_words=True) as (_, backend):
        with pytest.raises(OutputInvalid, match="is not JSON"):
            await generate(backend, STRUCTURED)


@pytest.mark.parametrize("name", NAMES)
async def test_a_decision_is_one_of_the_options_with_probabilities_where_there_are_any(
    name: str,
) -> None:
    question = Question(
        messages=(user("my card was charged twice"),),
        instructions="Which desk takes this?",
        options={"sales": "", "billing": "payments and refunds"},
    )
    profile = PROFILES[name]
    async with speaking(name) as (server, backend):
        if not profile.decisions and not profile.logprobs:
            with pytest.raises(
                OutputInvalid, match="does not satisfy the schema"
            ):  # it knows one output only
                await decide(backend, question)
            return
        decision = await decide(backend, question)
        assert decision.choice == "billing"
        assert decision.probabilities is not None
        assert sum(decision.probabilities.values()) == pytest.approx(1)
        assert decision.probabilities["billing"] > 0.85
        assert decision.confidence is not None
        assert decision.usage.input_tokens in (7, 9)
        assert len(server.received) == 1


CERTAIN = {
    "llama-cpp",
    "lmdeploy-sdar",
    "ollama",
    "sglang-dllm",
    "sglang-diffusiongemma",
    "vllm-diffusiongemma",
}


@pytest.mark.parametrize("name", [name for name in NAMES if not DIALECTS[name].key_header])
async def test_a_profile_is_guessed_only_where_the_server_leaves_no_doubt(name: str) -> None:
    async with serving(dialect(name)) as server:
        backend = connect(f"openai:{server.url}#tiny")
        assert isinstance(backend, OpenAIBackend)
        assert backend.profile.name == "generic"
        for _ in range(2):
            await generate(backend, TEXTS[0])
        assert backend.profile.name == (name if name in CERTAIN else "generic")
        assert f"profile {backend.profile.name} (guessed)" in backend.capabilities.model
        assert [r.path for r in server.received].count("/v1/models") == 1
        await backend.aclose()


async def test_a_skeleton_is_pinned_and_its_slots_are_the_models() -> None:
    async with speaking("vllm-diffusiongemma") as (server, backend):
        request = replace(STRUCTURED, budget=Budget(target=40, ceiling=128))
        for _ in range(2):
            result = await generate(backend, request)
            assert result.enforcement == "pinned_canvas"
            assert result.text == VALID.replace(": ", ":").replace(", ", ",")
        fields = server.chats[-1]["vllm_xargs"]
        width = fields["diffusion_canvas_length"]
        assert width == len(fields["diffusion_seed_canvas"]) <= 40
        seed = fields["diffusion_seed_canvas"]
        skeleton = "".join(text_of(seed[position]) for position in fields["diffusion_pinned"])
        assert skeleton == '{"city":"","sunny":}'
        # Each text of the skeleton and each option was looked up once, for both requests.
        assert len([r for r in server.received if r.path == "/tokenize"]) == 5


async def test_a_schema_without_a_skeleton_goes_in_words() -> None:
    async with speaking("vllm-diffusiongemma") as (server, backend):
        schema = {"anyOf": [CITY, {"type": "null"}]}
        result = await generate(backend, replace(STRUCTURED, schema=schema))
        assert result.enforcement == "validated"
        assert "vllm_xargs" not in server.chats[-1]
        narrow = replace(STRUCTURED, budget=Budget(target=4, ceiling=8))
        result = await generate(backend, narrow)
        assert "too narrow" in result.warnings[0]


async def test_an_engine_that_does_not_pin_is_asked_in_words_from_then_on() -> None:
    async with serving(dialect("sglang-diffusiongemma")) as server:
        backend = OpenAIBackend(server.url, "tiny", profile="vllm-diffusiongemma", max_attempts=1)
        for _ in range(2):
            result = await generate(backend, STRUCTURED)
            assert result.enforcement == "validated"
        assert [r.path for r in server.received].count("/tokenize") == 1
        await backend.aclose()


async def test_a_wrong_key_names_no_key() -> None:
    async with serving(dialect("azure")) as server:
        backend = OpenAIBackend(server.url, "tiny", profile="azure", api_key="a-wrong-key")
        with pytest.raises(Rejected, match="AZURE_OPENAI_API_KEY") as caught:
            await generate(backend, TEXTS[0])
        assert "a-wrong-key" not in str(caught.value)
        assert server.received[0].headers["api-key"] == "a-wrong-key"
        await backend.aclose()


async def test_tools_of_a_server_without_them_are_told_in_words_and_called_in_writing() -> None:
    async with speaking("transformers-serve") as (server, backend):
        request = Request(messages=(user("note it"),), tools=(NOTE,), tool_choice="required")
        first = await generate(backend, request)
        assert (first.reason, first.text, first.enforcement) == ("tool_calls", "", "validated")
        assert first.tool_calls[0].arguments == {"text": "buy milk"}
        assert first.tool_calls[0].id
        made = first.tool_calls[0]
        again = (*request.messages, assistant(tool_calls=[made]), tool_result(made, "saved"))
        second = await generate(backend, replace(request, messages=again, tool_choice="auto"))
        assert (second.reason, second.text, second.tool_calls) == ("stop", "It is noted.", ())
        roles = [message["role"] for message in server.chats[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]

    async with speaking("transformers-serve", only_words=True) as (_, backend):
        with pytest.raises(OutputInvalid, match="is not JSON"):
            await generate(backend, request)
