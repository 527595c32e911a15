"""Gemma's own calls: read off the template, held by the grammar, read back as other readers do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentdiff.backends.actions import Reply
from agentdiff.backends.bare_arguments import read_bare
from agentdiff.backends.chat_template import CallSyntax, ChatTemplate, as_functions
from agentdiff.backends.detokenizer import Detokenizer
from agentdiff.backends.framing import read_calls
from agentdiff.backends.local import LocalBackend, load_tokenizer
from agentdiff.backends.vocabulary import vocabulary_of
from agentdiff.constraint import Grammar, Vocabulary, compile_tool_calls
from agentdiff.errors import SchemaError
from agentdiff.generation import Budget, Request, Result, Sampling, generate
from agentdiff.messages import ToolSpec, assistant, tool_result, user
from tests.backends.conformance import (
    CALL,
    CHECKS,
    CITY,
    NOTE,
    STRUCTURED,
    TEXTS,
    Subject,
)
from tests.backends.small_checkpoints import (
    GEMMA,
    GEMMA_ONE_TURN,
    GEMMA_TAGS,
    write_family,
    write_tokenizer,
)
from tests.constraint.doubles import SCHEMAS, decode, noise

pytestmark = pytest.mark.local

TEMPLATES = {"a turn for results": GEMMA, "results in the turn": GEMMA_ONE_TURN}


@cache
def model() -> tuple[Any, ChatTemplate, CallSyntax, Vocabulary]:
    with TemporaryDirectory() as folder:
        tokenizer: Any = load_tokenizer(
            write_family(Path(folder), "diffusion_gemma", template=GEMMA)
        )
    template = ChatTemplate(tokenizer)
    calls = template.calls
    assert calls is not None
    vocabulary = vocabulary_of(tokenizer, (391, 393), 400, atomic=tuple(calls.tags))
    return tokenizer, template, calls, vocabulary


def grammar_of(parameters: Any, **options: Any) -> Grammar:
    _, _, calls, vocabulary = model()
    tools = {"f": parameters, "fly": {"type": "object"}}
    return compile_tool_calls(tools, vocabulary, syntax=calls.syntax, **options)


def reply_of(tokens: Sequence[int]) -> Reply:
    _, _, calls, vocabulary = model()
    text = Detokenizer(vocabulary, calls.tags)
    text.commit([token for token in tokens if token not in vocabulary.eos_ids])
    return read_calls(text.marked, calls=calls, names=["f", "fly"], has_text=True, call_id="c")


def rendered(arguments: Sequence[dict[str, Any]], *, name: str = "f") -> str:
    """What the template makes of a turn with calls."""
    _, template, _, _ = model()
    made = [{"function": {"name": name, "arguments": each}} for each in arguments]
    rows = [{"role": "user", "content": "hi"}]
    said = {"role": "assistant", "content": "", "tool_calls": made}
    before = template.apply(rows, (), is_open=True, switch={"enable_thinking": True})
    whole = template.apply([*rows, said], (), is_open=False, switch={"enable_thinking": True})
    return whole.removeprefix(before).removesuffix("<turn|>\n")


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=list(TEMPLATES))
def test_the_syntax_is_read_off_the_template(template: str, tmp_path: Path) -> None:
    calls = ChatTemplate(
        load_tokenizer(write_family(tmp_path, "diffusion_gemma", template=template))
    ).calls
    assert calls is not None
    opening, closing, quote = (GEMMA_TAGS[t] for t in ("<|tool_call>", "<tool_call|>", '<|"|>'))
    assert calls.syntax.before_name == (opening, "call:")
    assert calls.syntax.after_arguments == (closing,)
    assert calls.syntax.quote == quote
    assert not (*calls.syntax.begin, *calls.syntax.between, *calls.syntax.end)
    assert not calls.syntax.before_arguments
    assert (calls.is_parallel, set(calls.tags)) == (True, {opening, closing, quote})


def test_the_tokens_are_those_of_the_template(tmp_path: Path) -> None:
    """FunctionGemma's are others."""
    tags = {"<start_function_call>": 301, "<end_function_call>": 302, "<escape>": 303}
    template = GEMMA
    for ours, theirs in zip(GEMMA_TAGS, tags, strict=False):
        template = template.replace(ours, theirs)
    special = {"<turn|>": 391}
    write_tokenizer(tmp_path, size=400, special=special, tags=tags, template=template)
    calls = ChatTemplate(load_tokenizer(tmp_path)).calls
    assert calls is not None
    assert (calls.syntax.before_name, calls.syntax.after_arguments) == ((301, "call:"), (302,))
    assert calls.syntax.quote == 303


