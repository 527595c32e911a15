import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.errors import ConfigurationError, StoreError
from agentdiff.generation import Budget
from agentdiff.length import (
    BlockCost,
    CanvasCost,
    CapCost,
    LengthPredictor,
    StepContext,
)
from agentdiff.length.control import Squeeze
from tests.length.outcomes import contexts, costs, heavy_tailed, outcomes, play, probe

NOTE = StepContext("helper", "arguments", "add_note", "small", schema_min=4)
ANSWER = StepContext("helper", "answer")
REST = (
    '{"rest": {"votes": {}, "control": {"log_price": 6, "seen": 0, "missed": 0}, "own": {},'
    ' "squeezes": {}, "episodes": {}}, '
)
NODE = (
    '"nodes": {"[1]": {"seen": 1, "cut": 0, "floor": 0, "newest": 3, "unit": 1, "total": 1,'
    ' "mass": {"BIN": 0.5}}}}'
)


def up(tokens, quantum):
    return -(-tokens // quantum) * quantum


@given(outcomes, contexts, costs, st.none() | st.integers(0, 300))
@settings(max_examples=25)
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
@settings(max_examples=25)
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
@settings(max_examples=25)
def test_the_same_history_gives_the_same_budgets(history):
    assert play(LengthPredictor(), history) == play(LengthPredictor(), history)


@given(outcomes)
@settings(max_examples=25)
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


def late_misses(predictor, *, tell):
    """The share of misses where the predictor hears only what `tell` says of them."""
    missed = 0
    for step, length in enumerate(heavy_tailed(2000)):
        budget = predictor.predict(ANSWER, CanvasCost(32))
        cut = length > budget.target
        predictor.observe(
            ANSWER, budget, used=min(length, budget.target), truncated=cut and tell == "cut"
        )
        missed += cut and step >= 500
    return missed / 1500


def test_learning_from_cut_outputs_keeps_the_wanted_rate():
    assert late_misses(LengthPredictor(target_miss=0.03), tell="cut") < 0.035


def test_outputs_that_are_squeezed_into_their_budget_are_noticed(monkeypatch):
    """A model that sees the whole canvas writes less instead of being cut, and nothing says so."""
    assert late_misses(LengthPredictor(target_miss=0.03), tell="nothing") < 0.12
    monkeypatch.setattr(Squeeze, "is_suspected", False)
    assert late_misses(LengthPredictor(target_miss=0.03), tell="nothing") > 0.2


@pytest.mark.parametrize("cost", [CapCost(), CanvasCost(8)])
@pytest.mark.parametrize("length", [12, 63, 500])
def test_a_length_that_stays_where_it_was_with_more_room_is_no_squeeze(cost, length):
    predictor = LengthPredictor()
    play(predictor, [(NOTE, length, False)] * 400, cost)
    assert up(length, cost.quantum) <= predictor.predict(NOTE, cost).target <= 1.08 * length + 8
    assert not any(node.cut for node in predictor._learned.nodes.values())


def test_where_lengths_are_known_only_from_below_a_little_more_is_tried_now_and_then():
    predictor = LengthPredictor()
    play(predictor, [(ANSWER, 40, True)])
    budgets = play(predictor, [(ANSWER, 40, False)] * 60)
    targets = [budget.target for budget in budgets]
    tried = [number for number in range(20, 60) if targets[number] > targets[number - 1]]
    assert tried == [48]


def test_what_an_input_says_about_the_output_is_learned():
    """Long answers follow long inputs; half of the steps have one."""
    steps = [(replace(ANSWER, last_tokens=size), size, False) for size in (20, 900)] * 100
    predictor = LengthPredictor()
    play(predictor, steps)
    short, long = (predictor.explain(context, BlockCost(8)).median for context, _, _ in steps[:2])
    assert short < 30
    assert long > 800


def test_what_an_episode_has_written_says_how_it_goes_on():
    predictor = LengthPredictor()
    for number in range(100):
        size = (20, 500)[number % 2]
        play(predictor, [(replace(ANSWER, episode=f"e{number}"), size, False)] * 3)
    play(predictor, [(replace(ANSWER, episode="short"), 20, False)])
    play(predictor, [(replace(ANSWER, episode="long"), 500, False)])
    short, long = (replace(ANSWER, episode=name) for name in ("short", "long"))
    assert predictor.explain(short, BlockCost(8)).median < 30
    assert predictor.explain(long, BlockCost(8)).median > 400


@given(outcomes, contexts, costs, st.integers(1, 9000))
@settings(max_examples=25)
def test_recovery_gives_more_within_the_limits(history, context, cost, used):
    predictor = LengthPredictor(ceiling=2048)
    play(predictor, history, cost)
    budget = predictor.predict(context, cost)
    after = predictor.recover(context, cost, budget, min(used, budget.ceiling))
    assert after.target >= budget.target
    assert after.target > budget.target or budget.target >= 2048 - cost.quantum
    assert after.target % cost.quantum == 0
    assert after.source.startswith(f"{cost.recovery} after ")


def test_a_retry_is_at_least_twice_and_an_extension_goes_only_as_far_as_it_pays():
    predictor = LengthPredictor()
    play(predictor, [(ANSWER, length, False) for length in heavy_tailed(300)])
    budget = predictor.predict(ANSWER, CanvasCost(32))
    retried = predictor.recover(ANSWER, CanvasCost(32), budget, budget.target)
    extended = predictor.recover(ANSWER, BlockCost(32), budget, budget.target)
    assert retried.target >= 2 * budget.target
    assert budget.target < extended.target


def test_an_explanation_shows_the_way_to_a_budget():
    predictor = LengthPredictor()
    play(predictor, [(NOTE, 20, False)] * 30)
    why = predictor.explain(NOTE, CanvasCost(8))
    assert why.budget == predictor.predict(NOTE, CanvasCost(8))
    assert 20 <= why.median <= why.p97 <= 30
    assert why.miss < 0.1
    assert why.price > 1
    assert why.levels[-1] == ("model", 30)
    assert sum(weight for _, weight in why.experts) == pytest.approx(1)
    assert predictor.keys() == {("arguments", "helper", "add_note", "small"): 30}


def test_two_halves_merged_are_close_to_the_whole(tmp_path):
    lengths = [(ANSWER, length, False) for length in heavy_tailed(600)]
    whole, one, other = LengthPredictor(), LengthPredictor(), LengthPredictor()
    play(whole, lengths)
    play(one, lengths[:300])
    play(other, lengths[300:])
    other.save(tmp_path / "other.json")
    one.merge(tmp_path / "other.json")
    assert one.keys() == whole.keys()
    merged, alone = one.explain(ANSWER, CanvasCost(8)), whole.explain(ANSWER, CanvasCost(8))
    assert merged.median == pytest.approx(alone.median, rel=0.1)
    assert merged.p97 == pytest.approx(alone.p97, rel=0.15)


def test_a_new_model_starts_from_another_in_its_own_tokens():
    predictor = LengthPredictor()
    steps = [(replace(ANSWER, model="small"), 100, False)] * 40
    play(predictor, steps + [(replace(ANSWER, model="other"), 1000, False)] * 40)
    new = replace(ANSWER, model="new")
    assert predictor.explain(new, BlockCost(8)).median > 150
    assert predictor.adopt("new", of="small", factor=1.5) == 1
    assert predictor.explain(new, BlockCost(8)).median == pytest.approx(150, rel=0.15)
    assert predictor.adopt("new", of="small") == 0


@given(outcomes)
@settings(max_examples=25)
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
    play(predictor, [(replace(NOTE, episode="Ms Miller's note"), 20, False)])
    predictor.save(tmp_path / "lengths.json")
    saved = json.loads((tmp_path / "lengths.json").read_text())
    assert set(saved["nodes"]) == {
        '["arguments"]',
        '["arguments", 3]',
        '["arguments", 3, "helper"]',
        '["arguments", "helper", "add_note"]',
        '["arguments", "helper", "add_note", "small"]',
    }
    assert "Miller" not in json.dumps(saved)
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.json"]


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", '{"format": "agentdiff-lengths-9", "rest": {}, "nodes": {}}',
     REST + '"nodes": {"[1]": {"seen": 1, "mass": {"5": 1.0}}}}',
     REST + NODE.replace("BIN", "500"), REST + NODE.replace("BIN", "5").replace("[1]", "[]"),
     REST + NODE.replace("BIN", "5").replace("0.5}", "-0.5}")],
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
