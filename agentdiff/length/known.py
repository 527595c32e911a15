"""All that a predictor has learned, as a value and as JSON: counts under names, no text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentdiff.errors import StoreError
from agentdiff.generation import StepKind
from agentdiff.length.histogram import BINS, Node

START_PRICE = 1024.0
"""Positions that a call beyond the first is worth before anything is known: careful at first."""
STEP = 0.1
"""How far one outcome moves the logarithm of the price."""
LOG_PRICE_RANGE = (0.0, 11.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The price of a miss for one kind of step, steered so that misses come at the wanted rate."""

    log_price: float = math.log(START_PRICE)
    seen: int = 0
    missed: int = 0

    @property
    def price(self) -> float:
        """Positions that a call beyond the first is worth."""
        return math.exp(self.log_price)

    def plus(self, *, missed: bool, target: float) -> Control:
        """The control after one more outcome.

        The price is bounded, and at its bounds budgets are as small or as large as they get, so the
        share of misses cannot stay away from `target` for long (adaptive conformal inference, arXiv
        2106.00170).
        """
        low, high = LOG_PRICE_RANGE
        moved = self.log_price + STEP * (missed - target)
        return Control(
            log_price=min(high, max(low, moved)),
            seen=self.seen + 1,
            missed=self.missed + missed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Nodes of the length hierarchy by their key, and the control of each kind."""

    nodes: Mapping[str, Node] = field(default_factory=dict[str, Node])
    controls: Mapping[StepKind, Control] = field(default_factory=dict[StepKind, Control])


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _NodeFile(_Strict):
    seen: int = Field(gt=0)
    floor: int = Field(ge=0)
    mass: dict[int, float]


class _ControlFile(_Strict):
    log_price: float = Field(ge=LOG_PRICE_RANGE[0], le=LOG_PRICE_RANGE[1])
    seen: int = Field(ge=0)
    missed: int = Field(ge=0)


class _KnownFile(_Strict):
    format: Literal["agentdiff-lengths-1"] = "agentdiff-lengths-1"
    bins: int = Field(default=BINS, ge=BINS, le=BINS)
    controls: dict[StepKind, _ControlFile]
    nodes: dict[str, _NodeFile]


def to_json(known: Known) -> str:
    """Write `known`; reading it back gives an equal value."""
    file = _KnownFile(
        controls={
            kind: _ControlFile(
                log_price=control.log_price, seen=control.seen, missed=control.missed
            )
            for kind, control in sorted(known.controls.items())
        },
        nodes={
            key: _NodeFile(
                seen=node.seen,
                floor=node.floor,
                mass={place: weight for place, weight in enumerate(node.mass) if weight},
            )
            for key, node in sorted(known.nodes.items())
        },
    )
    return json.dumps(file.model_dump(mode="json"), ensure_ascii=False)


def from_json(text: str, *, where: str) -> Known:
    """Read what `to_json` wrote. Anything else raises a `StoreError` that names `where`."""
    try:
        file = _KnownFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise StoreError(_not_ours(where, f"{place}: {first['msg']}")) from error
    return Known(
        nodes={key: _node(node, key=key, where=where) for key, node in file.nodes.items()},
        controls={
            kind: Control(log_price=control.log_price, seen=control.seen, missed=control.missed)
            for kind, control in file.controls.items()
        },
    )


def _node(file: _NodeFile, *, key: str, where: str) -> Node:
    mass = [0.0] * BINS
    for place, weight in file.mass.items():
        if not 0 <= place < BINS or weight < 0:
            raise StoreError(_not_ours(where, f"{key} has {weight} in bin {place}"))
        mass[place] = weight
    return Node(mass=tuple(mass), seen=file.seen, floor=file.floor)


def _not_ours(where: str, reason: str) -> str:
    return f"{where} does not hold learned lengths ({reason}); delete it to start anew"