def test_a_template_that_does_not_sort_the_keys_writes_another_syntax(tmp_path: Path) -> None:
    other = GEMMA.replace("them | dictsort", "them.items()")
    folder = write_family(tmp_path, "diffusion_gemma", template=GEMMA)
    (folder / "chat_template.jinja").write_text(other)
    assert ChatTemplate(load_tokenizer(folder)).calls is None


# -- laws -----------------------------------------------------------------------------------------

_CHARACTERS = st.characters(
    codec="utf-8", exclude_characters=[*map(chr, (*range(8), 0x0B, *range(0x0E, 0x20)))]
)
_TEXTS = st.text(_CHARACTERS, max_size=8).filter(
    lambda text: not any(t in text for t in GEMMA_TAGS)
)
_NAMES = st.text("abcXYZ_09é-日", min_size=1, max_size=4)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**9), 10**9),
        st.decimals(-1000, 1000, places=3).map(float),
        _TEXTS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)
    ),
    max_leaves=8,
)


def described(value: Any) -> Any:
    """A schema that a value satisfies."""
    match value:
        case dict():
            members: dict[str, Any] = value
            properties = {key: described(each) for key, each in members.items()}
            return {"type": "object", "properties": properties, "required": list(members)}
        case list():
            items: list[Any] = value
            return {"type": "array", "prefixItems": [described(each) for each in items]}
        case str():
            return {"type": "string", "minLength": len(value)}
        case None:
            return {"type": "null"}
        case bool():
            return {"const": value}
        case _:
            return {"type": "number", "minimum": value}


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(_NAMES, _VALUES, max_size=3), st.booleans())
def test_what_the_template_writes_is_accepted_and_read_back(
    arguments: dict[str, Any], is_open: bool
) -> None:
    tokenizer, _, _, vocabulary = model()
    grammar = grammar_of({"type": "object"} if is_open else described(arguments), free_text=True)
    text = rendered([arguments, arguments])
    tokens = tokenizer.encode(text, add_special_tokens=False)
    matcher = grammar.start(100_000)
    matcher.advance([*tokens, vocabulary.eos_ids[0]])
    reply = reply_of(tokens)
    assert [call.arguments for call in reply.tool_calls] == [arguments, arguments]
    assert [call.name for call in reply.tool_calls] == ["f", "f"]


@settings(max_examples=20, deadline=None)
@given(SCHEMAS, st.integers(0, 99))
def test_whatever_is_written_is_read_back_as_arguments_of_the_schema(
    schema: Any, seed: int
) -> None:
    _, _, _, vocabulary = model()
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    try:
        grammar = grammar_of(parameters)
    except SchemaError as error:
        assume("'q\"' cannot be written without quotes" not in str(error))
        raise
    rng = np.random.default_rng(seed)
    tokens = decode(
        grammar.start(grammar.min_tokens + 40),
        vocabulary,
        rng,
        block=16,
        choose=lambda confidence, still_open: still_open,
        model=lambda length: noise(rng, length, vocabulary),
    )
    reply = reply_of(tokens)
    assert reply.tool_calls
    for call in reply.tool_calls:
        if call.name == "f":
            jsonschema.validate(call.arguments, parameters)
    assert_others_read_the_same(tokens, reply)


def assert_others_read_the_same(tokens: Sequence[int], reply: Reply) -> None:
    """The parser of `transformers serve` takes it for the same, where it takes the names."""
    parsing = pytest.importorskip("transformers.utils.chat_parsing.content_parsers")
    _, _, calls, vocabulary = model()
    pieces = [calls.tags.get(t) or vocabulary.tokens[t] or b"" for t in tokens]
    text = b"".join(p.encode() if isinstance(p, str) else p for p in pieces).decode()
    dialect = {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]}
    for written, call in zip(text.split("<|tool_call>call:")[1:], reply.tool_calls, strict=True):
        body = written.removeprefix(call.name).removesuffix("<tool_call|>")
        if all(key.replace("_", "").isalnum() for key in keys_of(call.arguments)):
            assert parsing.CONTENT_PARSERS["json"](body, dialect) == call.arguments


