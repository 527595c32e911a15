"""The recipe: examples are right and reproducible, batches are laid out as the decoder runs, and a toy learns."""

from __future__ import annotations

import json
import re
from random import Random

import torch
from tokenizers import Tokenizer

from agentdiff.backends.actions import ReplyFormat, grounding, reply_schema
from agentdiff.backends.local import load_tokenizer
from agentdiff.backends.vocabulary import vocabulary_of
from agentdiff.constraint import compile_schema
from agentdiff.embedded.training import corpus, examples, refusing
from agentdiff.embedded.training.batches import Stream
from agentdiff.embedded.training.export import export
from agentdiff.embedded.training.release import is_better
from agentdiff.embedded.training.replies import Example, result_text
from agentdiff.embedded.training.slots import IGNORED, NOTHING, slots_of
from agentdiff.embedded.training.tokenizer import END, WEIGHTS, render
from agentdiff.embedded.training.train import arguments, learning_rate, loss_of, train
from agentdiff.engine.families.router_model import RouterModel, RouterShape
from agentdiff.engine.families.signatures import TOOL, Signatures
from agentdiff.generation import Request
from agentdiff.messages import ToolCall, ToolSpec, assistant, tool_result, user

FORMAT = ReplyFormat(style="compact", grounded=True, refuses=True, reads_instructions=False)


def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


def request_of(example: Example) -> Request:
    messages = [user(example.request)]
    for number, call in enumerate(example.done):
        made = ToolCall(
            id=str(number), name=call.tool.name, arguments=json.loads(call.arguments_json)
        )
        messages += [
            assistant(tool_calls=[made]),
            tool_result(made, result_text(call.result)),
        ]
    tools = [
        ToolSpec(
            name=t.name, description=t.description, parameters=t.spec["function"]["parameters"]
        )
        for t in example.tools
    ]
    return Request(messages=tuple(messages), tools=tuple(tools), kind="route")


def test_the_same_seed_gives_the_same_examples() -> None:
    def draw(seed: int) -> list[tuple[str, str]]:
        rng = Random(seed)
        return [(e.request, e.target) for e in (examples.sample(rng) for _ in range(60))]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_every_target_is_a_reply_that_the_grammar_allows() -> None:
    """So training never asks for what decoding forbids: grounded spans, schema types, key order, separators."""
    loaded = load_tokenizer(WEIGHTS)
    vocabulary = vocabulary_of(loaded, (2, 0), len(loaded))
    rng = Random(11)
    for _ in range(60):
        example = examples.sample(rng)
        request = request_of(example)
        schema = reply_schema(request, FORMAT)
        assert schema is not None
        grammar = compile_schema(
            schema, vocabulary, style="compact", grounding=grounding(request, FORMAT)
        )
        assert grammar.accepts(example.target.encode()), (example.request, example.target)


def test_held_out_phrases_and_values_never_reach_training() -> None:
    for tool in corpus.shipped():
        train_phrases = {p.text for p in corpus.phrases(tool, "train")}
        held = {p.text for p in corpus.phrases(tool, "held")}
        assert len(held) >= 10
        assert not train_phrases & held
    kinds = corpus.values("train")
    assert all(
        not set(kinds[k]) & set(corpus.values("held")[k]) for k in ("title", "message", "query")
    )
    unseen = {tool.name for tool in corpus.unseen()}
    assert not unseen & {tool.name for tool in (*corpus.catalog(), *corpus.shipped())}


def test_another_deed_is_one_that_no_tool_on_offer_does(monkeypatch) -> None:
    monkeypatch.setattr(refusing, "_OTHER_DEED", 1.0)
    rng = Random(8)
    asked = 0
    for _ in range(60):
        tools = rng.sample(corpus.catalog(), 4)
        request = refusing.refused_request(rng, "catalog", tools, "train", None)
        if request is None:
            continue
        asked += 1
        words = {w.lower() for t in tools for w in re.findall(r"[A-Za-z][a-z]+", t.name)}
        assert request.split()[0] not in words
        assert any(word.rstrip("s") in request.lower() for word in words)
    assert asked > 30


