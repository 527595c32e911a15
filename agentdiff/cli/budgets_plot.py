"""Predicted against actual lengths as a picture: a dot for each step, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentdiff.cli.surfaces import Surface
    from agentdiff.length.replay import Played
    from agentdiff.messages import Json

SIZE = (640, 640)
"""Of the picture, in pixels."""
POINTS = 4000
"""Steps that are drawn at most."""
LEFT, TOP, SIDE = 72, 64, 520
"""Where the plot lies."""
INK, FAINT, GRID = "#222222", "#666666", "#eeeeee"
FITS, TOO_SMALL = "#0891b2", "#dc2626"


def draw(
    surface: Surface, played: Sequence[Played], *, quantum: int, report: Mapping[str, Json]
) -> None:
    """Draw the first attempt's budget of each step against its length."""
    steps = [step for step in played if not step.is_derived]
    high = math.ceil(math.log2(max([2, *(max(one.length, one.budget) for one in steps)])))
    bottom, right = TOP + SIDE, LEFT + SIDE

    def along(tokens: int) -> float:
        return math.log2(max(1, tokens)) / high * SIDE

    surface.text((LEFT, 24), "Budget against actual length", color=INK)
    surface.text((LEFT, 42), _headline(report, quantum), color=FAINT)
    for power in range(high + 1):
        place, value = along(2**power), f"{2**power:,}"
        surface.line((LEFT + place, TOP), (LEFT + place, bottom), GRID)
        surface.line((LEFT, bottom - place), (right, bottom - place), GRID)
        if high <= 10 or power % 2 == high % 2:  # long numbers stand apart
            surface.text((LEFT + place, bottom + 18), value, anchor="middle", color=FAINT)
        surface.text((LEFT - 8, bottom - place + 4), value, anchor="end", color=FAINT)
    surface.line((LEFT, bottom), (right, TOP), FAINT)
    for one in steps[:: max(1, math.ceil(len(steps) / POINTS))]:
        at = (LEFT + along(one.length), bottom - along(one.budget))
        surface.dot(at, FITS if one.budget >= one.length else TOO_SMALL)
    surface.text((8, TOP - 10), "budget", color=FAINT)
    surface.text((LEFT, bottom + 40), "actual length, tokens", color=FAINT)
    surface.text((right - 90, bottom + 40), "fits", anchor="end", color=FITS)
    surface.text((right, bottom + 40), "too small", anchor="end", color=TOO_SMALL)


def _headline(report: Mapping[str, Json], quantum: int) -> str:
    total = report["total"]
    if not total["steps"]:
        return "no steps"
    return (
        f"{total['steps']:,} steps, multiples of {quantum}: {total['coverage']:.1%} fit,"
        f" {total['overshoot']:.2f}x allocated"
    )
