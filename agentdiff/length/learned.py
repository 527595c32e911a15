"""All that has been learned about lengths, and what it says of a step.

    context -> path of nodes, general to special -> the distribution there
            -> what else is known of the moment (newest input, episode so far) -> experts -> a blend
               some count what happened in such moments, some forecast one length and count errors

Plain data over counts and names; `learning` changes it. Knows no cost model, no file and no lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentdiff.generation import StepKind
from agentdiff.length.context import Key, StepContext
from agentdiff.length.control import PRICE_RANGE, START_PRICE, Control, Squeeze
from agentdiff.length.forecast import Trend, around, center
from agentdiff.length.histogram import (
    BINS,
    Distribution,
    Lengths,
    Mass,
    Node,
    added,
    lengths_of,
    shrunk,
)
from agentdiff.length.moment import Episode, buckets_of, episode_key, features_of, input_key
from agentdiff.length.prior import Prior, of_model

WORTH = (15.0, 15.0, 4.0, 2.0, 2.0)
"""Observations that the level above is worth: kind, size, agent, tool, model."""
EXPERT_WORTH = 4.0
BASE = "history"
"""The expert that looks at nothing but the path."""
UNHEARD = 0.01
"""A share that changes no budget."""

CAUTION, CAUTIOUS_FOR = 2.0, 60.0
"""How much dearer (as a logarithm) a miss is at first, and for about how many outcomes."""
STRANGE = 0.3
"""How much dearer it is for a tool or an agent that has no history of its own."""

_NOTHING: Mass = {}


class Expert(NamedTuple):
    """One opinion about a context: a part of what the path alone says, and what it has counted."""

    key: Key
    """Of its node."""
    kept: float = 1.0
    scale: float = 0.0
    """Probability that a unit of `mass` is."""
    mass: Mass = _NOTHING
    forecast: int | None = None
    """The bin that it expects; then its node counts how far off such forecasts were."""


class View(NamedTuple):
    """What is known of a context."""

    path: tuple[Key, ...]
    """Keys of its nodes: kind, size, agent, tool, model."""
    base: Distribution
    """The excess over the schema's minimum, by the path alone."""
    whole: float
    """The sum of `base`."""
    blend: Distribution
    """The same, with what the experts say."""
    lengths: Lengths
    """Whole lengths, by `blend`."""
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
        kind = context.kind
        path = path_of(context)
        prior = self.prior.get(of_model(kind, context.model.partition("@")[0]))
        chain = [(self.nodes.get(key), worth) for key, worth in zip(path, WORTH, strict=True)]
        base = shrunk(prior or self.prior[kind], chain, least=UNHEARD)
        whole = sum(base)
        usual = center(base, whole)
        name = episode_key(context.episode) if context.episode else None
        episode = self.episodes.get(name) if name else None
        same = input_key(context)
        features = features_of(context, episode, usual=usual)
        experts = {BASE: Expert(path[-1])}
        for what, moment in buckets_of(context, episode).items():
            experts[what] = self._counting((*path[-1], what, *moment))
        key = trend_key(context)
        if (trend := self.trends.get(key)) is not None:
            expected = min(BINS - 1, max(0, round(usual + trend.tell(features))))
            experts["trend"] = self._forecasting(key, expected)
        if same is not None and (newest := self.recalled.get(same)) is not None:
            experts["same"] = self._forecasting(("same", kind), newest)
        votes = self.votes.get(kind, {})
        # An expert that never had a say starts with an equal one.
        present = [votes.get(one, 1 / len(experts)) for one in experts]
        all_votes = sum(present)
        weights = [vote / all_votes for vote in present]
        blend = _blend(base, whole, experts.values(), weights)
        return View(
            path,
            base,
            whole,
            blend,
            lengths_of(blend, offset=context.schema_min),
            experts,
            weights,
            features,
            name,
            same,
            usual,
        )

    def log_price(self, context: StepContext, view: View) -> float:
        """Logarithm of the positions that a call beyond the first is worth."""
        own = self.own.get(context.kind)
        caution = CAUTION * math.exp(-(own.seen if own else 0) / CAUTIOUS_FOR)
        strange = STRANGE if view.path[3] not in self.nodes else 0.0
        price = self.control.log_price + (own.log_price if own else 0.0) + caution + strange
        return min(PRICE_RANGE[1], max(PRICE_RANGE[0], price))

    def _counting(self, key: Key) -> Expert:
        node = self.nodes.get(key)
        if node is None:
            return Expert(key)
        return Expert(key, *node.leaning(EXPERT_WORTH), node.mass)

    def _forecasting(self, key: Key, expected: int) -> Expert:
        node = self.nodes.get(key)
        if node is None:
            return Expert(key, forecast=expected)
        return Expert(key, *node.leaning(EXPERT_WORTH), around(expected, node.mass), expected)


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


def trend_key(context: StepContext) -> Key:
    """Where the trend of a context is kept, and the node of its errors."""
    return ("trend", context.kind, context.agent)


def _blend(
    base: Distribution, whole: float, experts: Iterable[Expert], weights: Sequence[float]
) -> Distribution:
    share, own = 0.0, list[tuple[float, Mass]]()
    for weight, (_, kept, scale, mass, _) in zip(weights, experts, strict=True):
        if weight > UNHEARD:
            share += weight * kept
            own.append((weight * scale, mass))
    return added(base, share / whole, own)
