from typing import Any

import pytest

from agentdiff.backends.mercury import mercury
from agentdiff.generation import Budget, Commit, Draft, Effort, Finish, Request, Sampling, generate
from agentdiff.messages import user
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
