# ruff: noqa: E501  (tables read better on long lines)
"""Vocabularies, schemas and a stand-in for a model, shared by the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentdiff.constraint import Grammar, Matcher, Vocabulary

Json = Any

_WORDS = (
    '{"', '"}', '": ', '": "', '", "', '"}}', ', "', '": {"', '": [', '"]', "[]", "{}", "[{", '": [{"', '""', '"",',
    "true", "false", "null", "name", "city", "days", "unit", "value", "child", "ren", " the", " Paris", "Par", "is",
    "20", "12", "00", "0.", ".5", "-1", "ab", "abc", "aa", "bb", "  ", " a", "\\n", "\\\"", "\\", "é", "日本", "日",
    "😀", "ü", "ber", '本"', 'x": ', '":', '","', "a long token of many words", "tags", "München", "München\"",
)  # fmt: skip
_PARTIAL = (b"\xe6\x97", b"\xa5\xe6", b"\xf0\x9f", b"\x98\x80", b"a\xc3", b'\xa9"')

BYTES = Vocabulary([*(bytes([b]) for b in range(256)), None], [256])
"""Every byte and EOS."""

_TOKENS = [*(bytes([b]) for b in range(256)), *(w.encode() for w in _WORDS), *_PARTIAL]
_EXTRA = [None, b"name", b"", b"<eos>", None]

WORDS = Vocabulary([*_TOKENS, *_EXTRA], [len(_TOKENS) + 3, len(_TOKENS) + 4])
"""Every byte, pieces of JSON, words, broken characters, a special, a twin, two EOS ids."""

_PIECES = (
    *(bytes([b]) for b in b'{}"ab:, 1203true'),
    *(b'"a', b'":', b'": ', b'{"a', b'{"a": ', b"12", b'b"', b'", ', b"true", b"t"),
)

TINY = Vocabulary([*_PIECES, None], [len(_PIECES)])
"""25 tokens, one of them twice, and EOS: small enough to try every sequence."""


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normalise the rows of [L, V] scores."""
    scores = scores - scores.max(1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


def noise(
    rng: np.random.Generator, length: int, vocabulary: Vocabulary, sigma: float = 3.0
) -> NDArray[np.float64]:
    """Log-probabilities [length, V] of a model that knows nothing."""
    return log_softmax(rng.standard_normal((length, len(vocabulary))) * sigma)


def text_of(tokens: list[int], vocabulary: Vocabulary) -> bytes:
    """The bytes of tokens up to the first EOS; nothing but EOS may follow it."""
    stop = next((i for i, t in enumerate(tokens) if t in vocabulary.eos_ids), len(tokens))
    assert all(t in vocabulary.eos_ids for t in tokens[stop:])
    pieces = [vocabulary.tokens[t] for t in tokens[:stop]]
    assert None not in pieces
    return b"".join(p or b"" for p in pieces)


def written(tokens: list[int], vocabulary: Vocabulary) -> int:
    """How many tokens are not EOS."""
    return sum(t not in vocabulary.eos_ids for t in tokens)


def decode(
    matcher: Matcher,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    *,
    block: int,
    choose: Callable[[NDArray[np.float64], list[int]], list[int]],
    temperature: float = 0.0,
    model: Callable[[int], NDArray[np.float64]] | None = None,
) -> list[int]:
    """Write a whole text block by block; `choose` picks which of the open positions to commit at each step."""
    out: list[int] = []
    model = model or (lambda length: noise(rng, length, vocabulary))
    while not matcher.must_stop:
        pins: dict[int, int] = {}
        while len(pins) < block:
            proposal = matcher.propose(model(block), pins, temperature=temperature, rng=rng)
            assert all(proposal.tokens[i] == t for i, t in pins.items())
            assert np.all((proposal.confidence >= 0) & (proposal.confidence <= 1))
            still_open = [i for i in range(block) if i not in pins]
            for i in choose(proposal.confidence, still_open):
                pins[i] = int(proposal.tokens[i])
        tokens = [pins[i] for i in range(block)]
        matcher.advance(tokens)
        out += tokens
    return out


def every_fill(
    grammar: Grammar, vocabulary: Vocabulary, length: int, budget: int
) -> list[tuple[int, ...]]:
    """All valid fills of a block: by the matcher's own token steps and costs, depth first."""
    fills: list[tuple[int, ...]] = []
    start = grammar.start(budget)

    def extend(tokens: tuple[int, ...]) -> None:
        if len(tokens) == length:
            fills.append(tokens)
            return
        for token in range(len(vocabulary)):
            matcher = start.copy()
            try:
                matcher.advance([*tokens, token])
            except ValueError:
                continue
            extend((*tokens, token))

    extend(())
    return fills


# -- schemas --------------------------------------------------------------------------------------------------------

_KEYS = st.sampled_from(
    ["a", "b", "name", "city", "days", 'q"', "naïve", "日本", "x y", "back\\slash"]
)


def _integers() -> st.SearchStrategy[Json]:
    edges = st.integers(-120, 120)
    return st.builds(
        lambda low, span, keys: (
            {"type": "integer"}
            | ({"minimum": low} if "low" in keys else {})
            | ({"maximum": low + span} if "high" in keys else {})
        ),
        edges,
        st.integers(0, 200),
        st.sets(st.sampled_from(["low", "high"])),
    )


def _numbers() -> st.SearchStrategy[Json]:
    return st.builds(
        lambda low, span, strict: {
            "type": "number",
            ("exclusiveMinimum" if strict else "minimum"): low,
            ("exclusiveMaximum" if strict else "maximum"): low + span,
        },
        st.decimals(-50, 50, places=2).map(float),
        st.decimals(0.5, 99, places=1).map(float),
        st.booleans(),
    )


def _strings() -> st.SearchStrategy[Json]:
    return st.builds(
        lambda low, more: (
            {"type": "string"}
            | ({"minLength": low} if low else {})
            | ({"maxLength": low + more} if more is not None else {})
        ),
        st.integers(0, 4),
        st.one_of(st.none(), st.integers(0, 6)),
    )


_LEAVES = st.one_of(
    _integers(),
    _numbers(),
    _strings(),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}, {"type": "number"}, {}, True]),
    st.lists(
        st.sampled_from(["red", "green", "日本", "naïve", "", 1, 2.5, True, None, {"a": [1]}, 'q"\\']), min_size=1, max_size=4
    ).map(lambda values: {"enum": values}),
    st.sampled_from(["x", 0, -1.5, [1, "a"], {"k": "ü"}]).map(lambda value: {"const": value}),
)  # fmt: skip


def _objects(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    def build(properties: dict[str, Json], required: set[int], more: Json) -> Json:
        names = list(properties)
        schema: Json = {"type": "object", "properties": properties}
        schema["required"] = [name for i, name in enumerate(names) if i in required]
        return schema if more is None else schema | {"additionalProperties": more}

    return st.builds(
        build,
        st.dictionaries(_KEYS, inner, max_size=3),
        st.sets(st.integers(0, 2)),
        st.sampled_from([None, None, False, True, {"type": "integer"}]),
    )


def _arrays(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.builds(
        lambda items, low, more, prefix: (
            {"type": "array", "items": items}
            | ({"minItems": low} if low else {})
            | ({"maxItems": low + more} if more is not None else {})
            | ({"prefixItems": prefix} if prefix else {})
        ),
        inner,
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(0, 3)),
        st.lists(inner, max_size=2),
    )


SCHEMAS: st.SearchStrategy[Json] = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
    ),
    max_leaves=6,
)
"""Satisfiable schemas over all supported keywords but `$ref`."""

TREE: Json = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
}
"""A schema that refers to itself."""


def dumps(value: Json, *, compact: bool = False) -> bytes:
    """The one spelling of a value."""
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(value, ensure_ascii=False, separators=separators).encode()
