"""The compiled kernel against the numpy reference: the same fills, the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.constraint.lattice import Fill, Infeasible, Lattices
from tests.constraint.doubles import SCHEMAS, TREE, WORDS, noise

pytest.importorskip("numba", reason="numba (the `fast` extra) is not installed")

from agentdiff.constraint.kernel import Kernel

ROUNDING = 1e-9


@pytest.fixture(autouse=True)
def sets_are_written_by_what_is_not_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentdiff.constraint.sets._LARGE", 16)


def both(
    schema: Any,
    vocabulary: Vocabulary,
    log_probs: Any,
    pins: Mapping[int, int],
    *,
    budget: int,
    old_path: list[int] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> tuple[Fill | None, Fill | None]:
    """The fill of the reference and that of the kernel; None where there is none."""
    fills: list[Fill | None] = []
    for kind in (Lattices, Kernel):
        grammar = compile_schema(schema, vocabulary)
        draws = np.random.default_rng(seed).random((len(log_probs), 2)) if temperature else None
        try:
            fills.append(
                kind(grammar._tokens).solve(
                    grammar._tokens.start,
                    log_probs,
                    pins,
                    budget=budget,
                    old_path=old_path or [],
                    temperature=temperature,
                    draws=draws,
                )
            )
        except Infeasible:
            fills.append(None)
    return fills[0], fills[1]


def check(reference: Fill | None, compiled: Fill | None) -> Fill | None:
    assert (reference is None) == (compiled is None)
    if reference is not None and compiled is not None:
        assert compiled.tokens.tolist() == reference.tokens.tolist()
        assert len(compiled.path) == len(reference.path)
        assert np.abs(compiled.confidence - reference.confidence).max() <= ROUNDING
        assert compiled.forced.tolist() == reference.forced.tolist()
    return compiled


@settings(max_examples=80, deadline=None)
@given(
    schema=st.one_of(SCHEMAS, st.just(TREE)),
    seed=st.integers(0, 2**32),
    slack=st.sampled_from([0, 1, 6, 60]),
    length=st.sampled_from([1, 7, 12]),
    temperature=st.sampled_from([0.0, 0.0, 1.0, 0.6, 2.5]),
    sigma=st.sampled_from([0.5, 3.0, 30.0]),
)
def test_kernel_and_reference_agree(
    schema: Any, seed: int, slack: int, length: int, temperature: float, sigma: float
) -> None:
    rng = np.random.default_rng(seed)
    budget = compile_schema(schema, WORDS).min_tokens + slack
    first = check(*both(schema, WORDS, noise(rng, length, WORDS, sigma), {}, budget=budget))
    assert first is not None
    chosen = rng.choice(length, int(rng.integers(0, length + 1)), replace=False).tolist()
    pins = {i: int(first.tokens[i]) for i in chosen}
    if rng.random() < 0.2:
        pins[int(rng.integers(length))] = int(rng.integers(len(WORDS)))
    check(
        *both(
            schema,
            WORDS,
            noise(rng, length, WORDS, sigma),
            pins,
            budget=budget,
            old_path=None,
            temperature=temperature,
            seed=seed,
        )
    )
