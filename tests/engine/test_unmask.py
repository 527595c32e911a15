"""Unmask policies: progress, subsets, and the references' rules on paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.engine import EarlyCommit, EntropyBound, Factor, Quota, Threshold, View
from agentdiff.errors import ConfigurationError

POLICIES = st.one_of(
    st.builds(Threshold, st.floats(0.01, 1)),
    st.builds(Threshold, st.floats(0.01, 1), st.builds(Quota, steps=st.integers(1, 9))),
    st.builds(
        Quota,
        steps=st.one_of(st.none(), st.integers(1, 40)),
        score=st.sampled_from(["confidence", "margin", "entropy", "position"]),
        schedule=st.sampled_from(["even", "linear", "linear_rounded"]),
    ),
    st.builds(Factor, st.floats(0.1, 5)),
    st.builds(EntropyBound, st.floats(0, 3)),
    st.builds(EarlyCommit, policy=st.builds(Threshold, st.floats(0.01, 1))),
)


def view(
    confidence, *, masked=None, step: int = 0, block_len: int | None = None, opened=None
) -> View:
    scores = np.asarray(confidence, np.float64)
    return View(
        masked=np.ones(len(scores), bool) if masked is None else np.asarray(masked),
        confidence=scores,
        margin=2 * scores - 1,
        entropy=1 - scores,
        gap=10 * scores,
        step=step,
        block_len=block_len or len(scores),
        opened=opened or len(scores),
    )


@given(
    policy=POLICIES,
    confidence=st.lists(st.floats(0, 1), min_size=1, max_size=32),
    seed=st.integers(),
)
@settings(max_examples=150)
def test_every_policy_commits_masked_positions_only_and_completes_the_block(
    policy, confidence, seed
) -> None:
    rng = np.random.default_rng(abs(seed))
    masked = rng.random(len(confidence)) < 0.7
    masked[0] = True
    opened = int(masked.sum())
    for step in range(100):
        seen = view(rng.permutation(confidence), masked=masked.copy(), step=step, opened=opened)
        chosen = policy.choose(seen)
        assert not (chosen & ~masked).any()
        masked = masked & ~chosen
        if not masked.any():
            return
    raise AssertionError("the block is not complete after 100 steps")


def chosen(policy, *args, **kwargs) -> list[int]:
    return np.flatnonzero(policy.choose(view(*args, **kwargs))).tolist()


def test_a_threshold_takes_all_that_pass_or_the_surest_one() -> None:
    assert chosen(Threshold(0.9), [0.95, 0.2, 0.91, 0.9]) == [0, 2]
    assert chosen(Threshold(0.99), [0.95, 0.2, 0.91, 0.9]) == [0]
    assert chosen(Threshold(0.9, Quota(steps=2)), [0.95, 0.2, 0.6, 0.5]) == [0, 2]


def test_a_factor_asks_less_of_each_further_rank() -> None:
    # 1 - 1/3 for the second, 1 - 1/4 for the third.
    assert chosen(Factor(1.0), [0.3, 0.7, 0.72]) == [1, 2]
    assert chosen(Factor(1.0), [0.8, 0.7, 0.1]) == [0, 1]
    assert chosen(Factor(1.0), [0.3, 0.6, 0.2]) == [1]


def test_an_entropy_bound_sums_what_stands_before() -> None:
    assert chosen(EntropyBound(0.25), [0.9, 0.5, 0.8]) == [0, 2]
    assert chosen(EntropyBound(0.0), [0.9, 0.5, 0.8]) == [0]


def test_an_even_quota_gives_the_rest_to_the_first_steps() -> None:
    counts = [Quota(steps=3).count(view([0.5] * 16, step=step)) for step in range(3)]
    assert counts == [6, 5, 5]
    assert chosen(Quota(score="position"), [0.1, 0.9]) == [0]


def test_a_linear_quota_may_commit_nothing() -> None:
    assert Quota(steps=16, schedule="linear").count(view([0.5] * 16)) == 0
    assert Quota(steps=2, schedule="linear").count(view([0.5] * 5, step=1)) == 5
    counts = [
        Quota(steps=7, schedule="linear_rounded").count(view([0.5] * 6, step=n, opened=6))
        for n in range(6)
    ]
    assert sum(counts) == 6
    assert 0 not in counts


def test_a_clear_block_is_committed_whole() -> None:
    early = EarlyCommit(policy=Threshold(0.99))
    assert chosen(early, [0.8] * 4) == [0, 1, 2, 3]
    assert chosen(early, [0.6, 0.61, 0.6, 0.6]) == [1]
    assert chosen(early, [0.6] * 4, step=2) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Threshold(0),
        lambda: Quota(steps=0),
        lambda: Quota(eps=1),
        lambda: Factor(0),
        lambda: EntropyBound(-1),
    ],
)
def test_a_policy_that_cannot_work_is_refused(make) -> None:
    with pytest.raises(ConfigurationError):
        make()
