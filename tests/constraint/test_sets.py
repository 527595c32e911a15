"""Token sets: whatever way a set is written, it holds the same ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint.sets import TokenSets
from agentdiff.constraint.vocabulary import Vocabulary

VOCABULARY = Vocabulary([bytes([byte]) for byte in range(64)] + [None], [64])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 63), min_size=1), max_size=12))
def test_a_set_keeps_its_members(wanted: list[set[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentdiff.constraint.sets._SHARES", 4)
        patch.setattr("agentdiff.constraint.sets._LARGE", 40)
        sets = TokenSets(VOCABULARY)
        numbers = [sets.number(np.array(sorted(ids), np.int64)) for ids in wanted]
    for ids, number in zip(wanted, numbers, strict=True):
        assert sets.members(number).tolist() == sorted(ids)
        assert np.flatnonzero(sets.mask(number)).tolist() == sorted(ids)
        assert sets.sizes[number] == len(ids)
        if not sets.is_inverted(number):
            assert sets.written(number).tolist() == sorted(ids)
            assert sorted(sets.in_order(number).tolist()) == sorted(ids)


def test_a_large_set_is_written_by_the_largest_one_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentdiff.constraint.sets._SHARES", 4)
    sets = TokenSets(VOCABULARY)
    few, more, all_of_them = (np.arange(n) for n in (8, 12, 14))
    inner, middle = sets.number(few), sets.number(more)
    outer = sets.number(all_of_them)
    arrays = sets.arrays()
    assert arrays.base[[inner, middle, outer]].tolist() == [-1, inner, middle]
    assert arrays.written[[inner, middle, outer]].tolist() == [8, 4, 2]
    assert sets.in_order(outer).tolist() == list(range(14))
