"""The vocabulary and its trie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.constraint import Vocabulary
from agentdiff.constraint.strings import string_tokens
from agentdiff.errors import ConfigurationError
from tests.constraint.doubles import BYTES, WORDS


def find(vocabulary: Vocabulary, data: bytes) -> int:
    node = 0
    for byte in data:
        node = vocabulary.child(node, byte)
        if node < 0:
            return -1
    return vocabulary.node_token[node]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=5)), max_size=40))
def test_each_token_is_found_by_its_bytes(tokens: list[bytes | None]) -> None:
    vocabulary = Vocabulary([*tokens, None], [len(tokens)])
    for i, token in enumerate(tokens):
        if token:
            first = tokens.index(token)
            assert find(vocabulary, token) == first
            assert i == first or i in vocabulary.twins[first]
        else:
            assert vocabulary.tokens[i] is None
    assert sum(t >= 0 for t in vocabulary.node_token) == len({t for t in tokens if t})


def test_children_lie_side_by_side_in_byte_order() -> None:
    for node in range(len(WORDS.node_bytes)):
        children = WORDS.node_bytes[WORDS.first_child[node] : WORDS.last_child[node]]
        assert list(children) == sorted(set(children))


def test_the_bytes_of_an_eos_id_are_no_text() -> None:
    vocabulary = Vocabulary([b"a", b"<eos>"], [1])
    assert find(vocabulary, b"<eos>") == -1
    assert vocabulary.eos_ids == (1,)
    assert len(vocabulary) == 2


def test_eos_ids_must_lie_in_the_vocabulary() -> None:
    for eos_ids in ([], [2], [-1, 0]):
        with pytest.raises(ConfigurationError, match="eos_ids"):
            Vocabulary([b"a", None], eos_ids)


def test_a_vocabulary_without_text_is_possible() -> None:
    assert find(Vocabulary([None], [0]), b"a") == -1


def test_tokens_inside_strings_are_sorted_by_what_they_do() -> None:
    known = string_tokens(WORDS, 0)
    groups = {
        (count, character): [WORDS.tokens[t] for t in ids] for count, character, ids in known.inside
    }
    assert b" Paris" in groups[6, 0]
    assert "日本".encode() in groups[2, 0]
    assert b"\\n" in groups[1, 0]
    assert groups[0, 1] == [b"\\"]
    assert b"a\xc3" in groups[1, 2]
    assert not any(
        token is not None and b'"' in token.replace(b'\\"', b"")
        for ids in groups.values()
        for token in ids
    )
    assert {count for count, _ in known.leaving} >= {0, 1, 2, 7}
    # One table per vocabulary.
    assert string_tokens(WORDS, 0) is known
    assert string_tokens(BYTES, 0) is not known
