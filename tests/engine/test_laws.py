"""Laws of decoding that hold for every kind of model: batches, caches, prefixes, endings, revisions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentdiff.constraint import compile_schema
from agentdiff.engine import (
    BlockEnds,
    DecodeOutput,
    DecodeParams,
    Edit,
    Engine,
    EntropyBound,
    Factor,
    Quota,
    Renoise,
    Revoke,
    Threshold,
    UnmaskPolicy,
    preset,
)
from agentdiff.engine.cache import Copy, HeldKV, KVBuffer, LayerKV
from agentdiff.errors import ConfigurationError
from tests.engine.toys import MASK, PIECES, VOCABULARY, ToyModel, toy_family, toy_traits

CAUSAL = ToyModel()
FULL = ToyModel(toy_traits(attention="bidirectional"))
CANVAS = ToyModel(toy_traits(attention="canvas", mask_id=None))
MODELS: dict[str, Any] = {
    "causal": CAUSAL,
    "to_end": ToyModel(toy_traits(prompt_blocks="to_end")),
    "shifted": ToyModel(toy_traits(shift="previous")),
    "within": ToyModel(toy_traits(shift="within_block", sub_block_len=4)),
    "full": FULL,
    "full_shifted": ToyModel(toy_traits(attention="bidirectional", shift="previous")),
    "canvas": CANVAS,
    "router": toy_family(),
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}, "s": {"type": "string"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
GRAMMAR = compile_schema(SCHEMA, VOCABULARY)
POLICIES: st.SearchStrategy[UnmaskPolicy] = st.one_of(
    st.builds(Threshold, st.floats(0.05, 0.95)),
    st.builds(Quota, steps=st.integers(1, 8)),
    st.builds(Factor, st.floats(0.5, 3)),
    st.builds(EntropyBound, st.floats(0, 2)),
)


def text(output: DecodeOutput) -> str:
    return b"".join(PIECES[token] or b"" for token in output.tokens).decode()


@st.composite
def jobs(draw: st.DrawFn, kind: str) -> tuple[list[int], DecodeParams, bool]:
    """A prompt, settings that the model takes, and whether there is a grammar."""
    target = draw(st.integers(1, 16))
    params = DecodeParams(
        target=target,
        ceiling=draw(st.integers(max(target, 20), 34)),
        temperature=draw(st.sampled_from([0.0, 0.7])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        seed=draw(st.integers(0, 3)),
        eos_stop=draw(st.sampled_from(["token", "block"])),
    )
    prompt = draw(st.lists(st.integers(2, 90), min_size=1, max_size=20))
    if kind == "canvas":
        return prompt, replace(params, policy=Renoise(steps=4, bound=1.0)), draw(st.booleans())
    params = replace(params, policy=draw(POLICIES))
    if kind == "full":
        cache = draw(st.sampled_from([None, "prefix", "dual"]))
        every = draw(st.sampled_from([None, 2]))
        params = replace(params, cache=cache, refresh_every=every)
        ends = st.builds(BlockEnds, ids=st.just((5, 9, 40, 71)), threshold=st.floats(0.05, 0.9))
        params = replace(params, block_ends=draw(st.none() | ends))
    if kind == "full_shifted":
        params = replace(params, cache=draw(st.sampled_from([None, "dual"])))
    if kind in ("causal", "full"):
        revisions = [None, Edit(threshold=0.6, post_steps=2), Revoke(threshold=0.2)]
        params = replace(params, revision=draw(st.sampled_from(revisions)))
    return prompt, params, draw(st.booleans())


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_alone_equals_batched(kind: str, data: st.DataObject) -> None:
    """Token for token, whatever the neighbours; and what has a grammar satisfies it within its ceiling."""
    made = data.draw(st.lists(jobs(kind), min_size=2, max_size=4))

    def matchers() -> list:
        return [GRAMMAR.start(p.ceiling) if constrained else None for _, p, constrained in made]

    prompts, params = [job[0] for job in made], [job[1] for job in made]
    together = Engine(MODELS[kind]).generate(prompts, params, matchers())
    narrow = Engine(MODELS[kind], max_batch=2, prefix_bytes=0).generate(prompts, params, matchers())
    alone = [
        Engine(MODELS[kind]).generate([prompt], own, [matcher])[0]
        for prompt, own, matcher in zip(prompts, params, matchers(), strict=True)
    ]
    assert [o.tokens for o in together] == [o.tokens for o in alone] == [o.tokens for o in narrow]
    assert [o.stats.steps for o in together] == [o.stats.steps for o in alone]
    for (_, own, constrained), output in zip(made, together, strict=True):
        assert kind == "canvas" or MASK not in output.tokens  # a canvas model has no mask
        assert len(output.tokens) <= own.ceiling
        if constrained:
            assert isinstance(json.loads(text(output))["n"], int)
            assert output.finish == "stop"


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cache_refreshed_at_every_step_is_exact(cache: Any) -> None:
    params = DecodeParams(target=20, ceiling=20, block_len=8, policy=Threshold(0.4), eos_ids=())
    (exact,) = Engine(FULL).generate([[5, 6, 7]], params)
    (cached,) = Engine(FULL).generate([[5, 6, 7]], replace(params, cache=cache, refresh_every=1))
    assert cached.tokens == exact.tokens


def test_the_positions_pushed_are_those_of_the_closed_forms() -> None:
    """Prompt 128, reply 128, blocks of 32, one token a step."""
    prompt = [2 + n % 90 for n in range(128)]
    params = DecodeParams(target=128, ceiling=128, block_len=32, policy=Quota(), eos_ids=())
    for cache, expected in (("dual", 4_992), ("prefix", 10_944), ("none", 128 * 256)):
        (output,) = Engine(FULL).generate([prompt], replace(params, cache=cache))
        assert (output.stats.positions, output.stats.steps) == (expected, 128)
    causal = ToyModel(toy_traits(block_len=32))
    (output,) = Engine(causal).generate([prompt], replace(params, block_len=None))
    assert output.stats.positions == 128 + 128 * 32 + 3 * 32  # the last block need not be stored


@pytest.mark.parametrize("kind", ["causal", "shifted", "canvas"])
def test_a_known_prefix_is_not_encoded_again(kind: str) -> None:
    engine = Engine(MODELS[kind])
    shared = [2 + n % 90 for n in range(100)]
    policy = Renoise(steps=2) if kind == "canvas" else None
    params = DecodeParams(target=8, ceiling=8, policy=policy)
    first = engine.generate([[*shared, 5, 6, 7]], params)[0]
    assert first.stats.reused_tokens == 0
    asked = [*shared, 9, 9, 9, 9, 9]
    (second,) = engine.generate([asked], params)
    block = 16 if kind == "canvas" else 8
    assert second.stats.reused_tokens >= len(shared) - block + 1
    fresh = Engine(MODELS[kind], prefix_bytes=0)
    assert second.tokens == fresh.generate([asked], params)[0].tokens
    assert 0.4 < engine.prefix_stats.hit_rate < 0.6


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("reply", [17, 21, 24])
def test_the_second_step_of_an_agent_run_encodes_what_is_new(shift: int, reply: int) -> None:
    """The first reply is known too, but for its last block: at most one block beyond the new tokens.

    Storing that block would take a pass of its own. Where an end token cuts it, what was computed would not even be
    right: its positions have seen what follows the cut.
    """
    engine = Engine(ToyModel(toy_traits(context_len=2048)))
    system = [2 + n % 90 for n in range(520 + shift)]
    (first,) = engine.generate([system], DecodeParams(target=reply, ceiling=reply, eos_ids=()))
    new = [11, 12, 13, 14, 15]
    prompt = [*system, *first.tokens, *new]
    (second,) = engine.generate([prompt], DecodeParams(target=8, ceiling=8))
    assert len(prompt) - second.stats.reused_tokens <= len(new) + 8


def test_a_block_ends_at_the_surest_delimiter_or_has_its_usual_length() -> None:
    probabilities = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2], [0.2, 0.8]])
    ends = BlockEnds(ids=(0,), threshold=0.5)
    assert ends.find(probabilities.log()) == 3
    assert replace(ends, threshold=0.85).find(probabilities.log()) is None
    base = DecodeParams(target=32, ceiling=32, block_len=8, eos_ids=(), record=True)
    every = BlockEnds(ids=tuple(range(1, 101)), threshold=1e-6, window=0.1)
    (usual,) = Engine(FULL).generate([[5, 6, 7]], base)
    (short,) = Engine(FULL).generate([[5, 6, 7]], replace(base, block_ends=every))
    assert (usual.stats.blocks, len(short.tokens)) == (4, 32)
    assert short.stats.blocks >= 8  # none longer than a tenth of the reply
    with pytest.raises(ConfigurationError, match="`block_ends` needs a bidirectional model"):
        Engine(CAUSAL).add([5], DecodeParams(target=8, ceiling=8, block_ends=every))


def test_a_pass_may_write_behind_what_it_sees_but_never_over_it() -> None:
    buffer = KVBuffer()
    rows = [buffer.add_row(), buffer.add_row()]
    new = torch.arange(2 * 2 * 6 * 4, dtype=torch.float32).view(2, 2, 6, 4)
    buffer.write([LayerKV(new, new)], [Copy(0, 0, 0, 6, 0), Copy(1, 1, 0, 4, 0)])
    (held,) = buffer.past(rows, 6, room=3)
    assert isinstance(held, HeldKV)
    held.whole.keys[:, :, 6:] = -1
    assert torch.equal(buffer.span(0, 0, 6)[0].keys[0], new[0])
    (seen,) = buffer.past(rows[:1], 4, room=3)  # the row goes on behind those four
    assert not isinstance(seen, HeldKV)


def test_prefixes_stay_within_their_bytes_and_the_oldest_goes_first() -> None:
    engine = Engine(CAUSAL, prefix_bytes=60_000)
    params = DecodeParams(target=1, ceiling=1)
    for start in range(20):
        engine.generate([[start + 2] * 64], params)
        assert engine.prefix_stats.held_bytes <= 60_000
    (output,) = engine.generate([[21] * 64], params)
    assert output.stats.reused_tokens == 64
    (output,) = engine.generate([[2] * 64], params)
    assert output.stats.reused_tokens == 0


def test_prefixes_fork_inside_an_edge() -> None:
    engine = Engine(CAUSAL)
    params = DecodeParams(target=1, ceiling=1)
    one, other = [5] * 24 + [6] * 24, [5] * 24 + [7] * 24
    engine.generate([one], params)
    assert engine.generate([other], params)[0].stats.reused_tokens == 24
    assert engine.generate([one], params)[0].stats.reused_tokens == 48
    assert engine.generate([other], params)[0].stats.reused_tokens == 48


def test_admission_waits_for_memory_and_lets_one_in_always() -> None:
    engine = Engine(CAUSAL)
    params = DecodeParams(target=16, ceiling=16, eos_ids=())
    engine.generate([[5] * 16], params)
    per_sequence = 32 * engine._regime.buffer.bytes_per_position
    engine.max_cache_bytes = 2 * per_sequence
    numbers = [engine.add([5 + n] * 16, params) for n in range(5)]
    most, ended = 0, []
    while engine.busy:
        ended += [u.sequence for u in engine.step() if u.is_last]
        most = max(most, len(engine._active))
    assert most == 2
    assert sorted(ended) == numbers
    engine.max_cache_bytes = 1
    assert engine.generate([[5] * 16] * 2, params)


def test_cancelling_frees_the_row() -> None:
    engine = Engine(CAUSAL)
    params = DecodeParams(target=16, ceiling=32, eos_ids=())
    numbers = [engine.add([5 + n] * 9, params) for n in range(3)]
    engine.step()
    for number in numbers:
        engine.cancel(number)
    assert engine._regime.buffer.lengths == []
    assert not engine.busy


def test_a_forced_text_needs_no_pass_and_a_forced_tail_none_more() -> None:
    fixed = compile_schema({"const": "abcdef"}, VOCABULARY)
    params = DecodeParams(target=8, ceiling=24)
    (output,) = Engine(CAUSAL).generate([[5, 6]], params, [fixed.start(24)])
    assert text(output) == '"abcdef"'
    assert output.stats.forwards == 0
    either = {"enum": ["xabcdefghijklmnop", "yabcdefghijklmnop"]}
    matcher = compile_schema(either, VOCABULARY).start(64)
    params = DecodeParams(target=40, ceiling=64)
    (output,) = Engine(CAUSAL).generate([[5, 6]], params, [matcher])
    assert json.loads(text(output)) in either["enum"]
    assert (output.stats.steps, output.stats.forwards) == (1, 1)


@pytest.mark.parametrize("kind", ["causal", "full"])
def test_revision_takes_tokens_back_and_still_ends(kind: str) -> None:
    base = DecodeParams(target=24, ceiling=24, policy=Threshold(0.3), eos_ids=())
    for revision in (Edit(threshold=0.1, post_steps=3), Revoke(threshold=0.9)):
        params = replace(base, revision=revision, record=True)
        (output,) = Engine(MODELS[kind]).generate([[5, 6, 7]], params)
        assert len(output.tokens) == 24
        assert output.stats.revised_tokens > 0
        assert output.trace is not None
        assert len(output.trace) == output.stats.steps
        matcher = GRAMMAR.start(24)
        (output,) = Engine(MODELS[kind]).generate([[5, 6, 7]], params, [matcher])
        json.loads(text(output))


def test_a_bidirectional_reply_extends_its_canvas_up_to_the_ceiling() -> None:
    params = DecodeParams(target=5, ceiling=19, block_len=8, eos_ids=(), record=True)
    (output,) = Engine(FULL).generate([[5, 6, 7]], params)
    assert len(output.tokens) == 19
    assert output.finish == "length"
    assert output.stats.extensions == 2
    assert output.trace is not None
    assert sorted({len(canvas) - 3 for canvas in output.trace}) == [5, 13, 19]


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_canvas_is_cut_where_the_reply_has_surely_ended_and_grows_again(cache: Any) -> None:
    ends = tuple(range(2, 99))  # every token ends the reply, so every position is sure to
    base = DecodeParams(
        target=40, ceiling=40, cache=cache, eos_ids=ends, eos_stop="ceiling", record=True
    )
    (cut,) = Engine(FULL).generate([[5, 6, 7]], replace(base, contract_at=0.5))
    assert cut.trace is not None
    assert [len(cut.trace[0]), len(cut.trace[-1])] == [3 + 8, 3 + 40]
    (whole,) = Engine(FULL).generate([[5, 6, 7]], base)
    assert cut.stats.positions < whole.stats.positions
    (same,) = Engine(FULL).generate([[5, 6, 7]], replace(base, contract_at=1.0, eos_ids=(1,)))
    (plain,) = Engine(FULL).generate([[5, 6, 7]], replace(base, eos_ids=(1,)))
    assert same.trace == plain.trace


@pytest.mark.parametrize("kind", ["causal", "full"])
def test_an_empty_prompt_works(kind: str) -> None:
    (output,) = Engine(MODELS[kind]).generate([[]], DecodeParams(target=4, ceiling=8, eos_ids=()))
    assert len(output.tokens) == 8


def test_guidance_of_zero_changes_nothing_and_more_does() -> None:
    params = DecodeParams(target=16, ceiling=16, eos_ids=())
    plain, weak, strong = (
        Engine(FULL).generate([[5, 6, 7]], replace(params, guidance=g))[0].tokens
        for g in (0.0, 1e-9, 4.0)
    )
    assert plain == weak != strong


def test_what_a_model_cannot_do_is_refused() -> None:
    params = DecodeParams(target=4, ceiling=8)
    for model, changes, message in (
        (CAUSAL, {"cache": "dual"}, "exact `block` cache"),
        (CAUSAL, {"block_len": 9}, "blocks of 8"),
        (CAUSAL, {"guidance": 1.0}, "bidirectional"),
        (CAUSAL, {"policy": Renoise()}, "canvas models"),
        (FULL, {"cache": "block"}, "looks ahead"),
        (FULL, {"cache": "dual", "guidance": 1.0}, "needs `cache` 'none'"),
        (FULL, {"cache": "dual", "suffix": (5,)}, "needs `cache` 'none'"),
        (CAUSAL, {"suffix": (5,)}, "sees nothing behind the block"),
        (MODELS["full_shifted"], {"revision": Revoke()}, "without a shift"),
        (CANVAS, {"policy": Threshold()}, "must be a `Renoise`"),
        (CANVAS, {"revision": Edit()}, "no meaning"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Engine(model).add([5], replace(params, **changes))
    for wrong in ({"top_p": 0.0}, {"contract_at": 0.0}, {"block_len": 0}, {"refresh_every": 0}):
        with pytest.raises(ConfigurationError):
            replace(params, **wrong)
    for make in (
        lambda: Edit(threshold=2),
        lambda: Edit(post_steps=-1),
        lambda: Revoke(threshold=-1),
        lambda: Renoise(steps=0),
        lambda: Renoise(coldest=0.0),
        lambda: Renoise(bound=-1),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_an_effort_is_a_policy_for_every_kind_of_model() -> None:
    for effort in ("speed", "balanced", "quality"):
        assert isinstance(preset(CAUSAL.traits, effort).policy, Threshold)
        assert isinstance(preset(CANVAS.traits, effort).policy, Renoise)
        assert isinstance(preset(toy_traits(edits=True), effort).revision, Edit)


def test_top_p_draws_among_the_likeliest_only() -> None:
    from agentdiff.engine.sampling import nucleus

    scores = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    assert nucleus(scores, 0.6).isfinite().tolist() == [[True, True, False, False]]
    assert nucleus(scores, 0.01).isfinite().tolist() == [[True, False, False, False]]
