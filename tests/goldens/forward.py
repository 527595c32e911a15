"""The forward cases of a golden folder, run through a family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from agentdiff.engine.families.base import CanvasFamily, Family

Tensors = dict[str, Tensor]


@torch.inference_mode()
def forward_differences(folder: Path, family: Family | CanvasFamily) -> Iterator[tuple[str, float]]:
    """Each case of `forward.safetensors`, and the largest difference of its logits.

    The cases that need a second family (the same weights under another mask) are among them: masks are given.
    """
    data = load_file(folder / "forward.safetensors")
    if family.traits.attention == "canvas":
        yield from _canvas_cases(data, cast("CanvasFamily", family))
        return
    family = cast("Family", family)
    for case in ("full", "left_pad", "block", "last_partial"):
        if f"{case}.input_ids" in data:
            yield case, _uncached(data, case, family)
    if "cached_block.range" in data:
        yield "cached_block", _cached_block(data, family)
    if "stale_cache.refresh_input_ids" in data:
        yield from _stale_cache(data, family)


def _uncached(data: Tensors, case: str, family: Family) -> float:
    ids = data[f"{case}.input_ids"]
    length = ids.shape[1]
    if f"{case}.mask" in data:
        mask = data[f"{case}.mask"].bool().expand(len(ids), length, length)[:, None]
    else:
        mask = data[f"{case}.attention_mask"].bool()[:, None, None].expand(-1, 1, length, -1)
    valid = mask[:, 0].any(-1) if f"{case}.mask" in data else mask[:, 0, 0]
    hidden, _ = family.run(ids, positions=data[f"{case}.position_ids"], mask=_open(mask), past=())
    return _largest(family.head(hidden)[valid], data[f"{case}.logits"][valid])


def _cached_block(data: Tensors, family: Family) -> float:
    """The positions before the block are encoded under the block mask, then the block alone against them."""
    ids = data["cached_block.input_ids"]
    start, end = data["cached_block.range"].tolist()
    rows = len(ids)
    mask = data["block.mask"].bool()
    mask = mask if mask.ndim == 3 else mask[None]
    mask = mask[:rows, :end, :end].expand(rows, -1, -1)[:, None]
    positions = data["block.position_ids"][:rows]
    _, past = family.run(
        ids[:, :start],
        positions=positions[:, :start],
        mask=_open(mask[:, :, :start, :start]),
        past=(),
    )
    hidden, _ = family.run(
        ids[:, start:end],
        positions=positions[:, start:end],
        mask=_open(mask[:, :, start:end]),
        past=past,
    )
    return _largest(family.head(hidden), data["cached_block.logits"])


def _stale_cache(data: Tensors, family: Family) -> Iterator[tuple[str, float]]:
    """Keys and values of one canvas, used after two tokens of it have changed: prefix and dual caches."""
    before, ids = data["stale_cache.refresh_input_ids"], data["stale_cache.input_ids"]
    length = ids.shape[1]
    start, end = data["stale_cache.block_range"].tolist()
    positions = torch.arange(length)[None]
    seen = torch.ones(1, 1, length, length, dtype=torch.bool)
    hidden, past = family.run(before, positions=positions, mask=seen, past=())
    yield "stale.refresh", _largest(family.head(hidden), data["stale_cache.refresh_logits"])
    kept = [type(kv)(*(held[:, :, :start] for held in kv)) for kv in past]
    hidden, _ = family.run(
        ids[:, start:], positions=positions[:, start:], mask=seen[:, :, start:], past=kept
    )
    yield "stale.prefix", _largest(family.head(hidden), data["stale_cache.prefix_logits"])
    kept = [
        type(kv)(*(torch.cat([held[:, :, :start], held[:, :, end:]], 2) for held in kv))
        for kv in past
    ]
    hidden, _ = family.run(
        ids[:, start:end],
        positions=positions[:, start:end],
        mask=seen[:, :, start:end],
        past=kept,
    )
    yield "stale.dual", _largest(family.head(hidden), data["stale_cache.dual_logits"])


def _canvas_cases(data: Tensors, family: CanvasFamily) -> Iterator[tuple[str, float]]:
    """The encoder's cache, filled in one pass and in two, and the decoder without and with self-conditioning."""
    ids, canvas = data["encoder.input_ids"], data["decoder.input_ids"]
    length, half = ids.shape[1], ids.shape[1] // 2
    positions = torch.arange(length).expand(len(ids), -1)
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(len(ids), 1, -1, -1)
    first = family.encode(
        ids[:, :half], positions=positions[:, :half], mask=causal[:, :, :half, :half], past=()
    )
    rest = family.encode(
        ids[:, half:], positions=positions[:, half:], mask=causal[:, :, half:], past=first
    )
    whole = family.encode(ids, positions=positions, mask=causal, past=())
    parts = [
        type(one)(*(torch.cat(pair, 2) for pair in zip(one, other, strict=True)))
        for one, other in zip(first, rest, strict=True)
    ]
    open_mask = torch.ones(
        len(canvas), 1, canvas.shape[1], length + canvas.shape[1], dtype=torch.bool
    )
    for name, past in (("decoder", whole), ("decoder, in two", parts)):
        logits = family.decode(
            canvas,
            positions=data["decoder.position_ids"],
            mask=open_mask,
            past=past,
            conditioning=None,
            conditioned=None,
        )
        yield name, _largest(logits, data["decoder.logits"])
    logits = family.decode(
        canvas,
        positions=data["decoder.position_ids"],
        mask=open_mask,
        past=whole,
        conditioning=data["decoder.logits"],
        conditioned=torch.ones(len(canvas), dtype=torch.bool),
    )
    yield "decoder, conditioned", _largest(logits, data["decoder.logits_self_conditioned"])


def _open(mask: Tensor) -> Tensor:
    """The mask with something visible to every query: padded ones, whose logits nobody reads, see all."""
    return mask | ~mask.any(-1, keepdim=True)


def _largest(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max())
