"""The local backend held to the contract, on a tiny random checkpoint made for the test."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentdiff.backends import connect
from agentdiff.backends.local import LocalBackend
from agentdiff.backends.vocabulary import vocabulary_of
from agentdiff.constraint import GrammarCache
from agentdiff.engine.weights import quantize_rows, write_weights
from agentdiff.errors import (
    BackendError,
    BudgetTooSmall,
    ConfigurationError,
    ContextTooLong,
    SchemaError,
    TimedOut,
)
from agentdiff.generation import Backend, Budget, Draft, Request, Sampling, generate
from agentdiff.messages import ToolCall, ToolSpec, assistant, system, tool_result, user
from tests.backends.conformance import CHECKS, NOTE, TEXTS, Subject
from tests.engine.toys import toy_router

pytestmark = pytest.mark.local

TEMPLATE = (
    "{% for t in tools or [] %}<t>{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}<reply>"
)


def write_checkpoint(folder: Path, **declared: object) -> Path:
    """A random router with a byte-level tokenizer and the template above."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<mask>", "<end>", "<user>", "<reply>", "<t>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(['{"tool": "add_note", "args": {"text": "buy milk"}}'], trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "<pad>", "mask_token": "<mask>", "eos_token": "<end>"})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model = toy_router(vocab_size=tokenizer.get_vocab_size())
    write_weights(quantize_rows(dict(model.state_dict())), folder, shard_bytes=100_000)
    shape = {name: getattr(model.shape, name) for name in model.shape.__dataclass_fields__}
    config = {
        "model_type": "agentdiff_router",
        "name": "toy",
        **shape,
        "block_length": 8,
        "mask_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 1000,
        "agentdiff": declared,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def router(tmp_path_factory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("router"),
        style="compact",
        grounded=True,
        refuses=True,
        reads_instructions=False,
        max_tools=3,
    )


def held(backend: Backend) -> int:
    assert isinstance(backend, LocalBackend)
    return backend._shared.held + backend._engine.busy


def failing(folder: Path) -> LocalBackend:
    """A backend whose forward passes fail."""
    backend = LocalBackend.load(str(folder))
    family: Any = backend._engine.family

    def head(*_: object) -> None:
        raise RuntimeError("out of memory")

    family.head = head
    return backend


def subject(folder: Path) -> Subject:
    call = Request(
        messages=(user("add a note that says buy milk"),), tools=(NOTE,), tool_choice="required"
    )
    texts = tuple(replace(text, budget=Budget(target=8, ceiling=24)) for text in TEXTS)
    return Subject(
        name="local",
        texts=texts,
        open=lambda: connect(f"local:{folder}"),
        call=call,
        failing=lambda: failing(folder),
        held=held,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(check, plain: Path) -> None:
    await check(subject(plain))


async def test_a_reply_of_the_router_is_a_call_grounded_in_the_request_or_a_refusal(
    router: Path,
) -> None:
    backend = LocalBackend.load(str(router))
    for seed in range(12):
        sampling = Sampling(temperature=1.5, seed=seed)
        request = Request(
            messages=(user('call Bob at "noon" – ok?'),), tools=(NOTE,), sampling=sampling
        )
        result = await generate(backend, request)
        assert result.enforcement == "in_block"
        if result.reason == "refused":
            assert result.tool_calls == ()
            continue
        (call,) = result.tool_calls
        assert call.arguments["text"] in 'call Bob at "noon" – ok?'


async def test_a_budget_without_room_for_a_call_is_no_reason_to_refuse(router: Path) -> None:
    backend = LocalBackend.load(str(router))
    request = Request(messages=(user("note milk"),), tools=(NOTE,))
    small = Budget(target=4, ceiling=16)  # holds `{"none":true}`
    with pytest.raises(BudgetTooSmall) as caught:
        await generate(backend, replace(request, budget=small))
    assert held(backend) == 0
    needed = caught.value.needed
    assert 16 < needed < 60
    enough = replace(request, budget=Budget(target=4, ceiling=needed))
    assert (await generate(backend, enough)).reason in ("tool_calls", "refused")
    called = await generate(backend, replace(enough, tool_choice="required"))
    assert called.reason == "tool_calls"
    assert called.usage.output_tokens is not None
    assert called.usage.output_tokens <= needed


async def test_where_no_call_can_be_written_a_refusal_needs_little_room(router: Path) -> None:
    """A grounded argument must be a span of the request, and none of this one is a date."""
    backend = LocalBackend.load(str(router))
    day = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    tool = ToolSpec(name="book", parameters=day | {"required": ["day"]})
    budget = Budget(target=4, ceiling=16)
    request = Request(messages=(user("book a room"),), tools=(tool,), budget=budget)
    assert (await generate(backend, request)).reason == "refused"


async def test_a_reply_that_takes_all_of_its_budget_says_so(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    schema = {"type": "string", "minLength": 6}
    request = Request(messages=(user("x"),), schema=schema)
    tight = await generate(backend, replace(request, budget=Budget(target=8, ceiling=8)))
    assert (tight.reason, len(tight.warnings)) == ("stop", 1)
    assert "takes all of its 8 tokens" in tight.warnings[0]


async def test_after_a_result_the_router_calls_or_answers_and_never_refuses(router: Path) -> None:
    backend = LocalBackend.load(str(router))
    call = ToolCall(id="1", name="add_note", arguments={"text": "milk"})
    messages = (user("note milk"), assistant(tool_calls=[call]), tool_result(call, "noted: milk"))
    reasons = set()
    for seed in range(8):
        sampling = Sampling(temperature=1.5, seed=seed)
        budget = Budget(target=8, ceiling=60)
        request = Request(messages=messages, tools=(NOTE,), sampling=sampling, budget=budget)
        result = await generate(backend, request)
        reasons.add(result.reason)
        assert result.text or result.tool_calls
    assert reasons <= {"stop", "tool_calls"}


async def test_a_seed_reproduces_and_neighbours_do_not_matter(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    requests = [
        Request(
            messages=(user(f"question number {n}"),),
            sampling=Sampling(temperature=1.0, seed=n),
            budget=Budget(target=8, ceiling=24),
        )
        for n in range(4)
    ]
    alone = [(await generate(backend, request)).text for request in requests]
    together: dict[int, str] = {}

    async def run(n: int) -> None:
        together[n] = (await generate(backend, requests[n])).text

    async with anyio.create_task_group() as tasks:
        for n in range(4):
            tasks.start_soon(run, n)
    assert [together[n] for n in range(4)] == alone


async def test_drafts_show_what_is_not_decided_yet(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    request = Request(messages=(user("hello"),), budget=Budget(target=8, ceiling=16))
    async with backend.stream(request) as events:
        drafts = [event.text async for event in events if isinstance(event, Draft)]
    assert any("░" in draft for draft in drafts)


async def test_what_cannot_be_done_is_refused_before_any_forward(plain: Path, router: Path) -> None:
    backend = LocalBackend.load(str(plain))
    with pytest.raises(ContextTooLong, match="the context holds 1000; shorten the task"):
        await generate(backend, Request(messages=(user("x" * 1100),)))
    schema = {"type": "string", "minLength": 30}
    with pytest.raises(BudgetTooSmall):
        await generate(
            backend,
            Request(messages=(user("x"),), schema=schema, budget=Budget(target=4, ceiling=4)),
        )
    with pytest.raises(SchemaError, match="pattern"):
        await generate(
            backend,
            Request(messages=(user("x"),), schema={"type": "string", "pattern": r"(a)\1"}),
        )
    with pytest.raises(TimedOut, match="deadline_s"):
        await generate(backend, Request(messages=(user("x"),), deadline_s=1e-9))
    assert held(backend) == 0


async def test_a_model_that_reads_no_instructions_says_so(router: Path) -> None:
    backend = LocalBackend.load(str(router))
    request = Request(messages=(system("be brief"), user("note milk")), tools=(NOTE,))
    result = await generate(backend, request)
    assert result.warnings == (
        f"local:{router} does not read instructions; they were left out of its prompt",
    )


async def test_a_recursive_tool_schema_keeps_its_references(plain: Path) -> None:
    tree = {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/Node"}},
        "required": ["root"],
        "additionalProperties": False,
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 2}
                },
                "required": ["children"],
                "additionalProperties": False,
            }
        },
    }
    tools = (ToolSpec(name="plant", parameters=tree), ToolSpec(name="prune", parameters=tree))
    request = Request(
        messages=(user("x"),),
        tools=tools,
        tool_choice="required",
        budget=Budget(target=8, ceiling=80),
    )
    result = await generate(LocalBackend.load(str(plain)), request)
    assert result.tool_calls[0].name in ("plant", "prune")
    assert "children" in result.tool_calls[0].arguments["root"]


def test_a_source_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no checkpoint folder at `\./nowhere`"):
        LocalBackend.load("./nowhere")
    with pytest.raises(ConfigurationError, match=r"has no config\.json"):
        LocalBackend.load(str(tmp_path))


def test_every_token_of_the_vocabulary_has_its_bytes(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    text = 'naïve "quote" 🙂'
    ids = backend._prompting.tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(backend._vocabulary.tokens[i] or b"" for i in ids).decode() == text
    again = vocabulary_of(backend._prompting.tokenizer, (2,), len(backend._prompting.tokenizer))
    assert [again.tokens[i] for i in range(6)] == [None] * 6


def spoken(number: int) -> Request:
    return Request(
        messages=(user(f"question number {number}"),),
        sampling=Sampling(temperature=1.0, seed=number),
        budget=Budget(target=8, ceiling=40),
    )


def test_several_event_loops_share_one_backend(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    told: dict[int, str] = {}

    async def run(number: int) -> None:
        told[number] = (await generate(backend, spoken(number))).text

    async def converse(first: int) -> None:
        for turn in range(2):
            async with anyio.create_task_group() as tasks:
                for place in range(3):
                    tasks.start_soon(run, first + 3 * turn + place)

    loops = [
        threading.Thread(
            target=anyio.run, args=(converse, 6 * n), kwargs={"backend": ("asyncio", "trio")[n % 2]}
        )
        for n in range(4)
    ]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(60)
    assert sorted(told) == list(range(24))
    assert held(backend) == 0
    alone = LocalBackend.load(str(plain))
    for number in (0, 7, 23):
        assert told[number] == anyio.run(generate, alone, spoken(number)).text


def test_a_task_that_asyncio_cancels_while_it_begins_leaves_nothing_behind(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend.load(str(plain))
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()
    begin = backend._begin

    def slow(*given: Any) -> Any:
        began.set()
        go_on.wait(10)
        try:
            return begin(*given)
        finally:
            over.set()

    async def main() -> None:
        monkeypatch.setattr(backend, "_begin", slow)
        task = asyncio.create_task(generate(backend, spoken(1)))
        await anyio.to_thread.run_sync(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await anyio.to_thread.run_sync(over.wait)
        monkeypatch.undo()
        assert (await generate(backend, spoken(2))).text

    asyncio.run(main())
    assert held(backend) == 0


async def test_leaving_does_not_wait_for_the_step_of_others(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend.load(str(plain))
    stepping, go_on = threading.Event(), threading.Event()
    waited: list[bool] = []
    step = backend._engine.step

    def slow() -> Any:
        stepping.set()
        waited.append(go_on.wait(5))
        return step()

    async with anyio.create_task_group() as tasks:
        async with backend.stream(spoken(1)):
            monkeypatch.setattr(backend._engine, "step", slow)
            tasks.start_soon(generate, backend, spoken(2))
            await anyio.to_thread.run_sync(stepping.wait)
        go_on.set()
    assert all(waited)
    assert held(backend) == 0


async def test_a_sequence_that_fails_ends_its_own_stream_alone(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    family: Any = backend._engine.family
    run, failures, texts = family.run, list[BackendError](), list[str]()

    def breaking(ids: Any, **rest: Any) -> Any:
        if ids.shape[1] > 100:
            raise RuntimeError("a secret of the prompt")
        return run(ids, **rest)

    family.run = breaking

    async def reply(request: Request) -> None:
        try:
            texts.append((await generate(backend, request)).text)
        except BackendError as error:
            failures.append(error)

    long = Request(messages=(user("x" * 150),), budget=Budget(target=8, ceiling=8))
    async with anyio.create_task_group() as tasks:
        for request in (spoken(1), long, spoken(2)):
            tasks.start_soon(reply, request)
    assert len(texts) == 2
    (failure,) = failures
    assert failure.backend == backend.name
    assert "RuntimeError" in str(failure)
    assert "secret" not in str(failure)
    assert held(backend) == 0


async def test_a_prompt_without_tokens_is_refused(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend.load(str(plain))
    monkeypatch.setattr(backend._prompting.tokenizer, "encode", lambda *_, **__: [])
    with pytest.raises(ConfigurationError, match="`prompt` is empty"):
        await generate(backend, spoken(1))
    assert held(backend) == 0


async def test_closing_ends_the_streams_in_flight(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    async with backend.stream(spoken(1)) as events:
        await anext(events)
        await backend.aclose()
        assert not backend._engine.busy
        with pytest.raises(BackendError, match="closed"):
            [event async for event in events]
    assert held(backend) == 0


async def test_a_reply_that_the_context_leaves_no_room_for_is_too_long_a_context(
    plain: Path,
) -> None:
    backend = LocalBackend.load(str(plain))
    schema = {"type": "string", "minLength": 60, "maxLength": 80}
    request = Request(
        messages=(user("x" * 950),), schema=schema, budget=Budget(target=8, ceiling=200)
    )
    with pytest.raises(ContextTooLong, match=r"takes \d+ tokens and the reply needs"):
        await generate(backend, request)
    assert held(backend) == 0


async def test_a_nucleus_is_cut_with_and_without_a_grammar(plain: Path) -> None:
    backend = LocalBackend.load(str(plain))
    request = Request(
        messages=(user("hello"),),
        sampling=Sampling(temperature=1.0, top_p=0.5, seed=3),
        budget=Budget(target=8, ceiling=40),
    )
    for schema in (None, {"enum": ["a", "b"]}):
        first, again = [await generate(backend, replace(request, schema=schema)) for _ in range(2)]
        assert first.warnings == ()
        assert first.text == again.text


async def test_references_of_every_kind_survive_in_tools(plain: Path) -> None:
    word = {"enum": ["red", "green"]}
    closed = {"type": "object", "additionalProperties": False}
    old = {
        **closed,
        "properties": {"a": {"$ref": "#/definitions/word"}},
        "required": ["a"],
        "definitions": {"word": word},
    }
    inner = {
        **closed,
        "properties": {"a": word, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    }
    backend = LocalBackend.load(str(plain))
    for parameters in (old, inner):
        request = Request(
            messages=(user("x"),),
            tools=(ToolSpec(name="paint/~%41", parameters=parameters),),
            tool_choice="required",
            budget=Budget(target=8, ceiling=90),
        )
        (call,) = (await generate(backend, request)).tool_calls
        assert set(call.arguments.values()) <= {"red", "green"}


async def test_an_open_bound_in_the_old_spelling_is_no_bug_of_ours(plain: Path) -> None:
    schema = {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 1}
    request = Request(messages=(user("x"),), schema=schema, budget=Budget(target=8, ceiling=8))
    assert (await generate(LocalBackend.load(str(plain)), request)).text == "1"


async def test_grammars_of_texts_that_never_come_back_are_not_kept(router: Path) -> None:
    backend = LocalBackend.load(str(router))
    backend._prompting.grammars = GrammarCache(max_bytes=300_000)
    for number in range(12):
        request = Request(messages=(user(f"note {number}"),), tools=(NOTE,))
        await generate(backend, request)
    assert 0 < len(backend._prompting.grammars) < 12
    assert backend._prompting.grammars.nbytes < 400_000
