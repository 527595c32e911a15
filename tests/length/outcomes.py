"""Steps and outcomes for the tests of the predictor and its store."""

import random

from hypothesis import strategies as st

from agentdiff.length import (
    BigCanvasCost,
    BlockCost,
    CachedCanvasCost,
    CanvasCost,
    CapCost,
    FullCanvasCost,
    StepContext,
)
from agentdiff.length.context import KINDS

costs = st.one_of(
    st.sampled_from([1, 4, 8, 32, 256]).flatmap(
        lambda quantum: st.sampled_from(
            [
                family(quantum)
                for family in (
                    BlockCost,
                    CanvasCost,
                    FullCanvasCost,
                    CachedCanvasCost,
                    BigCanvasCost,
                )
            ]
        )
    ),
    st.just(CapCost()),
)
contexts = st.builds(
    StepContext,
    agent=st.sampled_from(["helper", "scout"]),
    kind=st.sampled_from(KINDS),
    tool=st.sampled_from([None, "add_note", "größe"]),
    model=st.sampled_from(["", "small"]),
    schema_min=st.integers(0, 60),
    prompt_tokens=st.none() | st.integers(0, 5000),
    last_tokens=st.none() | st.integers(0, 500),
    episode=st.sampled_from([None, "one", "two"]),
)
outcomes = st.lists(
    st.tuples(contexts, st.integers(0, 9000), st.booleans()), min_size=1, max_size=12
)


def play(predictor, outcomes, cost=CanvasCost(32)):  # noqa: B008
    """Predict and observe each outcome; the budgets that were given."""
    budgets = []
    for context, used, truncated in outcomes:
        budgets.append(predictor.predict(context, cost))
        predictor.observe(context, budgets[-1], used=used, truncated=truncated)
    return budgets


def probe(predictor, outcomes, cost=CanvasCost(32)):  # noqa: B008
    """The budgets of all the contexts, without learning."""
    return [predictor.predict(context, cost) for context, _, _ in outcomes]


def heavy_tailed(count, *, seed=0, median=40, spread=0.9):
    """Lengths as answers have them: most are short and a few are very long."""
    source = random.Random(seed)
    return [max(1, int(median * source.lognormvariate(0, spread))) for _ in range(count)]
