import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.length import CanvasCost, LengthPredictor, StepContext
from agentdiff.length.histogram import Node
from agentdiff.length.learned import Learned
from agentdiff.length.learning import INPUTS, Outcome, learn
from agentdiff.length.prior import shipped_prior
from agentdiff.length.saved import from_json, merge, to_json
from tests.length.outcomes import heavy_tailed, outcomes, play

ANSWER = StepContext("helper", "answer")


def learned(history):
    """What a history of (context, used, truncated) teaches."""
    state = Learned(shipped_prior())
    for context, used, truncated in history:
        outcome = Outcome(context=context, target=64, used=used, truncated=truncated)
        learn(state, outcome, target_miss=0.03)
    return state


def merged(*states):
    """One state of several, which stay as they are."""
    whole = Learned(shipped_prior())
    for state in states:
        merge(whole, from_json(to_json(state), where="a state", prior=shipped_prior()))
    return whole


def weights(node):
    return {place: weight / node.unit for place, weight in node.mass.items()}


@given(outcomes, outcomes)
@settings(max_examples=15)
def test_histograms_merge_into_the_sum_of_their_weights(one, other):
    first, second = learned(one), learned(other)
    both = merged(first, second).nodes
    assert both.keys() == first.nodes.keys() | second.nodes.keys()
    for key, node in both.items():
        parts = [state.nodes.get(key, Node()) for state in (first, second)]
        assert node.seen == sum(part.seen for part in parts)
        assert node.cut == sum(part.cut for part in parts)
        share = node.weight / sum(part.weight for part in parts)
        found = weights(node)
        for place in found:
            expected = share * sum(weights(part).get(place, 0.0) for part in parts)
            assert found.get(place, 0.0) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 400), st.integers(1, 400))
@settings(max_examples=15)
def test_a_merged_node_weighs_as_much_as_one_that_saw_everything(one, other):
    """Else what two have seen would outweigh for long whatever comes next."""
    nodes = [Node(), Node(), Node()]
    for node, count in zip(nodes, (one, other, one + other), strict=True):
        for _ in range(count):
            node.add(5, had_room=True)
    states = [learned([]) for _ in nodes]
    for state, node in zip(states, nodes, strict=True):
        state.nodes["answer",] = node
    both = merged(*states[:2]).nodes["answer",]
    assert both.weight == pytest.approx(nodes[2].weight)


@given(outcomes, outcomes)
@settings(max_examples=15)
def test_it_makes_no_difference_which_of_two_is_added_to_which(one, other):
    first, second = learned(one), learned(other)
    there, back = merged(first, second), merged(second, first)
    assert {key: weights(node) for key, node in there.nodes.items()} == {
        key: weights(node) for key, node in back.nodes.items()
    }
    for name in ("votes", "control", "own", "squeezes", "trends", "recalled"):
        assert getattr(there, name) == getattr(back, name)


@given(outcomes)
@settings(max_examples=15)
def test_merging_into_nothing_changes_nothing(history):
    state = learned(history)
    alone = merged(state)
    for name in ("nodes", "votes", "own", "squeezes", "trends", "recalled"):
        assert getattr(alone, name) == getattr(state, name)
    for context, _, _ in history:
        assert alone.view(context).blend == pytest.approx(merged(alone).view(context).blend)


@given(st.lists(st.integers(1, 8000), min_size=1, max_size=40), st.integers(1, 39))
@settings(max_examples=15)
def test_heavy_tails_lose_nothing_when_they_are_merged(lengths, at):
    """However a history is cut in two, every length is counted in the sum."""
    parts = [lengths[:at], lengths[at:]]
    states = [learned([(ANSWER, length, False) for length in part]) for part in parts]
    node = merged(*states).nodes["answer", "helper", None, ""]
    assert node.seen == len(lengths)
    assert node.weight == pytest.approx(sum(weights(node).values()))


def test_two_heavy_tailed_halves_allocate_as_one_that_saw_everything(tmp_path):
    """On average over four runs: the price of a miss alone makes single ones differ by some percent."""
    ratios = []
    for seed in range(4):
        lengths = [(ANSWER, length, False) for length in heavy_tailed(800, seed=seed)]
        whole, one, other = LengthPredictor(), LengthPredictor(), LengthPredictor()
        play(whole, lengths)
        play(one, lengths[::2])
        play(other, lengths[1::2])
        other.save(tmp_path / "other.json")
        one.merge(tmp_path / "other.json")
        later = [(ANSWER, length, False) for length in heavy_tailed(400, seed=100 + seed)]
        first, second = (
            sum(budget.target for budget in play(predictor, later, CanvasCost(32)))
            for predictor in (one, whole)
        )
        ratios.append(first / second)
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.02)


def test_of_two_outcomes_of_one_input_the_longer_is_recalled_and_not_too_many():
    asked = StepContext("helper", "answer", prompt_tokens=90, last_tokens=9)
    short, long = learned([(asked, 20, False)]), learned([(asked, 60, False)])
    assert merged(short, long).recalled == merged(long, short).recalled == long.recalled
    many = learned([])
    many.recalled = {f"{number}": 1 for number in range(INPUTS)}
    kept = merged(many, short).recalled
    assert len(kept) == INPUTS
    assert short.recalled.items() <= kept.items()
