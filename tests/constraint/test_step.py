"""Who solves a step: compiled code where it pays and works, numpy in any other case."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.constraint import step as module
from tests.constraint.doubles import noise, text_of


def fresh() -> Vocabulary:
    """A vocabulary for which nobody has tried the kernel yet."""
    return Vocabulary([*(bytes([b]) for b in range(256)), None], [256])


def written(vocabulary: Vocabulary) -> bytes:
    matcher = compile_schema({"enum": ["a", 7]}, vocabulary).start(9)
    fill = matcher.propose(noise(np.random.default_rng(0), 4, vocabulary), {})
    return text_of(fill.tokens.tolist(), vocabulary)


def test_a_broken_numba_is_warned_of_once_and_steps_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        assert name == "numba"
        return object()

    def broken(name: str) -> ModuleType:
        raise OSError(f"{name}: libLLVM is not what it should be")

    vocabulary = fresh()
    monkeypatch.setattr(module, "_PAYS_FROM", 1)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", find)
        patched.setattr(importlib, "import_module", broken)
        with pytest.warns(RuntimeWarning, match="slower: OSError.*libLLVM") as warned:
            assert written(vocabulary) in {b'"a"', b"7"}
        assert len(warned) == 1
        assert written(vocabulary) in {b'"a"', b"7"}  # a further warning would be an error


def test_without_numba_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAYS_FROM", 1)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        assert written(fresh()) in {b'"a"', b"7"}


def test_small_vocabularies_do_not_even_look_for_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*, is_double: bool) -> bool:
        raise AssertionError("the kernel was tried")

    monkeypatch.setattr(module, "_works", never)
    assert written(fresh()) in {b'"a"', b"7"}
