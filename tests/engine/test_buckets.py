"""Rounded shapes: what comes out is what came out without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentdiff.engine import (
    Buckets,
    DecodeParams,
    Engine,
    LookAhead,
    Quota,
    SelfVerify,
    Threshold,
)
from agentdiff.errors import ConfigurationError
from tests.engine.test_laws import GRAMMAR, MODELS, jobs
from tests.engine.toys import ToyModel, toy_traits


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_bucketed_equals_unbucketed(kind: str, data: st.DataObject) -> None:
    """For batches of every kind, with caches, grammars, revisions and speculation."""
    made = data.draw(st.lists(jobs(kind), min_size=1, max_size=3))
    prompts, params = [job[0] for job in made], [job[1] for job in made]
    if kind != "canvas":
        guesses = [None, LookAhead()] + [SelfVerify()] * (kind in ("causal", "shifted"))
        params = [
            replace(own, speculation=data.draw(st.sampled_from(guesses)), revision=None)
            if own.temperature == 0 and own.cache in (None, "none")
            else own
            for own in params
        ]
    buckets = Buckets(columns=data.draw(st.sampled_from([1, 16, 128])))
    plain, bucketed = (
        Engine(MODELS[kind], buckets=some).generate(
            prompts,
            params,
            [GRAMMAR.start(own.ceiling) if bound else None for _, own, bound in made],
        )
        for some in (None, buckets)
    )
    assert [o.tokens for o in bucketed] == [o.tokens for o in plain]
    assert [o.stats.forwards for o in bucketed] == [o.stats.forwards for o in plain]


def test_few_shapes_are_met() -> None:
    met: dict[bool, set[tuple[int, ...]]] = {}
    for has_buckets in (False, True):
        model = ToyModel(toy_traits())
        engine = Engine(model, buckets=Buckets() if has_buckets else None, prefix_bytes=0)
        params = DecodeParams(target=8, ceiling=8, policy=Quota(steps=3), eos_ids=())
        for batch in range(1, 6):
            engine.generate([[5 + n] * (9 + 7 * n) for n in range(batch)], params)
        met[has_buckets] = set(model.pushed)
    assert len(met[True]) < len(met[False])
    assert all(rows & (rows - 1) == 0 for rows, _ in met[True])
    assert all(width & (width - 1) == 0 for _, width in met[True])
    assert Buckets().fit(3, 32, 0) == (4, 32, 0)
    assert Buckets().fit(1, 5, 129) == (1, 8, 256)
    assert Buckets().fit(33, 1, 5000) == (64, 1, 5120)
    shapes = {Buckets().fit(1, 1, columns)[2] for columns in range(32_769)}
    assert len(shapes) == 49
    with pytest.raises(ConfigurationError, match="`columns` must be positive"):
        Buckets(columns=0)


def test_rows_that_are_copied_have_the_columns_of_the_bucket() -> None:
    """Guesses of one sequence share its row, so rows are no longer the first ones in order."""
    params = DecodeParams(target=4, ceiling=20, policy=Threshold(0.5), speculation=LookAhead())
    prompts = [[5] * 5, [5] * 6, [5] * 7]
    plain, bucketed = (
        Engine(MODELS["causal"], buckets=buckets).generate(prompts, params)
        for buckets in (None, Buckets(columns=128))
    )
    assert [o.tokens for o in bucketed] == [o.tokens for o in plain]