def keys_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for each in value.values() for key in keys_of(each))]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list):
        return [key for each in value for key in keys_of(each)]  # pyright: ignore[reportUnknownVariableType]
    return []


def test_what_is_no_value_is_an_error() -> None:
    for text in ("", "x", "{a:}", '"'):
        with pytest.raises((ValueError, IndexError)):
            read_bare(text, 0, quote='"')
    assert read_bare('{a:"x,}",b:[1.5,{}],c:null}!', 0, quote='"') == (
        {"a": "x,}", "b": [1.5, {}], "c": None},
        27,
    )


def test_one_name_may_begin_another() -> None:
    tokenizer, _, _, _ = model()
    text = rendered([{}], name="fly") + rendered([{}])
    reply = reply_of(tokenizer.encode(text, add_special_tokens=False))
    assert [call.name for call in reply.tool_calls] == ["fly", "f"]


# -- a whole backend ------------------------------------------------------------------------------

BOOK = ToolSpec(
    name="book",
    parameters={
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date"},
            "Guests": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 1},
            "paid": {"type": "boolean"},
        },
        "required": ["when", "Guests"],
    },
)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: Any) -> LocalBackend:
    folder = tmp_path_factory.mktemp("gemma") / "m"
    return LocalBackend.load(str(write_family(folder, "diffusion_gemma", template=GEMMA_ONE_TURN)))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(check: Any, tmp_path: Path) -> None:
    folder = write_family(tmp_path, "diffusion_gemma", template=GEMMA_ONE_TURN)
    budget = Budget(target=24, ceiling=40)
    subject = Subject(
        name="gemma",
        open=lambda: LocalBackend.load(str(folder)),
        texts=tuple(replace(text, budget=Budget(target=8, ceiling=16)) for text in TEXTS),
        structured=replace(STRUCTURED, budget=budget),
        call=replace(CALL, kind="answer", tool_choice="required", budget=budget),
    )
    await check(subject)


def said(backend: LocalBackend, **facts: Any) -> Result:
    facts.setdefault("messages", (user("book Oslo"),))
    request = Request(
        budget=Budget(target=40, ceiling=56),
        sampling=Sampling(effort="speed", temperature=1.0, seed=3),
        **facts,
    )
    return anyio.run(generate, backend, request)


def test_a_call_is_made_and_goes_on_from_its_result(backend: LocalBackend) -> None:
    first = said(backend, tools=(BOOK, NOTE), tool_choice="required")
    assert (first.reason, first.enforcement) == ("tool_calls", "in_block")
    for call in first.tool_calls:
        spec = {"book": BOOK, "add_note": NOTE}[call.name]
        jsonschema.validate(call.arguments, spec.parameters)
    again = (
        user("book Oslo"),
        assistant(tool_calls=first.tool_calls),
        *(tool_result(call, "done") for call in first.tool_calls),
    )
    second = said(backend, messages=again)
    assert second.reason in ("stop", "length")


def test_an_answer_beside_the_tools_is_json_under_the_schema(backend: LocalBackend) -> None:
    result = said(backend, tools=(BOOK,), schema=CITY)
    if result.tool_calls:
        jsonschema.validate(result.tool_calls[0].arguments, BOOK.parameters)
    else:
        jsonschema.validate(json.loads(result.text), CITY)


def test_a_grounded_argument_was_said(backend: LocalBackend) -> None:
    tool = ToolSpec(name="add_note", parameters=NOTE.parameters, grounded=True)
    (call, *_) = said(backend, tools=(tool,), tool_choice="required").tool_calls
    assert call.arguments["text"] in "book Oslo"


def test_the_tools_are_shown_as_the_template_shows_them(backend: LocalBackend) -> None:
    rows = [{"role": "user", "content": "hi"}]
    shown = backend._prompting.template.render(rows, as_functions((BOOK,)))
    assert "<|tool>declaration:book{" in shown
