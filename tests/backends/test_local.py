"""The local backend held to the contract, on a tiny random checkpoint made for the test."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentdiff.backends import connect
from agentdiff.backends.local import LocalBackend, vocabulary_of
from agentdiff.engine.weights import quantize_rows, write_weights
from agentdiff.errors import (
    BudgetTooSmall,
    ConfigurationError,
    ContextTooLong,
    SchemaError,
    TimedOut,
)
from agentdiff.generation import Backend, Budget, Draft, Request, Sampling, generate
from agentdiff.messages import ToolCall, ToolSpec, assistant, system, tool_result, user
from tests.backends.conformance import CHECKS, NOTE, Subject
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
        "max_position_embeddings": 400,
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
    return len(backend._inbox) + backend._engine.busy


def subject(folder: Path) -> Subject:
    call = Request(
        messages=(user("add a note that says buy milk"),), tools=(NOTE,), tool_choice="required"
    )
    return Subject(
        name="local",
        open=lambda: connect(f"local:{folder}"),
        call=call,
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
    with pytest.raises(ContextTooLong, match="the context holds 400; shorten the task"):
        await generate(backend, Request(messages=(user("x" * 500),)))
    schema = {"type": "string", "minLength": 30}
    with pytest.raises(BudgetTooSmall):
        await generate(
            backend,
            Request(messages=(user("x"),), schema=schema, budget=Budget(target=4, ceiling=4)),
        )
    with pytest.raises(SchemaError, match="contentEncoding"):
        await generate(
            backend,
            Request(messages=(user("x"),), schema={"type": "string", "contentEncoding": "base64"}),
        )
    with pytest.raises(TimedOut, match="deadline_s"):
        await generate(backend, Request(messages=(user("x"),), deadline_s=1e-9))
    assert not backend._engine.busy
    assert backend._inbox == {}


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
    ids = backend._tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(backend._vocabulary.tokens[i] or b"" for i in ids).decode() == text
    again = vocabulary_of(backend._tokenizer, (2,), len(backend._tokenizer))
    assert [again.tokens[i] for i in range(6)] == [None] * 6
