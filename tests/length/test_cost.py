import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.errors import ConfigurationError
from agentdiff.generation import Capabilities
from agentdiff.length import BlockCost, CanvasCost, CapCost, cost_of


def is_exactly(length):
    return lambda tokens: float(length > tokens)


@pytest.mark.parametrize(
    ("capabilities", "cost"),
    [
        (Capabilities(extends=True, quantum=16), BlockCost(16)),
        (Capabilities(extends=True), BlockCost(1)),
        (Capabilities(quantum=32), CanvasCost(32)),
        (Capabilities(), CapCost()),
    ],
)
def test_the_family_of_a_backend_follows_from_what_it_does(capabilities, cost):
    assert cost_of(capabilities) == cost


def test_a_canvas_that_is_too_small_is_written_again_on_twice_the_canvas():
    assert CanvasCost(32).expected(32, is_exactly(100)) == (32 + 64 + 128, 2)


def test_a_block_that_is_too_small_is_only_extended():
    assert BlockCost(32).expected(32, is_exactly(100)) == (32, 1)


def test_a_cap_that_is_too_small_throws_away_what_was_generated():
    assert CapCost().expected(32, is_exactly(100)) == (32 + 32 + 64, 2)


@given(st.sampled_from([CanvasCost(8), BlockCost(8), CapCost()]), st.integers(1, 8192))
def test_a_budget_that_fits_costs_itself_and_no_further_call(cost, budget):
    assert cost.expected(budget, is_exactly(budget)) == (budget, 0)


def test_a_quantum_below_one_is_refused():
    with pytest.raises(ConfigurationError, match="`quantum` must be at least 1, got 0"):
        BlockCost(0)
