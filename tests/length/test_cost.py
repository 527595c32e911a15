import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.errors import ConfigurationError
from agentdiff.generation import Capabilities
from agentdiff.length import (
    BigCanvasCost,
    BlockCost,
    CachedCanvasCost,
    CanvasCost,
    CapCost,
    FullCanvasCost,
    cost_of,
)


def is_exactly(length):
    return lambda tokens: float(length > tokens)


@pytest.mark.parametrize(
    ("capabilities", "cost"),
    [
        (Capabilities(extends=True, quantum=16), BlockCost(16)),
        (Capabilities(extends=True), BlockCost(1)),
        (Capabilities(quantum=32), CanvasCost(32)),
        (Capabilities(quantum=256), BigCanvasCost(256)),
        (Capabilities(), CapCost()),
    ],
)
def test_the_family_of_a_backend_follows_from_what_it_does(capabilities, cost):
    assert cost_of(capabilities) == cost


def test_a_canvas_that_is_too_small_is_written_again_on_twice_the_canvas():
    assert CanvasCost(32).expected(32, is_exactly(100)) == (32 + 64 + 128, 2)


def test_a_block_that_is_too_small_is_only_extended():
    positions, calls = BlockCost(32).expected(32, is_exactly(100))
    assert positions == pytest.approx(100, rel=0.3)
    assert calls == 1


def test_a_full_canvas_pays_for_the_prompt_too_and_the_more_the_longer_it_is():
    cost = FullCanvasCost(32)
    small, large = (cost.expected(size, is_exactly(32), prompt=1000)[0] for size in (32, 320))
    assert small == 32
    assert large > 320
    alone = [cost.expected(size, is_exactly(32))[0] for size in (32, 320)]
    assert alone[1] / alone[0] > large / small


def test_a_cached_canvas_makes_idle_blocks_cheap_and_is_extended_by_half():
    cost = CachedCanvasCost(32)
    positions, calls = cost.expected(32, is_exactly(100))
    assert calls == 3  # 64, 96, 144
    assert positions > 32


def test_a_big_canvas_goes_on_with_the_next_one():
    assert BigCanvasCost().expected(256, is_exactly(600)) == (256 + 2 * 256, 2)


def test_a_hosted_call_made_again_costs_its_way_and_its_prompt_too():
    cost = CapCost(round_trip=50, prompt_price=0.1)
    assert cost.expected(32, is_exactly(60), prompt=1000) == (32 + 32 + 50 + 100, 1)


def test_each_family_knows_its_recovery():
    families = FullCanvasCost(8), CachedCanvasCost(8), BlockCost(8), BigCanvasCost(), CapCost()
    assert [cost.recovery for cost in families] == [
        "retry", "extend", "extend", "continue", "retry",
    ]  # fmt: skip


def test_a_cap_that_is_too_small_throws_away_what_was_generated():
    assert CapCost().expected(32, is_exactly(100)) == (32 + 32 + 64, 2)


@given(
    st.sampled_from([CanvasCost(8), BlockCost(8), CapCost(), BigCanvasCost(8)]),
    st.integers(1, 8192),
)
def test_a_budget_that_fits_costs_itself_and_no_further_call(cost, budget):
    assert cost.expected(budget, is_exactly(budget)) == (budget, 0)


def test_a_quantum_below_one_is_refused():
    with pytest.raises(ConfigurationError, match="`quantum` must be at least 1, got 0"):
        BlockCost(0)
