"""The seam between the engine and a model: what a block-causal family can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from agentdiff.engine.cache import Prefix

__all__ = ["Family", "FamilyTraits", "Prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Facts of a loaded model."""

    name: str
    """The family: `router`, `sdar`."""
    vocab_size: int
    mask_id: int
    eos_ids: tuple[int, ...]
    """Any of these ends a reply."""
    block_len: int
    """L: positions denoised together."""
    context_len: int
    """Prompt and reply together, in tokens."""


class Family(Protocol):
    """A block-causal masked-diffusion model behind the engine.

    Blocks see every position of their prefix and of themselves, and nothing else. All methods run under inference mode
    and keep no state between calls.
    """

    @property
    def traits(self) -> FamilyTraits:
        """Facts of the loaded model."""
        ...

    def prefill(self, prompt: Sequence[int]) -> tuple[Prefix, tuple[int, ...]]:
        """Encode a prompt: its prefix, and the tail of it that shares its block with the first generated tokens."""
        ...

    def denoise(self, blocks: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
        """Score blocks against their prefixes without storing anything.

        blocks [B, L] int64, masked positions hold `mask_id` -> log-probabilities [B, L, V] float32.
        """
        ...

    def append(self, blocks: Tensor, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """The prefixes with the finished blocks [B, L] behind them; the given ones are not changed."""
        ...
