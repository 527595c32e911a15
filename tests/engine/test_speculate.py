"""Speculation: fewer passes, and what it promises about the tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentdiff.constraint import Matcher
from agentdiff.engine import (
    DecodeParams,
    Edit,
    Engine,
    LookAhead,
    Quota,
    Renoise,
    Revoke,
    SelfVerify,
    Threshold,
)
from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import Family
from agentdiff.engine.sampling import redraw
from agentdiff.engine.sequence import Draft, Sequence
from agentdiff.errors import ConfigurationError
from tests.engine import golden_runs
from tests.engine.test_laws import GRAMMAR, MODELS, POLICIES, text
from tests.engine.toys import MASK, ToyModel, toy_traits

ALWAYS = SelfVerify(expected=0)
CHECKED = ("causal", "shifted", "within", "to_end")
"""Models that can verify themselves."""


def matcher(wanted: bool, ceiling: int) -> Matcher | None:
    return GRAMMAR.start(ceiling) if wanted else None


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "canvas"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_looking_ahead_gives_the_same_steps_in_at_most_as_many_passes(
    kind: str, data: st.DataObject
) -> None:
    revisions: list[Any] = [None]
    if kind in ("causal", "full"):
        revisions += [Edit(threshold=0.6, post_steps=2), Revoke(threshold=0.2)]
    params = DecodeParams(
        target=data.draw(st.integers(1, 20)),
        ceiling=24,
        policy=data.draw(POLICIES),
        revision=data.draw(st.sampled_from(revisions)),
        eos_stop=data.draw(st.sampled_from(["token", "block", "ceiling"])),
        record=True,
    )
    look = LookAhead(steps=data.draw(st.integers(1, 4)))
    prompt = data.draw(st.lists(st.integers(2, 90), min_size=1, max_size=12))
    constrained = data.draw(st.booleans())
    plain, ahead = (
        Engine(MODELS[kind]).generate(
            [prompt], replace(params, speculation=speculation), [matcher(constrained, 24)]
        )[0]
        for speculation in (None, look)
    )
    assert ahead.trace == plain.trace
    assert (ahead.tokens, ahead.finish) == (plain.tokens, plain.finish)
    assert ahead.stats.steps == plain.stats.steps
    assert ahead.stats.forwards <= plain.stats.forwards
    if params.revision is None:
        assert ahead.stats.forced_tokens == plain.stats.forced_tokens
        assert ahead.stats.confidence == pytest.approx(plain.stats.confidence, rel=1e-4)


def test_looking_ahead_saves_passes_and_the_one_that_stores_a_block() -> None:
    params = DecodeParams(target=24, ceiling=24, policy=Quota(), eos_ids=())
    (plain,) = Engine(MODELS["causal"]).generate([[5, 6, 7]], params)
    (ahead,) = Engine(MODELS["causal"]).generate(
        [[5, 6, 7]], replace(params, speculation=LookAhead())
    )
    assert plain.stats.forwards == 24 + 3 + 5  # a step for each token; every block but the last
    assert ahead.tokens == plain.tokens
    assert ahead.stats.forwards <= 20
    assert ahead.stats.positions > plain.stats.positions


def one_at_a_time(
    model: Family, prompt: list[int], length: int, grammar: Matcher | None
) -> list[int]:
    """The greedy text of a model with blocks of one position inside each block, as plainly as can be."""
    block = model.traits.block_len
    back = model.traits.shift != "none"
    written = list(prompt)
    past: list[LayerKV] = []
    carry: torch.Tensor | None = None

    def run(ids: list[int], start: int, blocks: torch.Tensor) -> tuple[torch.Tensor, list[LayerKV]]:
        cached = past[0].keys.shape[2] if past else 0
        own = blocks[None, :] <= blocks[:, None]
        mask = torch.cat([torch.ones(len(ids), cached, dtype=torch.bool), own], 1)[None, None]
        positions = start + torch.arange(len(ids))[None]
        hidden, new = model.run(torch.tensor([ids]), positions=positions, mask=mask, past=past)
        return hidden[0], list(new)

    def store(ids: list[int], start: int) -> None:
        nonlocal past, carry
        hidden, new = run(ids, start, torch.zeros(len(ids)))
        carry = model.head(hidden[-1])
        if not past:
            past = new
        else:
            past = [
                LayerKV(torch.cat([o.keys, n.keys], 2), torch.cat([o.values, n.values], 2))
                for o, n in zip(past, new, strict=True)
            ]

    while len(written) < len(prompt) + length:
        stored = past[0].keys.shape[2] if past else 0
        while stored + block <= len(written):
            store(written[stored : stored + block], stored)
            stored += block
        ids = written[stored:]
        if not back:
            hidden, _ = run([*ids, MASK], stored, torch.arange(len(ids) + 1))
            logits = model.head(hidden[-1])
        elif ids:
            hidden, _ = run(ids, stored, torch.arange(len(ids)))
            logits = model.head(hidden[-1])
        else:
            assert carry is not None
            logits = carry
        logits[MASK] = -torch.inf
        if grammar is None:
            token = int(logits.argmax())
        else:
            fill = grammar.propose(logits.log_softmax(-1)[None].numpy(), {})
            token = int(fill.tokens[0])
            grammar.advance([token])
        if token in model.traits.eos_ids and grammar is not None:
            break
        written.append(token)
    return written[len(prompt) :]


@pytest.mark.parametrize("kind", ["causal", "shifted"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_always_verified_is_the_greedy_text_of_blocks_of_one(
    kind: str, data: st.DataObject
) -> None:
    """Whatever was drafted, with a grammar and without."""
    prompt = data.draw(st.lists(st.integers(2, 90), min_size=8, max_size=20))
    constrained = data.draw(st.booleans())
    params = DecodeParams(
        target=24,
        ceiling=24,
        policy=data.draw(POLICIES),
        speculation=ALWAYS,
        eos_ids=None if constrained else (),
    )
    (output,) = Engine(MODELS[kind]).generate([prompt], params, [matcher(constrained, 24)])
    with torch.inference_mode():
        expected = one_at_a_time(MODELS[kind], prompt, 24, matcher(constrained, 24))
    assert list(output.tokens) == expected
    if constrained:
        assert isinstance(json.loads(text(output))["n"], int)
    else:
        assert output.stats.steps <= 2 * 24  # each check keeps a token at least


@pytest.mark.parametrize("kind", CHECKED)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_self_verification_alone_equals_batched(kind: str, data: st.DataObject) -> None:
    """Beside rows that denoise, draw, or have a grammar."""
    made: list[tuple[list[int], DecodeParams, bool]] = []
    for _ in range(data.draw(st.integers(2, 4))):
        constrained = data.draw(st.booleans())
        speculation = data.draw(
            st.sampled_from([None, ALWAYS, SelfVerify(), SelfVerify(expected=2, span=3)])
        )
        hot = 0.0 if constrained and speculation else data.draw(st.sampled_from([0.0, 0.7]))
        params = DecodeParams(
            target=16,
            ceiling=24,
            policy=data.draw(POLICIES),
            speculation=speculation,
            temperature=hot,
            top_p=data.draw(st.sampled_from([1.0, 0.8])),
            seed=data.draw(st.integers(0, 3)),
        )
        prompt = data.draw(st.lists(st.integers(2, 90), min_size=1, max_size=12))
        made.append((prompt, params, constrained))
    together = Engine(MODELS[kind]).generate(
        [prompt for prompt, _, _ in made],
        [params for _, params, _ in made],
        [matcher(constrained, 24) for *_, constrained in made],
    )
    for (prompt, params, constrained), output in zip(made, together, strict=True):
        (alone,) = Engine(MODELS[kind]).generate([prompt], params, [matcher(constrained, 24)])
        assert alone.tokens == output.tokens
        assert alone.stats.forwards == output.stats.forwards
        assert MASK not in output.tokens
        if constrained:
            json.loads(text(output))


def test_a_drawn_draft_is_checked_so_that_tokens_have_the_distribution_of_the_check() -> None:
    model = ToyModel(toy_traits(vocab_size=6))
    params = DecodeParams(target=1, ceiling=1, temperature=0.8, speculation=ALWAYS, seed=5)
    sequence = Sequence(
        id=0, prompt=(), params=params, policy=Quota(), eos_ids=frozenset(), matcher=None
    )
    torch.manual_seed(0)
    count = 20_000
    before, after = torch.randn(2, 6).log_softmax(-1)
    drawn = torch.multinomial((before / 0.8).softmax(-1), count, replacement=True).numpy()
    draft = Draft(
        places=np.arange(count),
        block=drawn,
        log_probs=before.expand(count, model.traits.vocab_size),
    )
    tokens = redraw(after.expand(count, 6), draft, sequence)
    shares = torch.bincount(tokens, minlength=6) / count
    assert torch.allclose(shares, (after / 0.8).softmax(-1), atol=0.015)
    kept = float((tokens == torch.from_numpy(drawn)).float().mean())
    overlap = torch.minimum((before / 0.8).softmax(-1), (after / 0.8).softmax(-1)).sum()
    assert kept == pytest.approx(float(overlap), abs=0.015)


def test_a_check_is_made_where_it_is_expected_to_keep_enough() -> None:
    rule = SelfVerify(expected=1.5)
    certain, open_ = np.zeros(4), np.full(4, np.log(100))
    assert rule.is_worth(certain, vocab_size=100)  # four tokens
    assert not rule.is_worth(open_, vocab_size=100)  # e^-1 + e^-2 + ...: 0.57
    assert ALWAYS.is_worth(open_, vocab_size=100)
    assert not SelfVerify(expected=0, span=5).is_worth(certain, vocab_size=100)
    params = DecodeParams(target=24, ceiling=24, policy=Quota(steps=4), eos_ids=())
    never = replace(params, speculation=SelfVerify(expected=100))
    (plain,) = Engine(MODELS["causal"]).generate([[5, 6, 7]], params)
    (same,) = Engine(MODELS["causal"]).generate([[5, 6, 7]], never)
    assert (same.tokens, same.stats.forwards) == (plain.tokens, plain.stats.forwards)


def test_cancelling_frees_a_sequence_whose_draft_waits() -> None:
    engine = Engine(MODELS["causal"])
    params = DecodeParams(target=16, ceiling=16, eos_ids=(), speculation=ALWAYS)
    numbers = [engine.add([5 + n] * 9, params) for n in range(3)]
    updates = engine.step()
    assert all(update.final == () for update in updates)  # drafted, not yet checked
    engine.cancel(numbers[0])
    engine.cancel(numbers[2])
    outputs = [u.output for _ in range(60) for u in engine.step() if u.output is not None]
    (alone,) = Engine(MODELS["causal"]).generate([[6] * 9], params)
    assert [output.tokens for output in outputs] == [alone.tokens]
    assert engine._regime.buffer.lengths == []


@pytest.mark.parametrize("family", ["sdar", "llada2", "llada21", "fast_dllm_v2"])
def test_checkpoints_in_the_published_format_speculate(family: str) -> None:
    """Editing runs on where the model was trained for it."""
    run = golden_runs.runs(family)[0]
    model = golden_runs.load(family, run)
    made = [*golden_runs.prompts(run), [7, 8, 9], list(range(20, 61))]
    made = [prompt for prompt in made if prompt]
    revision = Edit(threshold=0.9, post_steps=2) if model.traits.edits else None
    params = DecodeParams(
        target=24, ceiling=24, policy=Quota(), eos_ids=(), revision=revision, record=True
    )
    plain = Engine(model).generate(made, params)
    ahead = Engine(model).generate(made, replace(params, speculation=LookAhead()))
    assert [o.trace for o in ahead] == [o.trace for o in plain]
    assert sum(o.stats.forwards for o in ahead) < sum(o.stats.forwards for o in plain)
    checked = [
        Engine(model).generate(made, replace(params, policy=policy, speculation=ALWAYS))
        for policy in (Quota(), Threshold(0.05))
    ]
    if revision is None:  # the drafts differ, what is written does not
        assert [o.tokens for o in checked[0]] == [o.tokens for o in checked[1]]
    assert all(len(o.tokens) == 24 for o in checked[0])


def test_what_cannot_speculate_is_refused() -> None:
    params = DecodeParams(target=4, ceiling=8)
    for kind, changes, message in (
        ("causal", {"speculation": LookAhead(), "temperature": 0.5}, "needs `temperature` 0"),
        ("full", {"speculation": LookAhead(), "cache": "dual"}, "`cache` 'none'"),
        ("full", {"speculation": LookAhead(), "guidance": 1.0}, "no `guidance`"),
        ("full", {"speculation": ALWAYS}, "block-causal"),
        ("router", {"speculation": ALWAYS}, "blocks of any length"),
        ("causal", {"speculation": ALWAYS, "revision": Revoke()}, "take back"),
        ("canvas", {"speculation": LookAhead(), "policy": Renoise()}, "no meaning"),
    ):
        changed: dict[str, Any] = changes
        with pytest.raises(ConfigurationError, match=message):
            Engine(MODELS[kind]).add([5], replace(params, **changed))
    routed = ToyModel(toy_traits(delete_id=95, insert_id=96))
    with pytest.raises(ConfigurationError, match="routes blocks"):
        Engine(routed).add([5], replace(params, speculation=ALWAYS))
    hot = replace(params, ceiling=24, temperature=0.5, speculation=ALWAYS)
    with pytest.raises(ConfigurationError, match="under a grammar"):
        Engine(MODELS["causal"]).add([5], hot, GRAMMAR.start(24))
    for make in (
        lambda: LookAhead(steps=0),
        lambda: SelfVerify(expected=-1),
        lambda: SelfVerify(span=0),
    ):
        with pytest.raises(ConfigurationError):
            make()
