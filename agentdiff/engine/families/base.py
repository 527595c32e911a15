"""The seam between the engine and a model: facts of a family, and the one pass it can run.

A family keeps no state and knows no policy: which positions are pushed, what they see, what is kept and what is
committed is the engine's business. Two kinds:

- `Family`: a mask model. Masked positions hold `mask_id`, and the pass scores every position given.
- `CanvasFamily`: a renoising model. There is no mask; a canvas of ordinary ids is denoised as a whole against an
  encoded prefix.

Shapes: B batch, T new positions, S cached positions, L canvas, E hidden width, V vocabulary, H heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.unmask import Threshold, UnmaskPolicy

__all__ = [
    "Attention",
    "CanvasFamily",
    "Family",
    "FamilyTraits",
    "LayerKV",
    "PromptBlocks",
    "Shift",
]

Attention = Literal["bidirectional", "block_causal", "canvas"]
Shift = Literal["none", "previous", "within_block"]
PromptBlocks = Literal["from_start", "to_end", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Facts of a loaded model."""

    name: str
    """The family: `llada`, `sdar`, `router`."""
    vocab_size: int
    mask_id: int | None
    """The id that masked positions hold, never written; None for canvas models."""
    eos_ids: tuple[int, ...]
    """Any of these ends a reply."""
    pad_id: int | None = None
    block_len: int
    """L: positions denoised together. Fixed for block-causal and canvas models; the default for bidirectional ones."""
    sub_block_len: int | None = None
    """Block-causal models whose authors fill a block in smaller parts, one after the other (Fast-dLLM v2)."""
    context_len: int
    """Prompt and reply together, in tokens."""
    attention: Attention = "block_causal"
    """`bidirectional`: every position sees all. `block_causal`: a position sees earlier blocks and its own.
    `canvas`: a causal prefix, and a canvas that sees it and itself."""
    shift: Shift = "none"
    """Which hidden state scores position i: its own; the one at i - 1 (`previous`; position 0 keeps its own); or the
    one at i - 1, where the first token of a block is the likeliest by the block before and not denoised
    (`within_block`, Fast-dLLM v2)."""
    prompt_blocks: PromptBlocks = "from_start"
    """Block-causal models: where the prompt's blocks lie. `from_start`: counted from position 0, so the reply begins
    inside the prompt's last block. `to_end`: the first is cut short, so that the reply begins a block (BD3-LM
    sampling). `whole`: the prompt is one segment that sees itself in both directions (the router)."""
    delete_id: int | None = None
    """Predicted where a position should go (LLaDA2.2); never written."""
    insert_id: int | None = None
    """Predicted where a mask should come before a position (LLaDA2.2, there `split`); never written."""
    edits: bool = False
    """Whether the model was trained to replace tokens that are committed (LLaDA2.1)."""
    policy: UnmaskPolicy = field(default_factory=Threshold)
    """The authors' default. Canvas models have their own schedule and ignore it."""


class Family(Protocol):
    """A mask model: scores what it is given, with exactly the visibility it is given."""

    @property
    def traits(self) -> FamilyTraits:
        """Facts of the loaded model."""
        ...

    @property
    def device(self) -> torch.device:
        """Where ids, positions and masks are expected."""
        ...

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, Sequence[LayerKV]]:
        """Run new positions beside cached ones; `past` is not changed.

        ids, positions [B, T] int64. mask [B, 1, T, S + T] bool, true where the key is visible to the query; every
        query sees something. past: one [B, H, S, D] pair per layer, or empty when S = 0; its columns may be padding
        that the mask hides, and the free ones of a `HeldKV` may be written. -> hidden [B, T, E] and the new positions'
        own pairs, [B, H, T, D] per layer.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Hidden [..., E] as `run` gave it -> raw logits [..., V] float32, unshifted."""
        ...


class CanvasFamily(Protocol):
    """A renoising model: a causal encoder fills the cache, a decoder scores a canvas against it."""

    @property
    def traits(self) -> FamilyTraits:
        """Facts of the loaded model; `block_len` is the canvas."""
        ...

    @property
    def device(self) -> torch.device:
        """Where ids, positions and masks are expected."""
        ...

    def encode(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> Sequence[LayerKV]:
        """Keys and values of new positions: as `Family.run`, without hidden states.

        The mask is causal and hides padding; windows of sliding layers are the family's to add (column n of the past
        is position n).
        """
        ...

    def decode(
        self,
        canvas: Tensor,
        *,
        positions: Tensor,
        mask: Tensor,
        past: Sequence[LayerKV],
        conditioning: Tensor | None,
        conditioned: Tensor | None,
    ) -> Tensor:
        """Score a canvas; nothing is stored.

        canvas, positions [B, L] int64, mask [B, 1, L, S + L] bool. conditioning [B, L, V]: the processed logits of the
        step before; conditioned [B] bool: the rows that have one, the others are in their first step. Both are None
        where no row has one. -> raw logits [B, L, V] float32.
        """
        ...
