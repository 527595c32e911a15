"""Scores reduced on a device: what grammars are told, how it travels, and that it changes no reply."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentdiff.constraint import Grammar, StepScores, Sums, compile_schema
from agentdiff.engine import DecodeParams, Engine, Quota, Renoise, Threshold, sampling
from agentdiff.engine import grammar_scores as module
from agentdiff.engine.grammar_scores import Asked, reduce
from agentdiff.engine.regimes import canvas
from agentdiff.engine.sequence import Sequence
from tests.engine.test_laws import MODELS
from tests.engine.toys import END, PIECES, VOCABULARY

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string", "maxLength": 12},
        "p": {"type": "string", "pattern": "^[a-z ]{1,8}$"},
    },
    "required": ["n", "s"],
    "additionalProperties": False,
}
PARAMS = DecodeParams(target=24, ceiling=40, policy=Threshold(0.6), seed=2)


@pytest.fixture(autouse=True)
def small_sets_are_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentdiff.constraint.parts._FEW", 4)
    monkeypatch.setattr("agentdiff.constraint.parts._LEAST", 2)
    monkeypatch.setattr(module, "CHUNK", 16)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is treated as a device of its own."""
    monkeypatch.setattr(module, "is_reduced_on", lambda device: True)


def asking(grammar: Grammar, length: int, **changes: Any) -> tuple[Asked, Tensor]:
    """A sequence that asks for the scores of a whole block, and those scores."""
    sequence = Sequence(
        id=0,
        prompt=(),
        params=replace(PARAMS, **changes),
        policy=Threshold(0.9),
        eos_ids=frozenset({END}),
        matcher=grammar.start(30),
    )
    sequence.open_block(length)
    torch.manual_seed(0)
    rows = (3 * torch.randn(length, len(PIECES))).log_softmax(-1)
    return Asked(sequence, np.arange(length), rows), rows


def brought(asked: list[Asked]) -> list[StepScores]:
    reduced = reduce(asked)
    return reduced.scores([tensor.numpy() for tensor in reduced.tensors])


@pytest.mark.usefixtures("far")
def test_the_reduction_is_that_of_the_reference() -> None:
    grammar = compile_schema(SCHEMA, VOCABULARY)
    asked, rows = asking(grammar, 6)
    matcher: Any = asked.sequence.matcher
    matcher.propose(rows.numpy(), {})  # so that the grammar knows some sets
    (found,) = brought([asked])
    expected = StepScores.reduced(rows.numpy(), matcher.parts)
    assert found.parts is expected.parts
    assert len(matcher.parts.own) > 0
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.sums is not None
    assert expected.sums is not None
    assert found.sums.token.tolist() == expected.sums.token.tolist()
    for name in ("total", "best", "cooled", "drawn_score"):
        ours, theirs = getattr(found.sums, name), getattr(expected.sums, name)
        assert np.abs(ours - theirs).max() < 1e-5


@pytest.mark.usefixtures("far")
def test_what_is_drawn_from_a_group_follows_its_probabilities() -> None:
    asked, rows = asking(compile_schema({"type": "string"}, VOCABULARY), 2, temperature=0.7)
    counts: Counter[int] = Counter()
    draws = 600
    sums: Sums | None = None
    for _ in range(draws):
        sums = brought([asked])[0].sums
        assert sums is not None
        counts[int(sums.drawn[0, 0])] += 1
    assert sums is not None
    assert asked.sequence.matcher is not None
    ids = asked.sequence.matcher.parts.shared.ids[0]
    shares = (rows[0, torch.from_numpy(ids)].double() / 0.7).softmax(-1).tolist()
    for token, share in zip(ids.tolist(), shares, strict=True):
        assert abs(counts[token] - draws * share) <= 5 * (draws * share * (1 - share)) ** 0.5 + 1
    cooled = (rows[0, torch.from_numpy(ids)].double() / 0.7).logsumexp(-1)
    assert sums.cooled[0, 0] == pytest.approx(float(cooled), abs=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_a_reply_is_the_same_by_whole_rows_and_by_parts(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[kind]
    params = replace(PARAMS, policy=Renoise(steps=4, bound=1.0) if kind == "canvas" else None)
    prompts = [[5, 6, 7], [40, 41]]
    replies: list[Any] = []
    for is_far in (False, True):
        monkeypatch.setattr(module, "is_reduced_on", lambda device, is_far=is_far: is_far)
        grammar = compile_schema(SCHEMA, VOCABULARY)
        outputs = Engine(model).generate(prompts, params, [grammar.start(40) for _ in prompts])
        replies.append([(output.tokens, output.stats.steps) for output in outputs])
    assert replies[0] == replies[1]


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("kind", ["causal", "full", "canvas"])
def test_alone_equals_batched_for_what_is_drawn_by_parts(kind: str) -> None:
    model = MODELS[kind]
    policy = Renoise(steps=4, bound=1.0) if kind == "canvas" else Quota(steps=3)
    jobs = [
        ([5, 6, 7], replace(PARAMS, policy=policy, temperature=0.8, seed=1)),
        ([40], replace(PARAMS, policy=policy, temperature=1.3, seed=2)),
        ([8, 9], replace(PARAMS, policy=policy, temperature=0.8, top_p=0.7, seed=3)),
        ([8, 9], replace(PARAMS, policy=policy)),
    ]

    def tokens(some: list[Any]) -> list[Any]:
        grammar = compile_schema(SCHEMA, VOCABULARY)  # known to nobody yet
        outputs = Engine(model).generate(
            [prompt for prompt, _ in some],
            [params for _, params in some],
            [grammar.start(40) for _ in some],
        )
        for output in outputs:
            text = b"".join(PIECES[token] or b"" for token in output.tokens)
            assert grammar.accepts(text)
        return [output.tokens for output in outputs]

    assert tokens(jobs) == [tokens([job])[0] for job in jobs]


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("kind", ["causal", "canvas"])
def test_a_step_brings_everything_in_one_go(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []
    to_host = sampling.to_host

    def counted(tensors: list[Tensor]) -> list[Tensor]:
        trips.append(sum(tensor.numel() for tensor in tensors))
        return to_host(tensors)

    monkeypatch.setattr(sampling, "to_host", counted)
    monkeypatch.setattr(canvas, "to_host", counted)
    policy = Renoise(steps=4, bound=1.0) if kind == "canvas" else Quota(steps=3)
    grammar = compile_schema(SCHEMA, VOCABULARY)
    engine = Engine(MODELS[kind])
    for prompt in ([5], [6, 7]):
        engine.add(prompt, replace(PARAMS, policy=policy), grammar.start(40))
    while engine.busy:
        before = len(trips)
        updates = engine.step()
        assert all(update.error is None for update in updates)
        assert len(trips) == before + 1
