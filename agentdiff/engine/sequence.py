"""One sequence on its way: prompt, finished blocks, the active block, its grammar and its random numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from agentdiff.engine.params import DecodeOutput, DecodeParams, DecodeStats

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.engine.cache import Prefix


@dataclass(slots=True)
class Sequence:
    """The state of one decode. A block position is masked (None) or committed for good (a token id)."""

    id: int
    params: DecodeParams
    prefix: Prefix
    matcher: Matcher | None
    block: list[int | None]
    """The active block, the prompt's tail first."""
    tail_len: int
    """Leading positions of the active block that belong to the prompt."""
    started: float
    rng: np.random.Generator
    expected_blocks: int
    """Blocks that `target` tokens take; further ones are extensions."""
    done: list[int] = field(default_factory=list[int])
    """Tokens of finished blocks."""
    streamed: int = 0
    """Tokens already reported as final."""
    forwards: int = 0
    positions: int = 0
    blocks: int = 1
    forced_tokens: int = 0
    constraint_s: float = 0.0
    confidence: float = 1.0

    @property
    def generated(self) -> list[int | None]:
        """The active block without the prompt's tail."""
        return self.block[self.tail_len :]

    def leading(self) -> list[int]:
        """Tokens of the active block that stand before its first mask."""
        run: list[int] = []
        for token in self.generated:
            if token is None:
                break
            run.append(token)
        return run

    def output(self, tokens: list[int], reason: str) -> DecodeOutput:
        """The finished sequence; `tokens` are all generated ids."""
        return DecodeOutput(
            tokens=tuple(tokens),
            reason="length" if reason == "length" else "stop",
            stats=DecodeStats(
                forwards=self.forwards,
                positions=self.positions,
                blocks=self.blocks,
                forced_tokens=self.forced_tokens,
                constraint_s=self.constraint_s,
                decode_s=time.perf_counter() - self.started,
                extensions=max(0, self.blocks - self.expected_blocks),
                confidence=self.confidence,
            ),
        )
