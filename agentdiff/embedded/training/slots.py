"""What each token of a prompt is for: the second lesson of training.

A reply says which tool and which values are right, but reaches the prompt's encoder only through the pointer. Here the
encoder is told directly: every token of a value points to the parameter that it fills in the next call, every other
token of the conversation and every refused request to nothing, and the reply mark to the tool that is to be called.
The router's pointer head uses what is learned (`RouterModel.point`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from agentdiff.engine.families.router_model import belongings
from agentdiff.engine.families.signatures import PARAMETER, TOOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentdiff.embedded.training.replies import Example
    from agentdiff.engine.families.router_model import Slots

NOTHING = 0
"""The place that tokens without a slot point to: the first token of the prompt."""
IGNORED = -100
_NOTHING_WEIGHT = 0.15
"""Most tokens fill nothing; together they shall not drown the others."""
_TOOL_WEIGHT = 3.0


def slots_of(
    example: Example, prompt: str, offsets: Sequence[tuple[int, int]], kinds: Sequence[int]
) -> list[int]:
    """For each token of a prompt the place that it belongs to, or IGNORED.

    Args:
        example: Whose prompt it is.
        prompt: Its text.
        offsets: The characters (first, behind) of every token.
        kinds: What every token is (`signatures`).
    """
    conversation = prompt.index("<|user|>") + len("<|user|>")
    places = iter([token for token, kind in enumerate(kinds) if kind in (TOOL, PARAMETER)])
    parameters: dict[str, int] = {}
    chosen = NOTHING
    for tool in example.tools:
        is_called = example.expected is not None and example.expected.tool.name == tool.name
        token = next(places)
        if is_called and example.kind != "answer":
            chosen = token
        for name in dict.fromkeys(parameter.name for parameter in tool.parameters):
            place = next(places)
            if is_called:
                parameters[name] = place
    targets = [IGNORED] * len(offsets)
    for token, (start, _) in enumerate(offsets):
        if start >= conversation:
            targets[token] = NOTHING
    if example.expected is not None and chosen != NOTHING:
        for name, value in example.expected.arguments.items():
            if not isinstance(value, str) or not value or name not in parameters:
                continue
            found = [
                m.span()
                for m in re.finditer(
                    rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", prompt[conversation:]
                )
            ]
            for first, last in found:
                for token, (start, end) in enumerate(offsets):
                    if start >= conversation + first and end <= conversation + last:
                        targets[token] = parameters[name] if len(found) == 1 else IGNORED
    targets[-1] = chosen
    return targets


def slot_loss(slots: Slots, targets: Tensor) -> Tensor:
    """Weighted cross-entropy (scalar) of the slots that were found; targets [B, S] int64."""
    scores = belongings(slots.queries, slots.keys, slots.places)
    losses = F.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    weights = torch.where(targets == NOTHING, _NOTHING_WEIGHT, 1.0)
    is_last = F.pad((targets == IGNORED)[:, 1:], (0, 1), value=True) & (targets != IGNORED)
    weights = torch.where(is_last, _TOOL_WEIGHT, weights) * (targets != IGNORED)
    weights = weights.flatten()
    return (losses * weights).sum() / weights.sum()
