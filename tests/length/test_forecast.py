import math
import random
from dataclasses import replace
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.length import CanvasCost, LengthPredictor, StepContext
from agentdiff.length.forecast import FEATURES, MIDDLE, Trend, around, center, error_of
from agentdiff.length.histogram import BINS, EDGES, bin_of
from agentdiff.length.moment import Episode, features_of, input_key
from agentdiff.length.solving import solver, taker
from tests.length.outcomes import play

ANSWER = StepContext("helper", "answer", model="small")
features = st.lists(st.floats(-3, 3), min_size=FEATURES, max_size=FEATURES)
seen = st.lists(st.tuples(features, st.floats(-50, 50)), max_size=6)


def trained(steps):
    trend = Trend()
    for one, value in steps:
        trend.add(one, value)
    return trend


def test_a_trend_finds_a_line():
    source = random.Random(1)
    rows = [[1.0] + [source.gauss(0, 1) for _ in range(FEATURES - 1)] for _ in range(300)]
    trend = trained([(row, 4 + 3 * row[1] - 2 * row[2]) for row in rows])
    for row in rows[:20]:
        assert trend.tell(row) == pytest.approx(4 + 3 * row[1] - 2 * row[2], abs=0.3)


@given(features)
def test_a_trend_that_has_seen_nothing_expects_nothing_unusual(row):
    assert Trend().tell(row) == 0


@given(seen, seen)
def test_trends_add_up_in_any_order(one, other):
    assert trained(one) + trained(other) == trained(other) + trained(one)


@given(st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_system_is_solved(size, source):
    """What is solved, multiplied out again, is the right side."""
    root = [[source.uniform(-2, 2) for _ in range(size)] for _ in range(size)]
    matrix = [[sum(map(mul, one, other)) for other in root] for one in root]
    triangle = [matrix[row][column] for row in range(size) for column in range(row + 1)]
    right = [source.uniform(-9, 9) for _ in range(size)]
    solve = solver(size, ridge=0.5)
    units = [[float(at == one) for at in range(size)] for one in range(size)]
    solved = [solve(triangle, unit, right) for unit in units]
    for row, value in enumerate(right):
        assert sum(map(mul, matrix[row], solved)) + 0.5 * solved[row] == pytest.approx(value)


def test_what_is_taken_in_adds_to_what_is_kept():
    take = taker(2, kept=0.5)
    assert take([2.0, 4.0, 6.0], [8.0, 10.0], [1.0, 3.0], 2.0) == ([2.0, 5.0, 12.0], [6.0, 11.0])


@given(seen, features)
def test_a_trend_never_fails_to_be_solved(steps, row):
    same = [(one, value) for one, value in steps for _ in range(3)]
    assert math.isfinite(trained(same).tell(row))


@given(st.integers(0, BINS - 1), st.integers(0, BINS - 1))
def test_an_error_laid_around_its_forecast_is_the_outcome(place, forecast):
    error = error_of(place, forecast)
    assert 0 <= error < BINS
    if abs(place - forecast) < MIDDLE:
        assert around(forecast, {error: 1.0}) == {place: 1.0}


@given(st.integers(0, BINS - 1), st.dictionaries(st.integers(0, BINS - 1), st.floats(0.1, 9)))
def test_laying_errors_around_a_forecast_keeps_their_weight(forecast, mass):
    laid = around(forecast, mass)
    assert sum(laid.values()) == pytest.approx(sum(mass.values()))


def test_the_center_is_the_mean_bin():
    assert center([0.0, 1.0, 0.0, 1.0], 2.0) == 2


def test_what_an_episode_writes_counts_against_what_is_usual():
    usual = float(bin_of(100))
    typical = Episode(longest=EDGES[int(usual)])
    longer = replace(typical, longest=10 * EDGES[int(usual)])
    assert features_of(ANSWER, typical, usual=usual)[4] == pytest.approx(0)
    assert features_of(ANSWER, longer, usual=usual)[4] > 1
    assert len(features_of(ANSWER, None, usual=usual)) == FEATURES


def test_the_same_input_is_told_from_others_without_its_text():
    asked = replace(ANSWER, prompt_tokens=90, last_tokens=9)
    assert input_key(ANSWER) is None
    assert input_key(asked) == input_key(replace(asked, model="other", episode="e"))
    others = [
        replace(asked, last_tokens=8),
        replace(asked, agent="scout"),
        replace(asked, tool="t"),
    ]
    assert input_key(asked) not in {input_key(other) for other in others}


def test_an_input_that_comes_again_is_expected_to_lead_to_the_same():
    """Forty tasks of quite different lengths, again and again, as in an evaluation."""
    source = random.Random(3)
    tasks = [(replace(ANSWER, prompt_tokens=500 + 7 * n, last_tokens=60 + n % 5),
              int(40 * source.lognormvariate(0, 1))) for n in range(40)]  # fmt: skip
    known, unknown = LengthPredictor(), LengthPredictor()
    for number in range(6):
        source.shuffle(tasks)
        steps = [(task, length, False) for task, length in tasks]
        strange = [(replace(task, prompt_tokens=None), length, False) for task, length in tasks]
        asked = sum(one.target for one in play(known, steps, CanvasCost(8)))
        without = sum(one.target for one in play(unknown, strange, CanvasCost(8)))
        if number == 5:
            assert asked < 0.6 * without


def test_lengths_that_follow_an_input_are_told_where_no_bucket_has_seen_it():
    """Outputs are half as long as their input; a new magnitude of inputs is met at the end."""
    source = random.Random(5)
    predictor = LengthPredictor()
    sizes = [int(20 * 2 ** source.uniform(0, 4)) for _ in range(300)]
    play(predictor, [(replace(ANSWER, last_tokens=size), size // 2, False) for size in sizes])
    large = replace(ANSWER, last_tokens=1500)
    assert predictor.explain(large, CanvasCost(8)).median > 300
