"""Tiny random models: real attention, real caches, no weights on disk, no transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agentdiff.constraint import Vocabulary
from agentdiff.engine import FamilyTraits
from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.router import RouterFamily
from agentdiff.engine.families.router_model import RouterModel, RouterShape, rotary, rotate
from agentdiff.engine.families.signatures import Signatures

MASK, END = 0, 1
PIECES: list[bytes | None] = [
    None,
    None,
    *(bytes([b]) for b in range(32, 127)),
    b'{"',
    b'":',
    b'"}',
    b"true",
]
VOCABULARY = Vocabulary(PIECES, (END,))


def toy_router(
    *,
    vocab_size: int = len(PIECES),
    seed: int = 0,
    sharpness: float = 30.0,
    slots: bool = False,
) -> RouterModel:
    """A random two-layer router; `sharpness` scales its logits so that thresholds matter."""
    torch.manual_seed(seed)
    shape = RouterShape(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        slots=slots,
    )
    model = RouterModel(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.2)
        model.norm.weight.mul_(sharpness**0.5)
        model.pointer_gate.bias.fill_(-2.0)
    return model


def toy_traits(**changes: Any) -> FamilyTraits:
    """Traits of the models here; keyword arguments change them."""
    facts: dict[str, Any] = {
        "name": "toy",
        "vocab_size": len(PIECES),
        "mask_id": MASK,
        "eos_ids": (END,),
        "block_len": 8,
        "context_len": 512,
    }
    return FamilyTraits(**{**facts, **changes})


def toy_family(*, block_len: int = 8, seed: int = 0) -> RouterFamily:
    """The random router over single characters, with slots: a prompt that begins with `<` lists tools up to a `>`."""
    traits = toy_traits(name="router", block_len=block_len, prompt_blocks="whole")
    ids = {piece.decode(): token for token, piece in enumerate(PIECES) if piece is not None}
    signatures = Signatures(ids | {"<|tools|>": ids["<"], "<|user|>": ids[">"], "Ċ": ids["~"]})
    return RouterFamily(toy_router(seed=seed, slots=True), traits, signatures=signatures)


class ToyModel:
    """A random transformer of two layers: `Family` and `CanvasFamily` at once, by its traits."""

    def __init__(
        self, traits: FamilyTraits | None = None, *, seed: int = 0, width: int = 32
    ) -> None:
        self.traits = traits or toy_traits()
        self.device = torch.device("cpu")
        source = torch.Generator().manual_seed(seed)

        def weights(rows: int, columns: int, scale: float = 1.5) -> Tensor:
            return torch.randn(rows, columns, generator=source) * scale / math.sqrt(columns)

        self.embed = torch.randn(self.traits.vocab_size, width, generator=source)
        self.layers = [
            (weights(3 * width, width), weights(width, width), weights(width, width))
            for _ in range(2)
        ]
        self.out = weights(self.traits.vocab_size, width, 3.0)
        self.pushed: list[tuple[int, ...]] = []
        """Shapes of the passes so far."""

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, list[LayerKV]]:
        """See `Family.run`."""
        self.pushed.append(tuple(ids.shape))
        return self._run(self.embed[ids], positions, mask, past)

    def head(self, hidden: Tensor) -> Tensor:
        """See `Family.head`."""
        return hidden @ self.out.T

    def encode(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> list[LayerKV]:
        """See `CanvasFamily.encode`."""
        return self.run(ids, positions=positions, mask=mask, past=past)[1]

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
        """See `CanvasFamily.decode`."""
        x = self.embed[canvas]
        if conditioning is not None and conditioned is not None:
            x = x + conditioning.softmax(-1) @ self.embed * conditioned[:, None, None]
        self.pushed.append(tuple(canvas.shape))
        return self.head(self._run(x, positions, mask, past)[0])

    def _run(
        self, x: Tensor, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, list[LayerKV]]:
        batch, length, width = x.shape
        cos, sin = rotary(positions, head_dim=width // 2, theta=100.0, dtype=x.dtype)
        own: list[LayerKV] = []
        for n, (qkv, up, down) in enumerate(self.layers):
            heads = (F.layer_norm(x, (width,)) @ qkv.T).view(batch, length, 3, 2, width // 2)
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            own.append(LayerKV(rotate(key, cos, sin), value))
            keys, values = own[-1]
            if past:
                keys = torch.cat([past[n].keys, keys], 2)
                values = torch.cat([past[n].values, values], 2)
            mixed = F.scaled_dot_product_attention(
                rotate(query, cos, sin), keys, values, attn_mask=mask
            )
            x = x + mixed.transpose(1, 2).reshape(batch, length, width)
            x = x + torch.tanh(F.layer_norm(x, (width,)) @ up.T) @ down.T
        return F.layer_norm(x, (width,)), own
