"""All that has been learned about lengths, and how an outcome changes it.

    context -> path of nodes, general to special -> the distribution there
            -> what else is known of the moment (newest input, episode so far) -> experts -> a blend
               some count what happened in such moments, some forecast one length and count errors
    outcome -> the nodes, the experts' weights, the price of a miss

A plain state machine over counts and names: the same outcomes in the same order give the same
state, which is how processes that share a store agree. Knows no cost model, no file and no lock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, TypeVar

from agentdiff.generation import StepKind
from agentdiff.length.context import Key, StepContext
from agentdiff.length.control import (
    OWN_RANGE,
    OWN_STEP,
    PRICE_RANGE,
    START_PRICE,
    STEP,
    Control,
    Squeeze,
)
from agentdiff.length.forecast import (
    Trend,
    around,
    center,
    error_of,
    errors_of,
)
from agentdiff.length.histogram import (
    BINS,
    Distribution,
    Leaning,
    Node,
    Share,
    Tail,
    added,
    beyond,
    bin_of,
    leaning,
    longest_first,
    near,
    past,
    shrunk,
    tail_of,
)
from agentdiff.length.moment import (
    Episode,
    buckets_of,
    episode_key,
    features_of,
    input_key,
    step_name,
)
from agentdiff.length.prior import Prior, of_model

T = TypeVar("T")

WORTH = (15.0, 15.0, 4.0, 2.0, 2.0)
"""Observations that the level above is worth: kind, size, agent, tool, model."""
EXPERT_WORTH = 4.0
VOTE = 0.5
"""How much one outcome counts between the experts."""
REVIVAL = 0.003
"""The share of the weights that is dealt out anew after each outcome, so that none dies out."""
UNHEARD = 1e-4
"""A weight that changes no budget."""
BASE = "history"
"""The expert that looks at nothing but the path."""

CAUTION, CAUTIOUS_FOR = 2.0, 60.0
"""How much dearer (as a logarithm) a miss is at first, and for about how many outcomes."""
STRANGE = 0.3
"""How much dearer it is for a tool or an agent that has no history of its own."""

EPISODES = 128
"""Episodes that are remembered; the one that has rested longest goes first."""
INPUTS = 2048
"""Inputs of which the newest outcome is remembered."""
SQUEEZE_MARGIN = 2
"""An output that ends so few tokens before its target may have been squeezed into it."""
_AS_ABOVE = Leaning(1.0, 0.0, {})


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


class Expert(NamedTuple):
    """One opinion about a context."""

    key: Key
    """Of its node."""
    leaning: Leaning
    """How it leans on what the path alone says."""
    forecast: int | None = None
    """The bin that it expects; then its node counts how far off such forecasts were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is known of a context."""

    path: tuple[Key, ...]
    """Keys of its nodes: kind, size, agent, tool, model."""
    base: Distribution
    """The excess over the schema's minimum, by the path alone."""
    blend: Distribution
    """The same, with what the experts say."""
    sums: Sequence[float]
    """The `longest_first` of `blend`."""
    tail: Tail
    """Of whole lengths, by `blend`."""
    experts: Mapping[str, Expert]
    """By name; `BASE` first."""
    weights: Sequence[float]
    """Of the experts, summing to 1."""
    features: Sequence[float]
    """What the trend looks at."""
    episode: str | None
    """The `episode_key` of its episode."""
    same: str | None
    """Its `input_key`."""
    usual: float
    """The mean bin of `base`; a trend tells the distance from it."""


