"""What has been learned, as JSON and as one state made of two: counts under names, no text."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentdiff.errors import StoreError
from agentdiff.generation import StepKind
from agentdiff.length.context import Key
from agentdiff.length.control import (
    OWN_RANGE,
    OWN_STEP,
    PRICE_RANGE,
    START_PRICE,
    STEP,
    Control,
    Squeeze,
)
from agentdiff.length.forecast import PRODUCTS, Trend
from agentdiff.length.histogram import BINS, EDGES, FULL, Node, bin_of
from agentdiff.length.learned import Learned
from agentdiff.length.learning import INPUTS
from agentdiff.length.moment import FEATURES, Episode
from agentdiff.length.prior import Prior

FOREIGN_WORTH = 0.2
"""What lengths counted with another tokenizer are worth of one's own."""
_MISSES = 0.03
"""The usual rate of misses."""
MOST_FOREIGN = 20.0
"""Observations that they are worth at most, so that one's own soon count more."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _NodeFile(_Strict):
    seen: int = Field(gt=0)
    cut: int = Field(ge=0)
    floor: int = Field(ge=0)
    newest: int = Field(ge=-1, lt=BINS)
    unit: float = Field(gt=0)
    total: float = Field(ge=0)
    mass: dict[int, float]


class _ControlFile(_Strict):
    log_price: float = Field(ge=OWN_RANGE[0], le=PRICE_RANGE[1])
    seen: int = Field(ge=0)
    missed: int = Field(ge=0)


class _SqueezeFile(_Strict):
    ended_near: float = Field(ge=0)
    expected: float = Field(ge=0)


class _EpisodeFile(_Strict):
    longest: int = Field(ge=0)
    tool: str | None
    by_step: dict[str, int]


class _TrendFile(_Strict):
    products: list[float] = Field(min_length=PRODUCTS, max_length=PRODUCTS)
    moments: list[float] = Field(min_length=FEATURES, max_length=FEATURES)


class RestFile(_Strict):
    """All but the nodes."""

    votes: dict[StepKind, dict[str, float]]
    control: _ControlFile
    own: dict[StepKind, _ControlFile]
    squeezes: dict[str, _SqueezeFile]
    episodes: dict[str, _EpisodeFile]
    trends: dict[str, _TrendFile] = {}
    recalled: dict[str, Annotated[int, Field(ge=0, lt=BINS)]] = {}


class _LearnedFile(_Strict):
    format: Literal["agentdiff-lengths-3"] = "agentdiff-lengths-3"
    bins: int = Field(default=BINS, ge=BINS, le=BINS)
    rest: RestFile
    nodes: dict[str, _NodeFile]


def key_to_text(key: Key) -> str:
    """A key as JSON."""
    return json.dumps(key, ensure_ascii=False)


def key_from_text(text: str) -> Key:
    """Read a key; raises `ValueError` when it is none."""
    names = json.loads(text)
    if not isinstance(names, list) or not names:
        raise ValueError(f"{text!r} is not a key")
    return tuple(cast("list[str | int | None]", names))


def rest_of(learned: Learned) -> RestFile:
    """All but the nodes, as a model that writes itself as JSON."""
    return RestFile(
        votes=learned.votes,
        control=_ControlFile(**asdict(learned.control)),
        own={kind: _ControlFile(**asdict(own)) for kind, own in learned.own.items()},
        squeezes={name: _SqueezeFile(**asdict(one)) for name, one in learned.squeezes.items()},
        episodes={name: _EpisodeFile(**asdict(one)) for name, one in learned.episodes.items()},
        trends={key_to_text(key): _TrendFile(**asdict(one)) for key, one in learned.trends.items()},
        recalled=learned.recalled,
    )


def put_rest(learned: Learned, rest: RestFile) -> None:
    """Replace all but the nodes."""
    learned.votes = {kind: dict(votes) for kind, votes in rest.votes.items()}
    learned.control = Control(**rest.control.model_dump())
    learned.own = {kind: Control(**own.model_dump()) for kind, own in rest.own.items()}
    learned.squeezes = {name: Squeeze(**one.model_dump()) for name, one in rest.squeezes.items()}
    learned.episodes = {name: Episode(**one.model_dump()) for name, one in rest.episodes.items()}
    learned.trends = {
        key_from_text(key): Trend(**one.model_dump()) for key, one in rest.trends.items()
    }
    learned.recalled = dict(rest.recalled)


def to_json(learned: Learned) -> str:
    """Write all that is known; reading it back gives the same budgets."""
    file = _LearnedFile(
        rest=rest_of(learned),
        nodes={key_to_text(key): _NodeFile(**asdict(node)) for key, node in learned.nodes.items()},
    )
    return json.dumps(file.model_dump(mode="json"), ensure_ascii=False)


def from_json(text: str, *, where: str, prior: Prior) -> Learned:
    """Read what `to_json` wrote. Anything else raises a `StoreError` that names `where`."""
    try:
        file = _LearnedFile.model_validate_json(text)
        learned = Learned(prior)
        put_rest(learned, file.rest)
        for key, node in file.nodes.items():
            if not all(0 <= at < BINS and weight >= 0 for at, weight in node.mass.items()):
                raise StoreError(_not_ours(where, f"{key} has a bin that cannot be"))
            learned.nodes[key_from_text(key)] = Node(**node.model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise StoreError(_not_ours(where, f"{place}: {first['msg']}")) from error
    except ValueError as error:
        raise StoreError(_not_ours(where, str(error))) from error
    return learned


def merge(into: Learned, other: Learned) -> None:
    """Add what `other` knows. Observations add up, and votes are means by what stands behind them.

    Which of two is added to which makes no difference, but for the episodes that are going on:
    those of `into` stay. Differs from having seen all outcomes in one place by what their order
    decides: forgetting and prices.
    """
    for key, node in other.nodes.items():
        mine = into.nodes.get(key)
        into.nodes[key] = _sum(mine, node) if mine else replace(node, mass=dict(node.mass))
    into.touched.update(other.nodes)
    for kind, votes in other.votes.items():
        mine_votes = into.votes.get(kind, {})
        seen, theirs = _seen(into.own.get(kind)), _seen(other.own.get(kind))
        into.votes[kind] = {
            name: _mean(mine_votes.get(name), seen, votes.get(name), theirs)
            for name in {**mine_votes, **votes}
        }
    into.control = _both(
        into.control, other.control, start=math.log(START_PRICE), step=STEP, within=PRICE_RANGE
    )
    for kind, own in other.own.items():
        mine_own = into.own.get(kind, Control(log_price=0.0))
        into.own[kind] = _both(mine_own, own, start=0.0, step=OWN_STEP, within=OWN_RANGE)
    for model, squeeze in other.squeezes.items():
        mine_squeeze = into.squeezes.setdefault(model, Squeeze())
        mine_squeeze.ended_near += squeeze.ended_near
        mine_squeeze.expected += squeeze.expected
    for key, trend in other.trends.items():
        into.trends[key] = into.trends.get(key, Trend()) + trend
    # Where both know an input, the longer outcome is the safer one.
    both = {name: max(place, into.recalled.get(name, 0)) for name, place in other.recalled.items()}
    newest = list({**into.recalled, **both}.items())[-INPUTS:]
    into.recalled = dict(newest)


def adopt(learned: Learned, *, model: str, of: str, factor: float) -> int:
    """Start `model` from what is known of the model `of`; returns how many nodes that made.

    Args:
        learned: Changed in place. Nodes that `model` has already keep what they know.
        model: The new model, as contexts name it.
        of: The model whose lengths are taken over, at a fifth of their weight.
        factor: Tokens that the new tokenizer spends for each of the old one's.
    """
    made = 0
    for key, node in list(learned.nodes.items()):
        if len(key) < 4 or key[3] != of:
            continue
        new = (*key[:3], model, *key[4:])
        if new in learned.nodes:
            continue
        mass: dict[int, float] = {}
        scale = min(FOREIGN_WORTH, MOST_FOREIGN / max(node.weight, 1e-9)) / node.unit
        for place, weight in node.mass.items():
            at = bin_of(math.ceil(EDGES[place] * factor))
            mass[at] = mass.get(at, 0.0) + weight * scale
        learned.nodes[new] = Node(mass=mass, total=sum(mass.values()), seen=node.seen)
        learned.touched.add(new)
        made += 1
    return made


def _sum(one: Node, other: Node) -> Node:
    """The sum of both, with the weight that one node would have kept of all these observations."""
    together = one.weight + other.weight
    # A node of n observations weighs FULL (1 - q^n): the parts it has forgotten multiply.
    weight = together - one.weight * other.weight / FULL
    scale = weight / together if together else 1.0
    mass: dict[int, float] = {}
    for place in sorted(one.mass.keys() | other.mass.keys()):
        both = one.mass.get(place, 0.0) / one.unit + other.mass.get(place, 0.0) / other.unit
        mass[place] = scale * both
    return Node(
        mass=mass,
        total=weight,
        seen=one.seen + other.seen,
        cut=one.cut + other.cut,
        floor=max(one.floor, other.floor),
        newest=one.newest if one.newest == other.newest else -1,
    )


def _both(
    one: Control, other: Control, *, start: float, step: float, within: tuple[float, float]
) -> Control:
    """The price that one control would have come to, had it seen all these outcomes.

    A price is drawn to where misses come at the wanted rate, each time by about `step` times that
    rate of what is left of the way; so the ways that two have gone add up as the weights of nodes
    do.
    """
    if not one.seen or not other.seen:
        return replace(other if other.seen else one)
    gone = [1 - math.exp(-step * _MISSES * control.seen) for control in (one, other)]
    moved = one.log_price + other.log_price - 2 * start
    moved *= 1 - gone[0] * gone[1] / sum(gone)
    low, high = within
    return Control(
        log_price=min(high, max(low, start + moved)),
        seen=one.seen + other.seen,
        missed=one.missed + other.missed,
    )


def _seen(control: Control | None) -> int:
    return control.seen if control else 0


def _mean(one: float | None, seen: int, other: float | None, others: int) -> float:
    if one is None or other is None:
        return one if one is not None else (other or 0.0)
    whole = seen + others
    return (one * seen + other * others) / whole if whole else (one + other) / 2


def _not_ours(where: str, reason: str) -> str:
    return f"{where} does not hold learned lengths ({reason}); delete it to start anew"
