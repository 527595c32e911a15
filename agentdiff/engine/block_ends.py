"""Where blocks end, as a value: at a joint of the text in place of a fixed length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEnds:
    """End a block behind the surest delimiter that the model foresees (AdaBlock, arXiv 2509.26432).

    Looked for once, in the pass over the whole canvas that a block begins with. Where there is none that is sure
    enough, the block has its usual length.
    """

    ids: tuple[int, ...]
    """Delimiters: tokens of a line end, say, or of `,`, `}` and `]`."""
    threshold: float = 0.3
    """The delimiter's probability must reach it (the authors take 0.3 for LLaDA, 0.5 for Dream)."""
    window: float = 0.25
    """How far to look, as a share of the expected reply."""

    def __post_init__(self) -> None:
        if not self.ids:
            raise ConfigurationError("`ids` is empty; name at least one delimiter token")
        if not 0 < self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in (0, 1], got {self.threshold!r}")
        if not 0 < self.window <= 1:
            raise ConfigurationError(f"`window` must be in (0, 1], got {self.window!r}")

    def find(self, log_probs: Tensor) -> int | None:
        """How many of the positions [n, V] belong to the block; None where no delimiter is sure enough."""
        best, token = log_probs.exp().max(-1)
        is_end = torch.isin(token, torch.tensor(self.ids, device=token.device))
        sure = torch.where(is_end, best, -1.0)
        place = int(sure.argmax())
        return place + 1 if float(sure[place]) >= self.threshold else None
