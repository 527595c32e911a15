"""Every family through the local backend: its template, its calls, budgets, drafts. Weights are random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

from agentdiff.backends.chat_template import ChatTemplate
from agentdiff.backends.decisions import decide
from agentdiff.backends.detokenizer import Detokenizer, mark
from agentdiff.backends.framing import read_calls
from agentdiff.backends.local import LocalBackend, load_tokenizer
from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.errors import ConfigurationError, ProtocolError
from agentdiff.generation import (
    Budget,
    Draft,
    Finish,
    Question,
    Request,
    Result,
    Sampling,
    generate,
)
from agentdiff.messages import ToolCall, ToolSpec, assistant, tool_result, user
from tests.backends.conformance import CITY, NOTE
from tests.backends.small_checkpoints import HERMES, LISTED, NO_TOOLS, write_family

pytestmark = pytest.mark.local

FAMILIES = ("llada", "dream", "a2d_qwen3", "sdar", "fast_dllm_v2", "llada2", "diffusion_gemma")
PAY = ToolSpec(
    name="pay",
    parameters={
        "type": "object",
        "properties": {"amount": {"type": "number", "multipleOf": 0.1, "maximum": 9}},
        "required": ["amount"],
        "additionalProperties": False,
    },
)
BUDGET = Budget(target=24, ceiling=60)


@pytest.fixture(scope="module", params=FAMILIES)
def backend(request, tmp_path_factory) -> LocalBackend:
    return LocalBackend.load(str(write_family(tmp_path_factory.mktemp("f") / "m", request.param)))


def said(backend: LocalBackend, request: Request) -> Result:
    return anyio.run(generate, backend, request)


def asking(**facts: Any) -> Request:
    sampling = Sampling(effort="speed", temperature=1.0)
    return Request(messages=(user("pay Bo 3"),), budget=BUDGET, sampling=sampling, **facts)


def check_calls(result: Result) -> None:
    assert result.tool_calls
    for call in result.tool_calls:
        jsonschema.validate(call.arguments, {"add_note": NOTE, "pay": PAY}[call.name].parameters)
    assert len({call.id for call in result.tool_calls}) == len(result.tool_calls)


def test_a_required_call_is_made_in_the_syntax_of_the_template(backend: LocalBackend) -> None:
    result = said(backend, asking(tools=(NOTE, PAY), tool_choice="required"))
    check_calls(result)
    assert (result.reason, result.enforcement) == ("tool_calls", "in_block")


def test_beside_tools_a_reply_is_text_or_calls(backend: LocalBackend) -> None:
    result = said(backend, asking(tools=(NOTE, PAY)))
    if result.tool_calls:
        check_calls(result)
    else:
        assert "<tool_call>" not in result.text


def test_a_response_schema_does_not_hide_the_tools(backend: LocalBackend) -> None:
    result = said(backend, asking(tools=(NOTE,), schema=CITY))
    if result.tool_calls:
        check_calls(result)
    else:
        jsonschema.validate(json.loads(result.text), CITY)


def test_capabilities_are_those_of_the_regime(backend: LocalBackend) -> None:
    traits = backend._engine.family.traits
    is_free = traits.attention == "bidirectional"
    assert backend.capabilities.quantum == (1 if is_free else traits.block_len)
    request = Request(
        messages=(user("hi"),),
        budget=Budget(target=8, ceiling=12),
        sampling=Sampling(effort="speed", top_p=0.5, temperature=0.7),
    )

    async def events() -> list[Any]:
        async with backend.stream(request) as stream:
            return [event async for event in stream]

    *before, end = anyio.run(events)
    assert any(isinstance(event, Draft) for event in before)
    assert isinstance(end, Finish)
    assert end.stats.cache == ("none" if is_free else "block")
    assert end.warnings == ()


def test_what_stands_between_two_texts_is_written_where_the_model_sees_both(
    backend: LocalBackend,
) -> None:
    budget = Budget(target=5, ceiling=20)
    if backend._engine.family.traits.attention == "block_causal":
        with pytest.raises(ConfigurationError, match="it cannot fill in before a `suffix`"):
            anyio.run(infilled, backend, "x", budget)
        return
    texts = {anyio.run(infilled, backend, suffix, budget).text for suffix in ("b", "z")}
    assert len(texts) == 2 or backend._engine.family.traits.attention == "canvas"
    result = anyio.run(infilled, backend, "b", budget)
    assert result.reason == "stop"
    assert 0 <= (result.usage.output_tokens or 0) <= 5


async def infilled(backend: LocalBackend, suffix: str, budget: Budget) -> Result:
    return await backend.infill("def f(", suffix, budget=budget)


def test_a_decision_is_one_look_with_a_probability_for_every_option(backend: LocalBackend) -> None:
    question = Question(
        messages=(user("charged twice"),),
        instructions="Which desk?",
        options={"sales": "", "billing": "payments", "other": ""},
    )
    decision = anyio.run(decide, backend, question)
    assert decision.probabilities is not None
    assert sum(decision.probabilities.values()) == pytest.approx(1)
    best = max(decision.probabilities, key=decision.probabilities.__getitem__)
    is_mask_model = backend._engine.family.traits.attention != "canvas"
    assert decision.choice == best or not is_mask_model
    assert decision.enforcement == "in_block"
    assert (decision.stats.forwards or 0) <= 2 or not is_mask_model


def test_the_syntax_is_read_off_the_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_family(tmp_path / "hermes", "sdar"))
    calls = ChatTemplate(tokenizer).calls
    assert calls is not None
    assert calls.syntax.before_name == (301, '\n{"name": "')
    assert calls.syntax.before_arguments == ('", "arguments": ',)
    assert calls.syntax.after_arguments == ("}\n", 302)
    assert (calls.syntax.between, calls.style, calls.is_parallel) == (("\n",), "spaced", True)
    listed = load_tokenizer(write_family(tmp_path / "listed", "sdar", template=LISTED))
    calls = ChatTemplate(listed).calls
    assert calls is not None
    assert calls.syntax.begin == ("[TOOL_CALLS]", " [")
    assert (calls.syntax.end, calls.syntax.between, calls.style) == (("]",), (",",), "compact")
    for template in (NO_TOOLS, HERMES.replace("arguments | tojson", "arguments"), None):
        other = load_tokenizer(write_family(tmp_path / "other", "sdar", template=template))
        (tmp_path / "other" / "chat_template.jinja").unlink(missing_ok=True)
        assert ChatTemplate(other).calls is None


def test_calls_without_tags_of_their_own_are_written_and_read(tmp_path: Path) -> None:
    folder = write_family(tmp_path, "sdar", template=LISTED)
    backend = LocalBackend.load(str(folder))
    check_calls(said(backend, asking(tools=(NOTE, PAY), tool_choice="required")))


def test_a_model_without_tools_in_its_template_is_told_of_them_in_words(tmp_path: Path) -> None:
    backend = LocalBackend.load(str(write_family(tmp_path, "sdar", template=NO_TOOLS)))
    call = ToolCall(id="1", name="pay", arguments={"amount": 1})
    messages = (user("pay"), assistant(tool_calls=[call]), tool_result(call, "paid"))
    request = Request(messages=messages, tools=(PAY,), tool_choice="required", budget=BUDGET)
    check_calls(said(backend, request))
    assert said(backend, Request(messages=messages, budget=Budget(target=4, ceiling=4)))


def test_without_a_template_the_conversation_is_lines_and_the_result_says_so(
    tmp_path: Path,
) -> None:
    backend = LocalBackend.load(str(write_family(tmp_path, "sdar", template=None)))
    result = said(backend, asking(schema={"enum": ["a", "b"]}))
    assert result.text in ('"a"', '"b"')
    assert "no chat template" in result.warnings[0]


def test_tags_in_free_text_without_tools_are_shown_as_they_are_written(tmp_path: Path) -> None:
    backend = LocalBackend.load(str(write_family(tmp_path, "sdar")))
    family: Any = backend._engine.family
    head = family.head

    def fond_of_tags(hidden: Any) -> Any:
        logits = head(hidden)
        logits[..., 301] += 100
        return logits

    family.head = fond_of_tags
    request = Request(messages=(user("hi"),), budget=Budget(target=3, ceiling=3))
    assert said(backend, request).text == 3 * "<tool_call>"


def test_what_a_grounded_tool_is_told_was_said(tmp_path: Path) -> None:
    backend = LocalBackend.load(str(write_family(tmp_path, "sdar")))
    tool = ToolSpec(name="add_note", parameters=NOTE.parameters, grounded=True)
    (call, *_) = said(backend, asking(tools=(tool,), tool_choice="required")).tool_calls
    assert call.arguments["text"] in "pay Bo 3"


def test_a_text_that_mentions_a_tag_is_no_call(tmp_path: Path) -> None:
    calls = ChatTemplate(load_tokenizer(write_family(tmp_path, "sdar"))).calls
    assert calls is not None
    begin, end = mark(0), mark(1)
    call = '\n{"name": "pay", "arguments": {"amount": 3}}\n'
    text = f"<tool_call> is a tag.\n{begin}{call}{end}\n{begin}{call}{end}"
    reply = read_calls(text, calls=calls, names=["pay"], has_text=True, call_id="c")
    assert reply.text == "<tool_call> is a tag."
    assert [call.id for call in reply.tool_calls] == ["c", "c_1"]
    alone = read_calls("<tool_call>", calls=calls, names=["pay"], has_text=True, call_id="c")
    assert (alone.reason, alone.text) == ("stop", "<tool_call>")


def test_a_sabotaged_matcher_is_caught_and_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AGENTDIFF_CACHE_DIR", str(tmp_path / "cache"))
    backend = LocalBackend.load(str(write_family(tmp_path / "m", "sdar")))
    begin = backend._begin

    def sabotaged(request: Request, started: float) -> Any:
        job = begin(request, started)
        job.matcher = backend._prompting.grammars.get("other", lambda: other).start(60)
        return job

    other = compile_schema({"const": {"city": "no boolean"}}, backend._vocabulary)
    monkeypatch.setattr(backend, "_begin", sabotaged)
    with pytest.raises(
        ProtocolError, match=r"at \$: required; this is a bug in agentdiff"
    ) as caught:
        said(backend, asking(schema=CITY))
    (dump,) = (tmp_path / "cache" / "bugs").iterdir()
    assert str(dump) in str(caught.value)
    kept = json.loads(dump.read_text())
    assert kept["schema"][0] == CITY
    assert kept["tokens"]
    assert kept["prompt"]
    assert kept["seed"] == 0
    assert "no boolean" not in str(caught.value)


def test_characters_are_never_split() -> None:
    euro = "€".encode()
    vocabulary = Vocabulary([euro[:1], euro[1:], b"a", None, None], (3,))
    text = Detokenizer(vocabulary, {4: "<t>"})
    assert text.draft([0, 1, 3, 2]) == "€"
    assert text.commit([2, 0]) == "a"
    assert text.draft([1, None]) == "€░"
    assert text.draft([None]) == "░░"
    assert text.commit([1, 4]) == "€<t>"
    assert text.marked == f"a€{mark(0)}"