@dataclass(slots=True)
class Learned:
    """Nodes of the length hierarchy, experts, prices and the episodes that are going on."""

    prior: Prior
    nodes: dict[Key, Node] = field(default_factory=dict[Key, Node])
    votes: dict[StepKind, dict[str, float]] = field(
        default_factory=dict[StepKind, dict[str, float]]
    )
    """Weights of the experts of each kind."""
    control: Control = field(default_factory=lambda: Control(log_price=math.log(START_PRICE)))
    """Of all kinds together: a miss is worth the same wherever it happens."""
    own: dict[StepKind, Control] = field(default_factory=dict[StepKind, Control])
    """What each kind adds, so that in the long run each has the wanted rate."""
    squeezes: dict[str, Squeeze] = field(default_factory=dict[str, Squeeze])
    """By model."""
    episodes: dict[str, Episode] = field(default_factory=dict[str, Episode])
    """The newest ones, oldest first, by a hash of their name."""
    trends: dict[Key, Trend] = field(default_factory=dict[Key, Trend])
    """By kind and agent."""
    recalled: dict[str, int] = field(default_factory=dict[str, int])
    """The bin of the newest outcome of each of the newest inputs, oldest first, by `input_key`."""
    touched: set[Key] = field(default_factory=set[Key])
    """Nodes that have changed since whoever keeps this cleared it."""

    def view(self, context: StepContext) -> View:
        """What is known of a context. Changes nothing."""
        path = path_of(context)
        find = self.nodes.get
        own = self.prior.get(of_model(context.kind, context.model.partition("@")[0]))
        base = shrunk(
            own or self.prior[context.kind],
            [
                (node, worth)
                for key, worth in zip(path, WORTH, strict=True)
                if (node := find(key)) is not None
            ],
        )
        usual = center(base)
        name = episode_key(context.episode) if context.episode else None
        same = input_key(context)
        episode = self.episodes.get(name) if name else None
        features = features_of(context, episode, usual=usual)
        experts = {BASE: Expert(path[-1], _AS_ABOVE)}
        for what, moment in buckets_of(context, episode).items():
            key = (*path[-1], what, *moment)
            experts[what] = Expert(key, self._leaning(key))
        told = _trend_key(context)
        trend = self.trends.get(told)
        if trend is not None:
            expected = min(BINS - 1, max(0, round(usual + trend.tell(features))))
            experts["trend"] = self._forecast(told, expected)
        if same is not None and (newest := self.recalled.get(same)) is not None:
            experts["same"] = self._forecast(("same", context.kind), newest)
        votes = self.votes.get(context.kind, {})
        # An expert that never had a say starts with an equal one.
        present = [votes.get(one, 1 / len(experts)) for one in experts]
        whole = sum(present)
        weights = [vote / whole for vote in present]
        blend = _blend(base, experts, weights)
        sums = longest_first(blend)
        return View(
            path=path,
            base=base,
            blend=blend,
            sums=sums,
            tail=tail_of(sums, offset=context.schema_min),
            experts=experts,
            weights=weights,
            features=features,
            episode=name,
            same=same,
            usual=usual,
        )

    def log_price(self, context: StepContext, view: View) -> float:
        """Logarithm of the positions that a call beyond the first is worth."""
        own = self.own.get(context.kind)
        caution = CAUTION * math.exp(-(own.seen if own else 0) / CAUTIOUS_FOR)
        strange = STRANGE if view.path[3] not in self.nodes else 0.0
        price = self.control.log_price + (own.log_price if own else 0.0) + caution + strange
        return min(PRICE_RANGE[1], max(PRICE_RANGE[0], price))

    def learn(self, outcome: Outcome, *, target_miss: float, view: View | None = None) -> None:
        """Take in an outcome. `view` saves time where it is what `view` returns now."""
        context = outcome.context
        view = view or self.view(context)
        squeezed = self._notice_squeeze(outcome, view)
        is_cut = outcome.truncated or squeezed
        written = max(outcome.used, outcome.target) if is_cut else outcome.used
        excess = max(0, written - context.schema_min)
        self._vote(context.kind, view, excess, is_cut=is_cut)
        place = bin_of(excess)
        share = list(beyond(excess, view.blend)) if is_cut else None
        for key in view.path:
            self._count(key, place, share)
        for name, (key, _, forecast) in view.experts.items():
            if forecast is not None:
                off = None if share is None else errors_of(share, forecast)
                self._count(key, error_of(place, forecast), off)
            elif name != BASE:
                self._count(key, place, share)
        self.nodes[view.path[-1]].floor = written if is_cut else 0
        expected = place if share is None else sum(at * weight for at, weight in share)
        told = _trend_key(context)
        trend = self.trends.get(told)
        if trend is None:
            trend = self.trends[told] = Trend()
        trend.add(view.features, expected - view.usual)
        missed = outcome.missed or squeezed
        own = self.own.get(context.kind)
        if own is None:
            own = self.own[context.kind] = Control(log_price=0.0)
        self.control.add(missed=missed, target=target_miss, step=STEP, within=PRICE_RANGE)
        own.add(missed=missed, target=target_miss, step=OWN_STEP, within=OWN_RANGE)
        self._remember(outcome, place, view)

    def _count(self, key: Key, place: int, share: Share | None) -> None:
        """Take in an output at a node: its bin, or a distribution of it where it was cut."""
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = Node()
        if share is None:
            node.add(place)
        else:
            node.add_share(share)
            node.cut += 1
        self.touched.add(key)

    def _leaning(self, key: Key) -> Leaning:
        node = self.nodes.get(key)
        return leaning(node, worth=EXPERT_WORTH) if node else _AS_ABOVE

    def _forecast(self, key: Key, expected: int) -> Expert:
        return Expert(key, around(expected, self._leaning(key)), expected)

    def _vote(self, kind: StepKind, view: View, excess: int, *, is_cut: bool) -> None:
        """Give weight to the experts that had expected it, as in a Bayesian mixture.

        With a fixed share dealt out anew (Herbster and Warmuth 1998), so that the best expert may
        change.
        """
        if len(view.experts) == 1:
            return
        places = past(excess) if is_cut else near(excess)
        of_base = sum(view.base[places.start : places.stop])
        votes: list[float] = []
        for weight, (_, own, _) in zip(view.weights, view.experts.values(), strict=True):
            found = sum(map(own.mass.get, places, repeat(0.0)))
            likely = own.kept * of_base + own.scale * found
            votes.append(weight * max(1e-9, likely) ** VOTE)
        whole = sum(votes)
        known = self.votes.setdefault(kind, {})
        # Those that had nothing to see keep their weight.
        room = 1 - sum(vote for name, vote in known.items() if name not in view.experts)
        for name, vote in zip(view.experts, votes, strict=True):
            revived = (1 - REVIVAL) * vote / whole + REVIVAL / len(votes)
            known[name] = max(0.01, room) * revived

    def _notice_squeeze(self, outcome: Outcome, view: View) -> bool:
        """Whether an output that was not cut seems to have been squeezed into its target."""
        if outcome.truncated or outcome.used > outcome.target:
            return False
        squeeze = self.squeezes.get(outcome.context.model)
        if squeeze is None:
            squeeze = self.squeezes[outcome.context.model] = Squeeze()
        ended_near = outcome.used >= outcome.target - SQUEEZE_MARGIN
        tail = view.tail
        around = max(SQUEEZE_MARGIN, outcome.target // 10)
        mass = tail(outcome.target - around - 1) - tail(outcome.target + around)
        chance = mass * (SQUEEZE_MARGIN + 1) / (2 * around + 1)
        squeeze.add(ended_near=ended_near, chance=chance)
        return ended_near and squeeze.is_suspected

    def _remember(self, outcome: Outcome, place: int, view: View) -> None:
        context = outcome.context
        if view.same is not None:
            _keep_newest(self.recalled, view.same, place, most=INPUTS)
        if view.episode is None:
            return
        episode = self.episodes.get(view.episode) or Episode()
        episode.newest = outcome.used
        episode.longest = max(episode.longest, outcome.used)
        episode.tool = context.tool or context.kind
        episode.by_step[step_name(context)] = outcome.used
        _keep_newest(self.episodes, view.episode, episode, most=EPISODES)


def path_of(context: StepContext) -> tuple[Key, ...]:
    """Keys of the context's nodes: kind > size of the schema > agent > tool > model."""
    kind, size = context.kind, context.schema_min.bit_length()
    agent, tool = context.agent, context.tool
    return (
        (kind,),
        (kind, size),
        (kind, size, agent),
        (kind, agent, tool),
        (kind, agent, tool, context.model),
    )


def _trend_key(context: StepContext) -> Key:
    return ("trend", context.kind, context.agent)


def _blend(
    base: Distribution, experts: Mapping[str, Expert], weights: Sequence[float]
) -> Distribution:
    if len(experts) == 1:
        return base
    heard = [
        (weight, own)
        for weight, (_, own, _) in zip(weights, experts.values(), strict=True)
        if weight > UNHEARD
    ]
    share = sum(weight * own.kept for weight, own in heard)
    return added(base, share, [(weight * own.scale, own.mass) for weight, own in heard])


def _keep_newest(kept: dict[str, T], name: str, value: T, *, most: int) -> None:
    """Put the newest last, and let the oldest go where there are too many."""
    kept.pop(name, None)
    kept[name] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
