import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.errors import ConfigurationError, StoreError
from agentdiff.generation import Budget
from agentdiff.length import BlockCost, CanvasCost, CapCost, LengthPredictor, StepContext
from tests.length.outcomes import contexts, costs, heavy_tailed, outcomes, play, probe

NOTE = StepContext("helper", "arguments", "add_note", "small", schema_min=4)
ANSWER = StepContext("helper", "answer")


def up(tokens, quantum):
    return -(-tokens // quantum) * quantum


@given(outcomes, contexts, costs, st.none() | st.integers(0, 300))
def test_a_budget_is_a_multiple_of_the_quantum_within_the_schema(history, context, cost, slack):
    predictor = LengthPredictor(ceiling=2048)
    play(predictor, history, cost)
    longest = None if slack is None else max(1, context.schema_min + slack)
    budget = predictor.predict(replace(context, schema_max=longest), cost)
    assert context.schema_min <= budget.target <= budget.ceiling
    assert budget.target % cost.quantum == budget.ceiling % cost.quantum == 0
    assert budget.ceiling <= (2048 if longest is None else up(longest, cost.quantum))


def test_a_minimum_above_the_ceiling_is_honoured():
    budget = LengthPredictor(ceiling=100).predict(
        StepContext("helper", "arguments", schema_min=500), BlockCost(32)
    )
    assert (budget.target, budget.ceiling) == (512, 512)


@given(outcomes, contexts, costs, st.integers(1, 6))
def test_truncations_never_lower_the_next_budget(history, context, cost, count):
    predictor = LengthPredictor()
    play(predictor, history, cost)
    budgets = [predictor.predict(context, cost)]
    for _ in range(count):
        predictor.observe(context, budgets[-1], used=budgets[-1].target, truncated=True)
        budgets.append(predictor.predict(context, cost))
    targets = [budget.target for budget in budgets]
    assert targets == sorted(targets)


@given(outcomes)
def test_the_same_history_gives_the_same_budgets(history):
    assert play(LengthPredictor(), history) == play(LengthPredictor(), history)


@given(outcomes)
def test_predicting_teaches_nothing(history):
    predictor = LengthPredictor()
    play(predictor, history)
    assert probe(predictor, history) == probe(predictor, history)


@pytest.mark.parametrize("cost", [BlockCost(8), CanvasCost(8), CapCost()])
def test_a_step_that_always_takes_the_same_length_soon_gets_a_tight_budget(cost):
    predictor = LengthPredictor()
    for budget in play(predictor, [(NOTE, 21, False)] * 60, cost):
        assert budget.target >= 21
    assert predictor.predict(NOTE, cost).target <= 24


def test_a_source_says_where_a_budget_came_from():
    predictor = LengthPredictor()
    assert predictor.predict(NOTE, CapCost()).source == "prior:arguments"
    play(predictor, [(NOTE, 20, False)] * 3)
    assert predictor.predict(NOTE, CapCost()).source == "history:arguments/add_note (n=3)"
    timer = replace(NOTE, tool="set_timer")
    assert predictor.predict(timer, CapCost()).source == "history:arguments/helper (n=3)"
    stranger = replace(NOTE, agent="scout")
    assert predictor.predict(stranger, CapCost()).source == "history:arguments (n=3)"


def test_a_tool_never_seen_starts_from_what_its_agents_tools_do_beyond_their_minimum():
    predictor = LengthPredictor()
    timer = StepContext("helper", "arguments", "set_timer", "small", schema_min=100)
    untaught = predictor.predict(timer, BlockCost(8)).target
    play(predictor, [(NOTE, 8, False)] * 60)
    assert 100 < predictor.predict(timer, BlockCost(8)).target < untaught


@pytest.mark.parametrize("target_miss", [0.03, 0.1])
def test_misses_come_at_the_wanted_rate_in_the_long_run(target_miss):
    predictor = LengthPredictor(target_miss=target_miss)
    lengths = heavy_tailed(2000)
    budgets = play(predictor, [(ANSWER, length, False) for length in lengths])
    late = list(zip(budgets, lengths, strict=True))[500:]
    missed = sum(length > budget.target for budget, length in late) / len(late)
    assert missed == pytest.approx(target_miss, abs=0.015)


def test_a_cut_output_is_learned_as_longer_than_it_looks():
    """Learned as it looks, each cut teaches the predictor to cut again, and 80 are not enough."""
    predictor = LengthPredictor()
    play(predictor, [(NOTE, 20, False)] * 60)
    cuts = 0
    while (budget := predictor.predict(NOTE, CapCost())).target < 400 and cuts < 80:
        predictor.observe(NOTE, budget, used=budget.target, truncated=True)
        cuts += 1
    assert cuts < 20


def test_learning_from_cut_outputs_keeps_the_wanted_rate():
    predictor = LengthPredictor(target_miss=0.05)
    missed = 0
    for step, length in enumerate(heavy_tailed(2000)):
        budget = predictor.predict(ANSWER, CanvasCost(32))
        cut = length > budget.target
        used = min(length, budget.target)
        predictor.observe(ANSWER, budget, used=used, truncated=cut)
        missed += cut and step >= 500
    assert missed / 1500 < 0.065


@given(outcomes)
def test_saving_and_loading_gives_identical_budgets(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("saved") / "lengths.json"
    first, second = LengthPredictor(), LengthPredictor()
    play(first, history)
    first.save(path)
    second.load(path)
    assert probe(second, history) == probe(first, history)
    assert play(second, history) == play(first, history)


def test_what_is_saved_are_counts_and_names(tmp_path):
    predictor = LengthPredictor()
    play(predictor, [(NOTE, 20, False)])
    predictor.save(tmp_path / "lengths.json")
    saved = json.loads((tmp_path / "lengths.json").read_text())
    assert list(saved["nodes"]) == sorted(
        json.dumps(["arguments", "helper", "add_note", "small"][:depth]) for depth in (1, 2, 3, 4)
    )
    assert {tuple(node) for node in saved["nodes"].values()} == {("seen", "floor", "mass")}
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.json"]


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", '{"format": "agentdiff-lengths-9", "controls": {}, "nodes": {}}',
     '{"controls": {}, "nodes": {"[]": {"seen": 1, "floor": 0, "mass": {"500": 1.0}}}}',
     '{"controls": {}, "nodes": {"[]": {"seen": 1, "floor": 0, "mass": {"5": -1.0}}}}'],
)  # fmt: skip
def test_a_file_that_is_not_ours_is_refused_and_changes_nothing(tmp_path, text):
    predictor = LengthPredictor()
    play(predictor, [(NOTE, 20, False)])
    before = predictor.predict(NOTE, CapCost())
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"lengths\.json' does not hold learned lengths"):
        predictor.load(path)
    assert predictor.predict(NOTE, CapCost()) == before


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"cannot be read from .*No such file"):
        LengthPredictor().load(tmp_path / "absent.json")
    with pytest.raises(StoreError, match=r"cannot be written to .*No such file"):
        LengthPredictor().save(tmp_path / "absent" / "lengths.json")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthPredictor(target_miss=0), "`target_miss` must be in"),
        (lambda: LengthPredictor(ceiling=0), "`ceiling` must be in"),
        (lambda: replace(NOTE, kind="thinking"), "`kind` must be one of plan, route"),
        (lambda: StepContext("a", "plan", schema_min=-1), "`schema_min` must not be negative"),
        (lambda: StepContext("a", "plan", last_tokens=-1), "`last_tokens` must not be negative"),
        (lambda: StepContext("a", "plan", schema_min=9, schema_max=8), "not below `schema_min`"),
        (
            lambda: LengthPredictor().observe(NOTE, Budget(target=1, ceiling=1), -1, False),
            "`used` must not be negative, got -1",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
