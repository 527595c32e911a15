"""Grammars that requests share."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from agentdiff.constraint import Grammar, GrammarCache, compile_schema
from agentdiff.errors import SchemaError
from tests.constraint.doubles import WORDS, noise

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 40}}}


def compiled() -> Grammar:
    return compile_schema(SCHEMA, WORDS)


def used(grammar: Grammar) -> Grammar:
    grammar.start(60).propose(noise(np.random.default_rng(0), 16, WORDS), {})
    return grammar


def test_the_same_key_is_the_same_grammar() -> None:
    cache = GrammarCache()
    grammar = cache.get("a", compiled)
    assert cache.get("a", compiled) is grammar
    assert cache.get("b", compiled) is not grammar
    assert len(cache) == 2


def test_the_least_recently_used_go_when_bytes_run_short() -> None:
    size = compiled().nbytes
    cache = GrammarCache(max_bytes=3 * size)
    first = cache.get(0, compiled)
    for key in (1, 2):
        cache.get(key, compiled)
    assert cache.get(0, compiled) is first
    cache.get(3, compiled)
    assert cache.nbytes <= 3 * size
    assert cache.get(0, compiled) is first
    assert len(cache) == 3
    tiny = GrammarCache(max_bytes=1)
    assert tiny.get(0, compiled) is tiny.get(0, compiled)  # the last one stays


def test_a_grammar_grows_and_is_made_anew_once_it_has_outgrown_its_share() -> None:
    grammar = compiled()
    before = grammar.nbytes
    used(grammar)
    assert grammar.nbytes > before
    cache = GrammarCache(max_grammar_bytes=before)
    first = cache.get("a", compiled)
    matcher = first.start(60)
    used(first)
    second = cache.get("a", compiled)
    assert second is not first
    matcher.propose(noise(np.random.default_rng(0), 16, WORDS), {})  # goes on with the old one


def test_what_does_not_compile_is_not_kept() -> None:
    cache = GrammarCache()

    def fail() -> Grammar:
        return compile_schema(False, WORDS)

    for _ in range(2):
        with pytest.raises(SchemaError):
            cache.get("a", fail)
    assert len(cache) == 0


def test_threads_may_share_a_grammar() -> None:
    cache = GrammarCache()
    fills: list[list[int]] = []

    def work() -> None:
        matcher = cache.get("a", compiled).start(60)
        rng = np.random.default_rng(3)
        fills.append(matcher.propose(noise(rng, 16, WORDS), {}).tokens.tolist())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 8
    assert all(fill == fills[0] for fill in fills)
