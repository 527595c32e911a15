"""Edges found once for all counts are the edges that a walk finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentdiff.constraint import Grammar, spelled
from agentdiff.constraint.automaton import DONE, END, literal
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.strings import string
from tests.constraint.doubles import WORDS


def tokens_by_state(grammar: Grammar, seed: int) -> list[list[tuple[int, ...]]]:
    """The token sets out of each state on one random way through the grammar."""
    tokens: Any = grammar._tokens
    rng = np.random.default_rng(seed)
    state, found = tokens.start, []
    for _ in range(40):
        _, sets = tokens.edges(state)
        by_set = sorted(tuple(tokens.sets.members(int(k)).tolist()) for k in sets)
        found.append(by_set)
        chosen = by_set[rng.integers(len(by_set))]
        state = tokens.step(state, int(rng.choice(chosen)))
        if state == DONE:
            break
    return found


@pytest.mark.parametrize(
    ("patterns", "low", "high"),
    [
        (["^.*$"], 0, 30),
        (["^.*$"], 12, None),
        ([r"^[^a\\]+$"], 3, 20),
        (["^(?=.*[A-Z])(?=.*[0-9]).*$"], 5, 16),
        ([r"^(?:日|é|ab|[\"\\])*$"], 0, 14),
        (["n"], 2, 12),
    ],
)
def test_edges_without_a_walk_are_those_of_a_walk(
    patterns: list[str], low: int, high: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled() -> Grammar:
        after = literal(b', "', END)
        return Grammar(string(low, high, after, patterns=[*map(parse_pattern, patterns)]), WORDS)

    for seed in range(3):
        monkeypatch.setattr(spelled, "_MAX_WALKS", 10**9)
        walked = tokens_by_state(compiled(), seed)
        monkeypatch.setattr(spelled, "_MAX_WALKS", 0)
        assert tokens_by_state(compiled(), seed) == walked
