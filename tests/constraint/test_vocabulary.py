"""The vocabulary and its trie."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.constraint import Vocabulary, store
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
        assert vocabulary.tokens[i] == (token or None)
        if token and 0xFF in token:  # cannot stand in UTF-8
            assert vocabulary.spelled[i] is None
        elif token:
            first = tokens.index(token)
            assert find(vocabulary, token) == first
            assert i == first or i in vocabulary.twins[first]
        else:
            assert find(vocabulary, vocabulary.special(i)) == i
    spelled = {t for t in vocabulary.spelled if t}
    assert sum(t >= 0 for t in vocabulary.node_token) == len(spelled)


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


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder, and every trie large enough to be kept."""
    monkeypatch.setattr("agentdiff.constraint.trie._LARGE", 0)
    monkeypatch.setenv("AGENTDIFF_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def shape(vocabulary: Vocabulary) -> tuple[object, ...]:
    return (
        vocabulary.node_bytes,
        vocabulary.first_child,
        vocabulary.last_child,
        vocabulary.node_token,
        vocabulary.twins,
    )


def test_a_trie_from_disk_is_the_trie(kept: Path) -> None:
    tokens = [*WORDS.tokens[:300], b"name", b"name", None]
    built = shape(Vocabulary(tokens, [len(tokens) - 1]))
    (file,) = kept.iterdir()
    before = file.stat().st_mtime_ns
    assert shape(Vocabulary(tokens, [len(tokens) - 1])) == built
    assert file.stat().st_mtime_ns == before
    Vocabulary([b"a", *tokens], [len(tokens)])
    assert len(list(kept.iterdir())) == 2  # other content, another file


def test_a_broken_file_is_built_anew(kept: Path) -> None:
    built = shape(Vocabulary(WORDS.tokens, WORDS.eos_ids))
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    for broken in (b"", whole[:100], whole[:-1] + b"x", b"\0" * len(whole)):
        file.write_bytes(broken)
        assert shape(Vocabulary(WORDS.tokens, WORDS.eos_ids)) == built
        assert file.read_bytes() == whole


def test_many_may_write_the_same_file_at_once(kept: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: shape(Vocabulary(WORDS.tokens, WORDS.eos_ids)), range(16)))
    assert all(other == built[0] for other in built)
    assert len(list(kept.iterdir())) == 1  # no temporary file is left behind


def test_no_folder_is_needed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write_text("a file stands where the folder should be")
    built = shape(Vocabulary(WORDS.tokens, WORDS.eos_ids))
    monkeypatch.setenv("AGENTDIFF_CACHE_DIR", "")
    assert store.cache_folder() is None
    assert shape(Vocabulary(WORDS.tokens, WORDS.eos_ids)) == built


def test_the_cache_goes_where_caches_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AGENTDIFF_CACHE_DIR", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.cache_folder() == tmp_path / "agentdiff"
