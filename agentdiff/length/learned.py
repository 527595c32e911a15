"""All that has been learned about lengths, and how an outcome changes it.

    context -> path of nodes, general to special -> the distribution there
            -> what else is known of the moment (newest input, episode so far) -> experts -> a blend
    outcome -> the nodes, the experts' weights, the price of a miss

A plain state machine over counts and names: the same outcomes in the same order give the same
state, which is how processes that share a store agree. Knows no cost model, no file and no lock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentdiff.generation import StepKind
from agentdiff.length.context import StepContext
from agentdiff.length.histogram import (
    Distribution,
    Leaning,
    Node,
    Tail,
    added,
    beyond,
    leaning,
    near,
    past,
    shrunk,
    tail_of,
)
from agentdiff.length.prior import Prior, of_model

Key = tuple[str | int | None, ...]
"""Names that lead to a node, most general first."""

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

START_PRICE = 400.0
"""Positions that a call beyond the first is worth, once the first dozens are over."""
CAUTION, CAUTIOUS_FOR = 1.7, 30.0
"""How much dearer (as a logarithm) a miss is at first, and for about how many outcomes."""
STRANGE = 0.3
"""How much dearer it is for a tool or an agent that has no history of its own."""
STEP, OWN_STEP = 0.12, 0.03
"""How far one outcome moves the logarithm of the price: of all kinds, of its own kind."""
PRICE_RANGE, OWN_RANGE = (0.0, 11.0), (-6.0, 6.0)

EPISODES = 128
"""Episodes that are remembered; the one that has rested longest goes first."""
SQUEEZE_MARGIN = 2
"""An output that ends so few tokens before its target may have been squeezed into it."""
_SQUEEZE_KEPT = 0.995
_HASHED = "episode:"
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


@dataclass(slots=True, kw_only=True)
class Control:
    """A price, steered so that misses come at the wanted rate.

    A bounded price that moves by `step * (missed - target)` cannot let the share of misses stay
    away from the target (adaptive conformal inference, arXiv 2106.00170).
    """

    log_price: float
    seen: int = 0
    missed: int = 0

    def add(self, *, missed: bool, target: float, step: float, within: tuple[float, float]) -> None:
        """Take in one outcome."""
        low, high = within
        self.log_price = min(high, max(low, self.log_price + step * (missed - target)))
        self.seen += 1
        self.missed += missed


@dataclass(slots=True, kw_only=True)
class Squeeze:
    """How often a model ends just before its target, against how often it would by chance.

    A model that sees the whole canvas may write less instead of being cut. Nothing reports that,
    and learned as a length it teaches the next budget to squeeze more.
    """

    ended_near: float = 0.0
    expected: float = 0.0

    @property
    def is_suspected(self) -> bool:
        """Whether chance does not explain it."""
        return self.ended_near - self.expected > 4 + 3 * math.sqrt(self.expected)

    def add(self, *, ended_near: bool, chance: float) -> None:
        """Take in one output that was not cut."""
        self.ended_near = _SQUEEZE_KEPT * self.ended_near + ended_near
        self.expected = _SQUEEZE_KEPT * self.expected + chance


@dataclass(slots=True, kw_only=True)
class Episode:
    """What one episode has written so far, in tokens."""

    newest: int | None = None
    longest: int = 0
    tool: str | None = None
    """The newest step's tool, or its kind."""
    by_step: dict[str, int] = field(default_factory=dict[str, int])
    """The newest length of each kind and tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is known of a context."""

    path: tuple[Key, ...]
    """Keys of its nodes: kind, size, agent, tool, model."""
    base: Distribution
    """The excess over the schema's minimum, by the path alone."""
    blend: Distribution
    """The same, with what the experts say."""
    tail: Tail
    """Of whole lengths, by `blend`."""
    experts: Mapping[str, tuple[Key, Leaning]]
    """By name; `BASE` first. Each with its node and how that leans on `base`."""
    weights: Sequence[float]
    """Of the experts, summing to 1."""


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
                leaning(node, worth=worth)
                for key, worth in zip(path, WORTH, strict=True)
                if (node := find(key)) is not None
            ],
        )
        experts: dict[str, tuple[Key, Leaning]] = {BASE: (path[-1], _AS_ABOVE)}
        for name, features in self._moment(context).items():
            key = (*path[-1], name, *features)
            node = find(key)
            experts[name] = key, leaning(node, worth=EXPERT_WORTH) if node else _AS_ABOVE
        votes = self.votes.get(context.kind, {})
        # An expert that never had a say starts with an equal one.
        present = [votes.get(name, 1 / len(experts)) for name in experts]
        whole = sum(present)
        weights = [vote / whole for vote in present]
        blend = _blend(base, experts, weights)
        return View(
            path=path,
            base=base,
            blend=blend,
            tail=tail_of(blend, offset=context.schema_min),
            experts=experts,
            weights=weights,
        )

    def log_price(self, context: StepContext, view: View) -> float:
        """Logarithm of the positions that a call beyond the first is worth."""
        own = self.own.get(context.kind)
        seen = own.seen if own else 0
        caution = CAUTION * math.exp(-seen / CAUTIOUS_FOR)
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
        share = beyond(excess, view.blend) if is_cut else None
        keys = (*view.path, *(key for name, (key, _) in view.experts.items() if name != BASE))
        for key in keys:
            node = self.nodes.get(key)
            if node is None:
                node = self.nodes[key] = Node()
            if share is None:
                node.add(excess)
            else:
                node.add_share(share)
            node.cut += is_cut
            node.floor = written if is_cut else 0
        self.touched.update(keys)
        missed = outcome.missed or squeezed
        self.control.add(missed=missed, target=target_miss, step=STEP, within=PRICE_RANGE)
        own = self.own.setdefault(context.kind, Control(log_price=0.0))
        own.add(missed=missed, target=target_miss, step=OWN_STEP, within=OWN_RANGE)
        self._remember(outcome)

    def _moment(self, context: StepContext) -> dict[str, Key]:
        """What each expert looks at, apart from the path; those with nothing to see are left out.

        Numbers are told apart by their magnitude only.
        """
        episode = self.episodes.get(episode_key(context.episode)) if context.episode else None
        newest_input = _octave(context.last_tokens)
        seen: dict[str, Key] = {}
        if newest_input is not None or episode is not None:
            seen["input"] = (newest_input, episode.tool if episode else None)
        if context.prompt_tokens is not None:
            seen["prompt"] = (_half_octave(context.prompt_tokens),)
        if episode is not None:
            seen["newest"] = (_octave(episode.newest),)
            seen["longest"] = (_half_octave(episode.longest),)
            own = episode.by_step.get(_step(context))
            if own is not None:
                seen["repeat"] = (_octave(own), newest_input)
        return seen

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
        for weight, (_, own) in zip(view.weights, view.experts.values(), strict=True):
            mass = own.mass.get
            found = sum([mass(place, 0.0) for place in places])
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
        squeeze = self.squeezes.setdefault(outcome.context.model, Squeeze())
        ended_near = outcome.used >= outcome.target - SQUEEZE_MARGIN
        tail = view.tail
        around = max(SQUEEZE_MARGIN, outcome.target // 10)
        mass = tail(outcome.target - around - 1) - tail(outcome.target + around)
        chance = mass * (SQUEEZE_MARGIN + 1) / (2 * around + 1)
        squeeze.add(ended_near=ended_near, chance=chance)
        return ended_near and squeeze.is_suspected

    def _remember(self, outcome: Outcome) -> None:
        context = outcome.context
        if not context.episode:
            return
        name = episode_key(context.episode)
        episode = self.episodes.pop(name, None) or Episode()
        episode.newest = outcome.used
        episode.longest = max(episode.longest, outcome.used)
        episode.tool = context.tool or context.kind
        episode.by_step[_step(context)] = outcome.used
        self.episodes[name] = episode  # the newest stands last
        if len(self.episodes) > EPISODES:
            del self.episodes[next(iter(self.episodes))]


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


def episode_key(episode: str) -> str:
    """What is kept of an episode's name, which may hold anything: a hash. Of a hash, itself."""
    if episode.startswith(_HASHED) and len(episode) == len(_HASHED) + 16:
        return episode
    digest = hashlib.blake2b(episode.encode(errors="replace"), digest_size=8)
    return _HASHED + digest.hexdigest()


def _blend(
    base: Distribution, experts: Mapping[str, tuple[Key, Leaning]], weights: Sequence[float]
) -> Distribution:
    if len(experts) == 1:
        return base
    heard = [
        (weight, own)
        for weight, (_, own) in zip(weights, experts.values(), strict=True)
        if weight > UNHEARD
    ]
    share = sum(weight * own.kept for weight, own in heard)
    return added(base, share, [(weight * own.scale, own.mass) for weight, own in heard])


def _octave(tokens: int | None) -> int | None:
    return None if tokens is None else int(math.log2(tokens + 1))


def _half_octave(tokens: int) -> int:
    return int(2 * math.log2(tokens + 1))


def _step(context: StepContext) -> str:
    return f"{context.kind}/{context.tool or context.agent}"
