"""Positions that come and go (LLaDA2.2): SGLang's rule step by step, and what holds around it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentdiff.engine import (
    DecodeParams,
    Edit,
    Engine,
    InsertDelete,
    LookAhead,
    Threshold,
    load_family,
    preset,
)
from agentdiff.engine.insert_delete import _rebuilt
from agentdiff.engine.sequence import MASKED
from agentdiff.errors import ConfigurationError
from tests.engine.test_families_load import golden
from tests.engine.test_laws import GRAMMAR, POLICIES, text
from tests.engine.toys import MASK, ToyModel, toy_traits

DELETE, INSERT = 94, 96
"""`|` and `~`, which no text of the grammar needs."""
TRACES = Path(__file__).parent / "insert_delete.json"
"""What `JointThresholdInDel` of sglang 0.5.23 made of the models below, their mask's logits at -inf."""


class Editing(ToyModel):
    """A random model that likes to edit."""

    def __init__(self, *, seed: int = 0, bonus: float = 6.0) -> None:
        super().__init__(toy_traits(delete_id=DELETE, insert_id=INSERT, edits=True), seed=seed)
        self.bonus = bonus

    def head(self, hidden: Tensor) -> Tensor:
        logits = super().head(hidden)
        logits[..., [DELETE, INSERT]] += self.bonus
        return logits


@pytest.mark.parametrize("case", json.loads(TRACES.read_text("utf-8")), ids=lambda c: c["seed"])
def test_every_step_is_that_of_the_reference(case: dict[str, Any]) -> None:
    model, prompt = Editing(seed=case["seed"], bonus=case["bonus"]), case["prompt"]
    length = -(-(len(prompt) + case["length"]) // 8) * 8 - len(prompt)
    params = DecodeParams(
        target=length,
        ceiling=length,
        policy=Threshold(case["threshold"]),
        revision=InsertDelete(threshold=case["edit_threshold"], post_steps=case["post_steps"]),
        eos_ids=(),
        record=True,
    )
    (output,) = Engine(model).generate([prompt], params)
    assert output.trace is not None
    ours = [list(canvas[-8:]) for canvas in output.trace]
    assert ours == case["trace"]


@given(
    st.lists(st.sampled_from([MASKED, 5, 6, 7]), min_size=1, max_size=9),
    st.lists(st.sampled_from([DELETE, INSERT, 5, 8, None]), min_size=9, max_size=9),
    st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_a_block_keeps_its_length_while_positions_come_and_go(
    old: list[int], written: list[int | None], own: list[bool]
) -> None:
    new = [
        token if token is not None else before for before, token in zip(old, written, strict=False)
    ]
    tokens: list[int] = []
    kept: list[bool] = []
    for before, token, is_own in zip(
        old, new, own, strict=False
    ):  # one position after the other, as it is told
        if token == INSERT:
            tokens += [MASKED, before]
            kept += [False, is_own]
        elif token != DELETE:
            tokens.append(token)
            kept.append(is_own)
    tokens = [*tokens, *[MASKED] * len(old)][: len(old)]
    kept = [*kept, *[False] * len(old)][: len(old)]
    block, owned = _rebuilt(
        np.array(old), np.array(new), np.array(own[: len(old)]), (DELETE, INSERT)
    )
    assert (block.tolist(), owned.tolist()) == (tokens, kept)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_alone_equals_batched_and_looking_ahead_changes_nothing(data: st.DataObject) -> None:
    """Beside neighbours with grammars, under which nothing is inserted or deleted."""
    model = Editing(bonus=data.draw(st.sampled_from([0.0, 4.0, 8.0])))
    made: list[tuple[list[int], DecodeParams, bool]] = []
    for _ in range(3):
        params = DecodeParams(
            target=16,
            ceiling=24,
            policy=data.draw(POLICIES),
            revision=data.draw(
                st.sampled_from(
                    [InsertDelete(post_steps=4), InsertDelete(threshold=0.5, post_steps=0), None]
                )
            ),
            temperature=data.draw(st.sampled_from([0.0, 0.0, 0.6])),
            record=True,
        )
        prompt = data.draw(st.lists(st.integers(2, 90), min_size=1, max_size=12))
        made.append((prompt, params, data.draw(st.booleans())))

    def matchers() -> list[Any]:
        return [GRAMMAR.start(24) if constrained else None for *_, constrained in made]

    together = Engine(model).generate(
        [p for p, *_ in made], [own for _, own, _ in made], matchers()
    )
    for (prompt, params, constrained), output, own in zip(made, together, matchers(), strict=True):
        (alone,) = Engine(model).generate([prompt], params, [own])
        assert alone.trace == output.trace
        assert not {MASK, DELETE, INSERT} & set(output.tokens)
        if constrained:
            json.loads(text(output))
        if params.temperature == 0:
            own = GRAMMAR.start(24) if constrained else None
            looking = replace(params, speculation=LookAhead())
            (ahead,) = Engine(model).generate([prompt], looking, [own])
            assert ahead.trace == output.trace


def test_a_model_without_such_tokens_or_with_half_blocks_is_refused() -> None:
    params = DecodeParams(target=4, ceiling=8, revision=InsertDelete())
    with pytest.raises(ConfigurationError, match="names ids for it, toy has none; use `Edit`"):
        Engine(ToyModel()).add([5], params)
    with pytest.raises(ConfigurationError, match="in blocks of 8"):
        Engine(Editing()).add([5], replace(params, block_len=4))


def test_an_effort_edits_as_the_model_was_trained_to() -> None:
    for effort in ("speed", "balanced", "quality"):
        moves = preset(Editing().traits, effort)
        assert isinstance(moves.revision, InsertDelete)
        plain = preset(toy_traits(edits=True), effort)
        assert type(plain.revision) is Edit
        assert moves.policy == plain.policy
        assert plain.revision.threshold == moves.revision.threshold


def test_tokens_that_edit_are_written_by_nothing_else() -> None:
    (output,) = Engine(Editing(bonus=50.0)).generate(
        [[5, 6, 7]], DecodeParams(target=24, ceiling=24, eos_ids=())
    )
    assert not {MASK, DELETE, INSERT} & set(output.tokens)


def test_a_checkpoint_that_names_its_ids_moves_tokens_with_experts_chosen_by_block(
    tmp_path: Path,
) -> None:
    ids = {"delete_token_id": 405, "split_token_id": 406}
    golden(tmp_path, "llada2", drop=(), block_size=8, expert_capacity=6, **ids)
    model = load_family(tmp_path, device="cpu")
    policy, revision = preset(model.traits, "speed")
    params = DecodeParams(
        target=20, ceiling=20, policy=policy, revision=revision, eos_ids=(), record=True
    )
    prompts = [[7, 8, 9], list(range(20, 41))]
    together = Engine(model).generate(prompts, params)
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = Engine(model).generate([prompt], params)
        assert alone.trace == output.trace
        assert len(output.tokens) == 20
        assert not {405, 406, model.traits.mask_id} & set(output.tokens)