def test_hand_written_requests_are_not_in_the_training_corpus() -> None:
    phrases = {
        p.text.lower() for tool in (*corpus.catalog(), *corpus.shipped()) for p in tool.phrases
    }
    refusals = {text.lower() for text, _ in (*corpus.refusals("train"), *corpus.refusals("held"))}
    for path in corpus.EVALUATION.glob("hand_*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            assert json.loads(line)["request"].lower() not in phrases | refusals


def test_training_renders_the_prompt_as_the_checkpoint_does() -> None:
    loaded = load_tokenizer(WEIGHTS)
    rng = Random(3)
    for _ in range(20):
        example = examples.sample(rng)
        tools: list[corpus.Json] = [tool.spec for tool in example.tools]
        text = loaded.apply_chat_template(
            example.messages, tools=tools, add_generation_prompt=True, tokenize=False
        )
        assert text == render(example)


def test_a_copys_loss_equals_the_loss_of_the_block_decoded_from_the_cache() -> None:
    """The mask of a training batch is the block cache of the decoder, position for position."""
    torch.manual_seed(0)
    stream = Stream(tokenizer(), seed=5, batch_size=1, copies=1)
    rng = Random(8)
    encoded = stream.encode(examples.sample(rng, kind="chain"))
    while not 17 <= len(encoded.reply) <= 32:
        encoded = stream.encode(examples.sample(rng, kind="chain"))
    batch = stream.collate([encoded], block_len=16)
    shape = RouterShape(
        vocab_size=2048,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        slots=True,
    )
    model = RouterModel(shape).eval()
    with torch.inference_mode():
        prompt = model.encode(batch.prompt, batch.prompt_valid, kinds=batch.kinds)
        assert prompt.slots is not None
        refusal = prompt.slots.refusal[:, 0]
        hidden, _ = model.decode(
            batch.response,
            batch.positions,
            batch.mask,
            prompt.layers,
            block_len=16,
            refusal=refusal,
        )
        second = model.log_probs(hidden[:, 32 + 16 : 64], prompt)
        ids, kinds = torch.tensor([encoded.prompt]), torch.tensor([encoded.kinds])
        alone = model.encode(ids, torch.ones_like(ids, dtype=torch.bool), kinds=kinds)
        start = len(encoded.prompt)
        clean = batch.response[:, :16]
        _, first = model.decode(
            clean,
            torch.arange(start, start + 16)[None],
            None,
            alone.layers,
            block_len=16,
            refusal=refusal,
        )
        past = tuple(
            type(p)(torch.cat([p.keys, f.keys], 2), torch.cat([p.values, f.values], 2))
            for p, f in zip(alone.layers, first, strict=True)
        )
        noised = batch.response[:, 48:64]
        decoded, _ = model.decode(
            noised,
            torch.arange(start + 16, start + 32)[None],
            None,
            past,
            block_len=16,
            refusal=refusal,
        )
        written = model.log_probs(decoded, alone)
    torch.testing.assert_close(second, written, atol=1e-4, rtol=1e-4)
    assert encoded.reply[-1] == tokenizer().token_to_id(END)


def test_every_token_of_a_value_belongs_to_its_parameter_and_the_reply_mark_to_the_tool() -> None:
    loaded, rng = tokenizer(), Random(21)
    signatures = Signatures(loaded.get_vocab())
    seen = 0
    for _ in range(80):
        example = examples.sample(rng, kind="call")
        prompt = render(example)
        encoded = loaded.encode(prompt, add_special_tokens=False)
        kinds = signatures.kinds(encoded.ids)
        targets = slots_of(example, prompt, encoded.offsets, kinds)
        assert all(target == IGNORED or kinds[target] >= TOOL for target in targets)
        if example.kind != "call":
            assert targets[-1] == NOTHING
            continue
        assert example.expected is not None
        name = example.expected.tool.name
        assert prompt[encoded.offsets[targets[-1]][0] :].startswith(f"{name}(")
        said: dict[int, set[int]] = {}
        for token, place in enumerate(targets[:-1]):
            said.setdefault(place, set()).update(range(*encoded.offsets[token]))
        spoken = {
            re.split(r"\W", prompt[encoded.offsets[place][0] :], maxsplit=1)[0]: "".join(
                prompt[i] for i in sorted(characters)
            )
            for place, characters in said.items()
            if place not in (NOTHING, IGNORED)
        }
        for parameter, text in spoken.items():
            assert text == example.expected.arguments[parameter]
        seen += len(spoken)
    assert seen > 40


def test_nothing_is_a_slot_where_no_tool_fits() -> None:
    rng = Random(4)
    example = examples.sample(rng, kind="none")
    prompt = render(example)
    encoded = tokenizer().encode(prompt, add_special_tokens=False)
    kinds = Signatures(tokenizer().get_vocab()).kinds(encoded.ids)
    targets = slots_of(example, prompt, encoded.offsets, kinds)
    assert set(targets) == {IGNORED, NOTHING}


def test_the_rate_warms_up_holds_and_falls_to_zero() -> None:
    rates = [learning_rate(s, steps=100, warmup=10, decay=0.4) for s in range(100)]
    assert rates[0] == 0.1
    assert rates[10:60] == [1.0] * 50
    assert rates[60] == 1.0 >= rates[80] > rates[99] > 0


def test_a_toy_learns_and_a_resumed_run_goes_on(tmp_path) -> None:
    size = "--width 48 --layers 2 --heads 2 --inner 96 --batch 8 --copies 2"
    way = "--report 20 --threads 1 --no-bf16 --warmup 10 --device cpu"
    options = ["--out", str(tmp_path), *size.split(), *way.split()]
    losses = train(arguments().parse_args([*options, "--steps", "120"]))
    assert losses[-1] < 0.75 * losses[0]
    resume = ["--resume", str(tmp_path / "last.pt"), "--steps", "140"]
    (again,) = train(arguments().parse_args([*options, *resume]))
    assert again < losses[0]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [20, 40, 60, 80, 100, 120, 140]
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    model = RouterModel(RouterShape(**state["shape"]))
    model.load_state_dict(state["model"])
    stream = Stream(tokenizer(), seed=99, batch_size=4, copies=2)
    of_replies, of_slots = loss_of(model, next(iter(stream)))
    assert of_replies.item() < losses[0]
    assert of_slots.item() < rows[0]["slots"]


def test_training_can_begin_with_exported_weights(tmp_path) -> None:
    size = "--width 48 --layers 2 --heads 2 --inner 96 --batch 8 --copies 2 --device cpu"
    way = "--threads 1 --no-bf16 --warmup 1 --steps 20 --report 10"
    options = [*size.split(), *way.split()]
    train(arguments().parse_args(["--out", str(tmp_path / "a"), *options]))
    export(tmp_path / "a" / "last.pt", tmp_path / "weights")
    more = ["--out", str(tmp_path / "b"), "--start-from", str(tmp_path / "weights"), *options]
    fresh = train(arguments().parse_args(["--out", str(tmp_path / "c"), *options]))
    assert train(arguments().parse_args(more))[0] < fresh[0]


def test_worse_weights_do_not_replace_better_ones() -> None:
    old = [{"set": "a", "exact": 0.9}, {"set": "b", "exact": 0.5}]
    assert is_better([{"set": "a", "exact": 0.9}, {"set": "b", "exact": 0.6}], old)
    assert not is_better([{"set": "a", "exact": 0.89}, {"set": "b", "exact": 0.9}], old)
    assert not is_better(old, old)
    assert is_better(old, [])
