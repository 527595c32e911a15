"""Tool calls beside text or beside an answer: neither hides the other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from agentdiff.constraint.matcher import Grammar
from agentdiff.constraint.tools import ToolSyntax, compile_tool_calls
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import ConfigurationError, SchemaError
from tests.constraint.doubles import BYTES, WORDS, decode, noise

TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "stop": {"type": "object", "additionalProperties": False},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}

OPEN, CLOSE = 256, 257
SPECIALS = Vocabulary([*(bytes([b]) for b in range(256)), None, None, None, b"<x"], [258])
"""Every byte, two special tokens, EOS, and a token that begins like a tag."""
ATOMIC = ToolSyntax(before_name=(OPEN, '{"name": "'), after_arguments=("}", CLOSE), between=())
LIST = ToolSyntax(
    begin=(OPEN, "["),
    before_name=('{"name": "',),
    after_arguments=("}",),
    between=(", ",),
    end=("]",),
)


def takes(grammar: Grammar, *texts: str) -> list[bool]:
    return [grammar.accepts(t.encode()) for t in texts]


def test_without_text_a_tool_is_called_for_sure() -> None:
    grammar = compile_tool_calls(TOOLS, BYTES)
    assert takes(grammar, CALL, STOP, f"{CALL}\n{STOP}\n{CALL}") == [True] * 3
    assert not any(takes(grammar, "", "hi", f"hi{CALL}", f"{CALL}{STOP}", CALL + "\n", CALL[:-1]))
    assert not any(takes(grammar, CALL.replace("weather", "other"), CALL.replace("Oslo", '"')))
    single = compile_tool_calls(TOOLS, BYTES, parallel=False)
    assert takes(single, CALL, f"{CALL}\n{STOP}") == [True, False]


def test_text_may_come_before_calls_or_instead_but_never_holds_the_tag() -> None:
    grammar = compile_tool_calls(TOOLS, BYTES, free_text=True)
    assert all(
        takes(grammar, "", "hello", CALL, f"I look.\n{CALL}", f"a < b <{CALL}", "<tool_call")
    )
    assert not any(takes(grammar, "<tool_call>", f"x <tool_call> {CALL}", f"{CALL} and more"))


def test_a_response_schema_does_not_hide_the_tools() -> None:
    grammar = compile_tool_calls(TOOLS, WORDS, response_schema=ANSWER)
    assert takes(grammar, CALL, '{"answer": "42"}', "text") == [True, True, False]
    # A model that wants to call a tool does, one that wants to answer does.
    for wanted in (STOP, '{"answer": "a"}'):
        tokens = [*wanted.encode(), WORDS.eos_ids[0]]
        log_probs = np.full((len(tokens), len(WORDS)), -20.0)
        log_probs[np.arange(len(tokens)), tokens] = -1e-6
        proposal = grammar.start(len(tokens) + 20).propose(log_probs, {})
        assert proposal.tokens.tolist() == tokens


def test_tags_may_be_special_tokens() -> None:
    grammar = compile_tool_calls(TOOLS, SPECIALS, syntax=ATOMIC, free_text=True)
    inside = b'{"name": "stop", "arguments": {}}'
    matcher = grammar.start(200)
    matcher.advance([*b"ok ", OPEN, *inside, CLOSE, OPEN, *inside, CLOSE])
    assert matcher.can_stop
    assert not matcher.must_stop  # another call may follow
    matcher = grammar.start(200)
    for token in (CLOSE, 255):  # no tag of its own accord, and no byte in its place
        with pytest.raises(ValueError, match="forbids"):
            matcher.advance([token])
    matcher.advance([OPEN])
    for token in (OPEN, CLOSE, ord("x")):
        with pytest.raises(ValueError, match="forbids"):
            matcher.advance([token])
    # The bytes that stand for a special token inside are no way to write it.
    with pytest.raises(ValueError, match="forbids"):
        grammar.start(200).advance([0xFF, *OPEN.to_bytes(4, "big")])


def test_calls_may_be_a_list() -> None:
    grammar = compile_tool_calls(TOOLS, SPECIALS, syntax=LIST)
    stop = b'{"name": "stop", "arguments": {}}'
    matcher = grammar.start(200)
    matcher.advance([OPEN, *b"[" + stop + b", " + stop + b"]"])
    assert matcher.must_stop
    assert grammar.min_tokens == 3 + len(stop)


@pytest.mark.parametrize("free_text", [False, True])
@pytest.mark.parametrize("syntax", [None, ATOMIC, LIST])
def test_whatever_is_written_is_text_or_valid_calls(
    syntax: ToolSyntax | None, free_text: bool
) -> None:
    grammar = compile_tool_calls(TOOLS, SPECIALS, syntax=syntax, free_text=free_text)
    called = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)

        def model(length: int, rng: np.random.Generator = rng) -> Any:
            scores = noise(rng, length, SPECIALS)
            scores[:, OPEN] += 9
            return scores - np.log(np.exp(scores).sum(1, keepdims=True))

        budget = grammar.min_tokens + 80
        tokens = decode(
            grammar.start(budget), SPECIALS, rng, block=16, choose=lambda c, o: o, model=model
        )
        spelled = b"".join(
            {OPEN: b"<tool_call>", CLOSE: b"</tool_call>"}.get(t, SPECIALS.tokens[t] or b"")
            for t in tokens
        ).decode()
        before, tag, calls = spelled.partition("<tool_call>")
        assert free_text or not before
        if not tag:
            continue
        called += 1
        for piece in calls.replace("</tool_call>", "").split("<tool_call>"):
            found = json.loads(piece)
            for one in found if isinstance(found, list) else [found]:
                assert set(one) == {"name", "arguments"}
                assert isinstance(one["arguments"].get("city", ""), str)
                assert ("city" in one["arguments"]) == (one["name"] == "weather")
    assert called or (free_text and syntax is None)  # a tag in bytes is hard to hit by chance


def test_a_tool_that_cannot_be_called_is_named() -> None:
    with pytest.raises(SchemaError) as error:
        compile_tool_calls({"bad": {"type": "object", "minProperties": "x"}}, BYTES)
    assert "bad" in str(error.value.__notes__)


def test_what_does_not_fit_together_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="at least one tool"):
        compile_tool_calls({}, BYTES)
    with pytest.raises(ConfigurationError, match="exclude"):
        compile_tool_calls(TOOLS, BYTES, free_text=True, response_schema=ANSWER)
    with pytest.raises(ConfigurationError, match="'nothing'"):
        compile_tool_calls(TOOLS, BYTES, grounding={"nothing": {}})
    for token in (300, 258, 65, -1):
        with pytest.raises(ConfigurationError, match="special token"):
            compile_tool_calls(TOOLS, SPECIALS, syntax=ToolSyntax(before_name=(token,)))
    with pytest.raises(ConfigurationError, match="empty"):
        ToolSyntax(end=("",))
    with pytest.raises(ConfigurationError, match="needs a piece"):
        ToolSyntax(before_name=())


def test_grounding_binds_the_arguments_of_a_tool() -> None:
    grammar = compile_tool_calls(TOOLS, BYTES, grounding={"weather": {"/city": ["in Oslo"]}})
    assert takes(grammar, CALL, CALL.replace("Oslo", "Bergen")) == [True, False]
