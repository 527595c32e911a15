"""Rounded shapes and compiled passes: what comes out is what came out without them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo import register_backend

from agentdiff.engine import (
    Buckets,
    DecodeParams,
    Engine,
    LookAhead,
    Quota,
    SelfVerify,
    Threshold,
    load_family,
)
from agentdiff.engine.families.compiled import call_compiled, compile_module
from agentdiff.errors import ConfigurationError
from tests.engine.golden_runs import GOLDENS
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


@pytest.fixture
def fresh() -> None:
    """Nothing compiled so far is taken again."""
    torch.compiler.reset()


class Halves(nn.Module):
    """A module with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 3:
            raise ValueError("three columns, please")
        return x * self.weight


@pytest.mark.usefixtures("fresh")
def test_a_module_is_compiled_once_for_all_sizes_and_gives_the_same() -> None:
    graphs: list[Any] = []

    @register_backend(name="counts")
    def counts(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    module = Halves()
    compile_module(module, "counts")
    for rows in (2, 5, 9):
        x = torch.ones(rows, 3)
        assert call_compiled(module, lambda x=x: module(x)).tolist() == [[0.5] * 3] * rows
    assert len(graphs) == 1
    with pytest.raises(ValueError, match="three columns"):
        call_compiled(module, lambda: module(torch.ones(2, 4)))


@pytest.mark.usefixtures("fresh")
def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once() -> None:
    @register_backend(name="refuses")
    def refuses(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("refused")

    module = Halves()
    compile_module(module, "refuses")
    x = torch.ones(2, 3)
    with pytest.warns(UserWarning, match="`torch_compile` failed .* Halves goes on uncompiled"):
        assert call_compiled(module, lambda: module(x)).sum() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call_compiled(module, lambda: module(x)).sum() == 3


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"is 'inductr', which is no backend .*inductor"):
        compile_module(Halves(), "inductr")


def test_models_of_our_own_are_not_compiled() -> None:
    with pytest.raises(ConfigurationError, match="`torch_compile` is for models of transformers"):
        load_family(GOLDENS / "bd3lm", device="cpu", torch_compile="eager")


@pytest.mark.slow
def test_a_compiled_checkpoint_writes_the_same() -> None:
    plain = Engine.load(GOLDENS / "sdar", device="cpu", prefix_bytes=0)
    compiled = Engine.load(GOLDENS / "sdar", device="cpu", prefix_bytes=0, torch_compile="eager")
    params = DecodeParams(target=12, ceiling=12, eos_ids=())
    prompts = [[7, 8, 9], list(range(20, 41))]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no falling back
        written = [o.tokens for o in compiled.generate(prompts, params)]
    assert written == [o.tokens for o in plain.generate(prompts, params)]


def test_rows_that_are_copied_have_the_columns_of_the_bucket() -> None:
    """Guesses of one sequence share its row, so rows are no longer the first ones in order."""
    params = DecodeParams(target=4, ceiling=20, policy=Threshold(0.5), speculation=LookAhead())
    prompts = [[5] * 5, [5] * 6, [5] * 7]
    plain, bucketed = (
        Engine(MODELS["causal"], buckets=buckets).generate(prompts, params)
        for buckets in (None, Buckets(columns=128))
    )
    assert [o.tokens for o in bucketed] == [o.tokens for o in plain]
