"""What each token of a prompt is for: a second lesson, which only training gives.

A reply says which tool and which values are right, but reaches the prompt's encoder only through the pointer. Here the
encoder is told directly: every token of a value points to the parameter that it fills in the next call, every other
token of the conversation and every refused request to nothing, and the reply mark to the tool that is to be called.
The head that is asked for it (`SlotHead`) is thrown away after training.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentdiff.embedded.training.replies import Example

NOTHING = 0
"""The place that tokens without a slot point to: the first token of the prompt."""
IGNORED = -100
_NOTHING_WEIGHT = 0.15
"""Most tokens fill nothing; together they shall not drown the others."""
_TOOL_WEIGHT = 3.0


class Slots(NamedTuple):
    """The slots of one prompt of S tokens."""

    places: list[int]
    """Tokens that may be pointed to: NOTHING, and the first token of every tool and of every parameter."""
    targets: list[int]
    """[S]: for each token the place that it belongs to, or IGNORED."""


def slots_of(example: Example, prompt: str, offsets: Sequence[tuple[int, int]]) -> Slots:
    """The slots of `example`, whose prompt has its tokens at the character `offsets`."""
    starts = {start: token for token, (start, end) in enumerate(offsets) if end > start}
    conversation = prompt.index("<|user|>") + len("<|user|>")
    places = [NOTHING]
    parameters: dict[str, int] = {}
    chosen = NOTHING
    at = len("<|tools|>")
    for tool in example.tools:
        is_called = example.expected is not None and example.expected.tool.name == tool.name
        token = starts[at]
        places.append(token)
        if is_called and example.kind != "answer":
            chosen = token
        cursor = at + len(tool.name)
        for parameter in tool.parameters:
            found = re.compile(rf"[(,]({re.escape(parameter.name)})[?:,)]").search(prompt, cursor)
            if found is None:
                continue
            cursor = found.end() - 1
            places.append(starts[found.start(1)])
            if is_called:
                parameters[parameter.name] = places[-1]
        at = prompt.find("\n", at, conversation) + 1
        if not at:
            break
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
    return Slots(places, targets)


class SlotHead(nn.Module):
    """Points from every token of a prompt to the tool or parameter that it belongs to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)

    def loss(self, hidden: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        """Weighted cross-entropy (scalar) of hidden [B, S, E] over places [B, S] bool; targets [B, S] int64."""
        scores = (self.query(hidden) @ self.key(hidden).transpose(1, 2)).float()
        scores = scores / hidden.shape[-1] ** 0.5
        scores = scores.masked_fill(~places[:, None], -1e9)
        losses = F.cross_entropy(
            scores.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
        )
        weights = torch.where(targets == NOTHING, _NOTHING_WEIGHT, 1.0)
        is_last = F.pad((targets == IGNORED)[:, 1:], (0, 1), value=True) & (targets != IGNORED)
        weights = torch.where(is_last, _TOOL_WEIGHT, weights) * (targets != IGNORED)
        weights = weights.flatten()
        return (losses * weights).sum() / weights.sum()
