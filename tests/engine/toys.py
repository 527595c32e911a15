"""A tiny random model of the embedded router's class: real attention, real caches, no weights on disk."""

from __future__ import annotations

import torch

from agentdiff.constraint import Vocabulary
from agentdiff.engine import FamilyTraits
from agentdiff.engine.families.router import RouterFamily, RouterModel, RouterShape

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
    *, vocab_size: int = len(PIECES), seed: int = 0, sharpness: float = 30.0
) -> RouterModel:
    """A random two-layer router; `sharpness` scales its logits so that thresholds matter."""
    torch.manual_seed(seed)
    shape = RouterShape(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
    )
    model = RouterModel(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.2)
        model.norm.weight.mul_(sharpness**0.5)
        model.pointer_gate.bias.fill_(-2.0)
    return model


def toy_family(*, block_len: int = 8, seed: int = 0) -> RouterFamily:
    """The random router over single characters."""
    model = toy_router(seed=seed)
    traits = FamilyTraits(
        name="router",
        vocab_size=model.shape.vocab_size,
        mask_id=MASK,
        eos_ids=(END,),
        block_len=block_len,
        context_len=512,
    )
    return RouterFamily(model, traits)
