"""How an outcome changes what has been learned.

    outcome -> the nodes, the experts' weights, the price of a miss

A plain state machine: the same outcomes in the same order give the same state, which is how
processes that share a store agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

from agentdiff.generation import StepKind
from agentdiff.length.context import Key, StepContext
from agentdiff.length.control import OWN_RANGE, OWN_STEP, PRICE_RANGE, STEP, Control, Squeeze
from agentdiff.length.forecast import Trend, error_of, errors_of
from agentdiff.length.histogram import Node, Share, beyond, bin_of, near, past
from agentdiff.length.learned import BASE, Learned, View, trend_key
from agentdiff.length.moment import Episode, step_name

T = TypeVar("T")

VOTE = 0.5
"""How much one outcome counts between the experts."""
REVIVAL = 0.003
"""The share of the weights that is dealt out anew after each outcome, so that none dies out."""
EPISODES = 128
"""Episodes that are remembered; the one that has rested longest goes first."""
INPUTS = 2048
"""Inputs of which the newest outcome is remembered."""
SQUEEZE_MARGIN = 2
"""An output that ends so few tokens before its target may have been squeezed into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a step."""

    context: StepContext
    target: int
    """Of the first attempt's budget."""
    used: int
    truncated: bool

    @property
    def missed(self) -> bool:
        """Whether the first attempt's target was not enough."""
        return self.truncated or self.used > self.target

    @property
    def had_room(self) -> bool:
        """Whether it ended well before its target, so that its length is its own."""
        return not self.truncated and self.used < self.target - SQUEEZE_MARGIN


def learn(
    learned: Learned, outcome: Outcome, *, target_miss: float, view: View | None = None
) -> None:
    """Take in an outcome.

    Args:
        learned: Changed in place.
        outcome: What came of a step.
        target_miss: The wanted share of misses.
        view: Saves time where it is what `learned.view` returns now.
    """
    context = outcome.context
    view = view or learned.view(context)
    squeezed = _notice_squeeze(learned, outcome, view)
    is_cut = outcome.truncated or squeezed
    written = max(outcome.used, outcome.target) if is_cut else outcome.used
    excess = max(0, written - context.schema_min)
    _vote(learned, context.kind, view, excess, is_cut=is_cut)
    place, had_room = bin_of(excess), outcome.had_room
    share = beyond(excess, view.blend) if is_cut else None
    for key in view.path:
        _count(learned, key, place, share, had_room=had_room)
    for name, (key, _, _, _, forecast) in view.experts.items():
        if forecast is not None:
            off = None if share is None else errors_of(share, forecast)
            _count(learned, key, error_of(place, forecast), off, had_room=had_room)
        elif name != BASE:
            _count(learned, key, place, share, had_room=had_room)
    learned.nodes[view.path[-1]].floor = written if is_cut else 0
    expected = place if share is None else sum(at * weight for at, weight in share)
    told = trend_key(context)
    trend = learned.trends.get(told)
    if trend is None:
        trend = learned.trends[told] = Trend()
    trend.add(view.features, expected - view.usual)
    _steer(learned, context.kind, missed=outcome.missed or squeezed, target_miss=target_miss)
    _remember(learned, outcome, place, view)


def _count(learned: Learned, key: Key, place: int, share: Share | None, *, had_room: bool) -> None:
    """Take in an output at a node: its bin, or a distribution of it where it was cut."""
    node = learned.nodes.get(key)
    if node is None:
        node = learned.nodes[key] = Node()
    if share is None:
        node.add(place, had_room=had_room)
    else:
        node.add_share(share)
        node.cut += 1
    learned.touched.add(key)


def _vote(learned: Learned, kind: StepKind, view: View, excess: int, *, is_cut: bool) -> None:
    """Give weight to the experts that had expected it, as in a Bayesian mixture.

    With a fixed share dealt out anew (Herbster and Warmuth 1998), so that the best expert may
    change.
    """
    if len(view.experts) == 1:
        return
    places = past(excess) if is_cut else near(excess)
    of_base = sum(view.base[places.start : places.stop]) / view.whole
    votes: list[float] = []
    for weight, (_, kept, scale, mass, _) in zip(view.weights, view.experts.values(), strict=True):
        likely = kept * of_base + scale * sum(map(mass.get, places, repeat(0.0)))
        votes.append(weight * max(1e-9, likely) ** VOTE)
    whole = sum(votes)
    known = learned.votes.setdefault(kind, {})
    # Those that had nothing to see keep their weight.
    room = 1 - sum(vote for name, vote in known.items() if name not in view.experts)
    for name, vote in zip(view.experts, votes, strict=True):
        revived = (1 - REVIVAL) * vote / whole + REVIVAL / len(votes)
        known[name] = max(0.01, room) * revived


def _notice_squeeze(learned: Learned, outcome: Outcome, view: View) -> bool:
    """Whether an output that was not cut seems to have been squeezed into its target."""
    if outcome.missed:
        return False
    context, used, target = outcome.context, outcome.used, outcome.target
    if not outcome.had_room:
        leaf = learned.nodes.get(view.path[-1])
        if leaf is not None and leaf.newest == bin_of(max(0, used - context.schema_min)):
            return False  # It was as long when it had room.
    squeeze = learned.squeezes.get(context.model)
    if squeeze is None:
        squeeze = learned.squeezes[context.model] = Squeeze()
    around = max(SQUEEZE_MARGIN, target // 10)
    tail = view.lengths.tail
    mass = tail(target - around - 1) - tail(target + around)
    chance = mass * (SQUEEZE_MARGIN + 1) / (2 * around + 1)
    squeeze.add(ended_near=not outcome.had_room, chance=chance)
    return not outcome.had_room and squeeze.is_suspected


def _steer(learned: Learned, kind: StepKind, *, missed: bool, target_miss: float) -> None:
    own = learned.own.get(kind)
    if own is None:
        own = learned.own[kind] = Control(log_price=0.0)
    learned.control.add(missed=missed, target=target_miss, step=STEP, within=PRICE_RANGE)
    own.add(missed=missed, target=target_miss, step=OWN_STEP, within=OWN_RANGE)


def _remember(learned: Learned, outcome: Outcome, place: int, view: View) -> None:
    context = outcome.context
    if view.same is not None:
        _keep_newest(learned.recalled, view.same, place, most=INPUTS)
    if view.episode is None:
        return
    episode = learned.episodes.get(view.episode) or Episode()
    episode.longest = max(episode.longest, outcome.used)
    episode.tool = context.tool or context.kind
    episode.by_step[step_name(context)] = outcome.used
    _keep_newest(learned.episodes, view.episode, episode, most=EPISODES)


def _keep_newest(kept: dict[str, T], name: str, value: T, *, most: int) -> None:
    """Put the newest last, and let the oldest go where there are too many."""
    kept.pop(name, None)
    kept[name] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
