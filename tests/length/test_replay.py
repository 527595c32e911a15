import pytest

from agentdiff.errors import ConfigurationError
from agentdiff.length import BlockCost, LengthPredictor, StepContext, replay
from agentdiff.length.histogram import bin_of
from agentdiff.length.make_prior import make_prior
from agentdiff.length.prior import shipped_prior
from agentdiff.length.replay import figures, play
from tests.length.outcomes import heavy_tailed


def row(kind, out, *, source="desk", episode=0, step=0, **facts):
    return {
        "src": source, "ep": f"e{episode}", "t": step, "agent": "helper", "kind": kind,
        "tool": None, "model": "m", "prompt": 100, "last": 20, "out": out, **facts,
    }  # fmt: skip


def test_a_replay_measures_what_was_allocated_against_what_was_needed():
    rows = [row("tool_args", 30, episode=number, min=5, max=60) for number in range(40)]
    rows.append(row("route", 2, derived=1))
    report = replay(rows, quantum=32)
    assert report["total"] == report["by_kind"]["arguments"] == report["by_source"]["desk"]
    assert report["total"]["steps"] == 40
    assert report["total"]["coverage"] == 1
    assert 1 <= report["total"]["lin"] < 2  # never above `max`, which is two blocks


def test_a_replay_holds_the_target():
    rows = [
        row("answer", out, source=source, episode=number)
        for source in ("desk", "lab")
        for number, out in enumerate(heavy_tailed(600))
    ]
    total = replay(rows, target=0.95)["total"]
    assert total["coverage"] == pytest.approx(0.95, abs=0.02)
    assert replay(rows, target=0.95)["total"] == total


class Naive(LengthPredictor):
    """Takes a cut output for one that ended there."""

    def observe(self, context, budget, used, truncated):
        super().observe(context, budget, used - 5 * truncated, truncated=False)


def test_learning_from_cut_outputs_loses_little_and_taking_them_as_they_look_a_lot():
    rows = [row("answer", out, episode=number) for number, out in enumerate(heavy_tailed(1000))]

    def coverage(**how):
        return figures(play(rows, **how))["coverage"]

    assert coverage(reports="cut") > coverage() - 0.005
    assert coverage(reports="cut", new_policy=lambda: Naive(target_miss=0.03)) < coverage() - 0.05


def test_coverage_comes_back_when_a_model_is_switched_for_one_that_writes_more():
    """From a mean of 112 tokens to one of 261, under the same name."""
    lengths = heavy_tailed(800, median=75) + heavy_tailed(800, seed=1, median=175)
    rows = [row("plan", out, step=number) for number, out in enumerate(lengths)]
    switched = play(rows)[800:]
    assert figures(switched[:300])["coverage"] >= 0.91
    assert figures(switched)["coverage"] >= 0.95


def test_a_replay_of_nothing_measures_nothing():
    assert replay([])["total"] == {"steps": 0}


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"out": None}, "row 1: `out` must be a whole number, got None"),
        ({"out": -1}, "row 1: `out` must not be negative"),
        ({"agent": 3}, "row 1: `agent` must be a text, got 3"),
        ({"kind": "thinking"}, "`kind` must be one of"),
    ],
)
def test_a_row_that_is_no_step_is_named(fact, message):
    with pytest.raises(ConfigurationError, match=message):
        replay([row("answer", 3) | fact])


def test_a_prior_is_made_for_every_kind_and_a_route_holds_calls_and_answers():
    prior = make_prior([row("tool_args", 10, min=3), row("answer", 200), row("route", 4)])
    assert all(sum(weights) == pytest.approx(1, abs=1e-3) for weights in prior.values())
    calls, answers = prior["arguments"], prior["answer"]
    peaks = {calls.index(max(calls)), answers.index(max(answers))}
    assert {place for place, weight in enumerate(prior["route"]) if weight > 0.15} == peaks


def test_the_shipped_prior_has_every_kind_and_bin():
    prior = make_prior([])
    shipped = {kind: shipped_prior()[kind] for kind in prior}
    assert {kind: len(weights) for kind, weights in shipped.items()} == {
        kind: len(weights) for kind, weights in prior.items()
    }


def test_an_own_model_starts_from_its_own_prior():
    model = "agentdiff-router:2048"
    prior = make_prior([row("route", 20) | {"model": model}, row("answer", 700)])
    assert max(prior[f"route of {model}"]) == prior[f"route of {model}"][bin_of(21)]
    assert prior["route"][bin_of(21)] < 0.01
    predictor, cost = LengthPredictor(), BlockCost(16)
    own, other = (
        predictor.predict(StepContext("a", "route", None, name, schema_min=4), cost)
        for name in (model, "another")
    )
    assert own.target <= 64 < other.target
    assert own.ceiling >= 256
