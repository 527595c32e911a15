"""The golden families on another device and in another precision: how far their logits move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from agentdiff.engine import load_family

GOLDENS = Path(__file__).parent.parent / "goldens"
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.06}
"""Of the mean difference, as a share of the mean size of a logit. bfloat16 keeps 8 bits of each number, which
moves these logits by 0.01 to 0.03."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """One family in one precision."""

    family: str
    dtype: str
    difference: float
    """The mean difference of a logit, as a share of the mean size of one."""
    agreement: float
    """The share of positions whose likeliest token is the same."""

    @property
    def is_good(self) -> bool:
        return self.difference <= TOLERANCE[self.dtype]


def parity(names: Sequence[str], *, device: str) -> Iterator[Parity]:
    """Each golden family in float32 and bfloat16 on a device, against its recorded logits (float32, CPU)."""
    for name in names:
        data = load_file(GOLDENS / name / "forward.safetensors")
        for dtype in TOLERANCE:
            family: Any = load_family(GOLDENS / name, device=device, dtype=dtype)
            is_canvas = family.traits.attention == "canvas"
            ours, theirs = (_canvas if is_canvas else _masked)(family, data)
            yield Parity(
                family=family.traits.name,
                dtype=dtype,
                difference=float((ours - theirs).abs().mean() / theirs.abs().mean()),
                agreement=float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
            )


@torch.inference_mode()
def _masked(family: Any, data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits of a mask model over a whole sequence, ours and the recorded ones."""
    case = "full" if "full.logits" in data else "block"
    ids, theirs = data[f"{case}.input_ids"], data[f"{case}.logits"]
    length = ids.shape[1]
    mask = torch.ones(len(ids), 1, length, length, dtype=torch.bool)
    if case == "block":
        mask = data["block.mask"].bool().expand(len(ids), length, length)[:, None]
    valid = mask[:, 0].any(-1)
    where = family.device
    hidden, _ = family.run(
        ids.to(where),
        positions=data[f"{case}.position_ids"].to(where),
        mask=(mask | ~mask.any(-1, keepdim=True)).to(where),
        past=(),
    )
    return family.head(hidden).cpu()[valid], theirs[valid]


@torch.inference_mode()
def _canvas(family: Any, data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits of a canvas against its encoded prompt, ours and the recorded ones."""
    ids, canvas = data["encoder.input_ids"], data["decoder.input_ids"]
    rows, length = ids.shape
    where = family.device
    causal = torch.ones(rows, 1, length, length, dtype=torch.bool).tril()
    past = family.encode(
        ids.to(where),
        positions=torch.arange(length).expand(rows, -1).to(where),
        mask=causal.to(where),
        past=(),
    )
    ours = family.decode(
        canvas.to(where),
        positions=data["decoder.position_ids"].to(where),
        mask=torch.ones(
            rows, 1, canvas.shape[1], length + canvas.shape[1], dtype=torch.bool, device=where
        ),
        past=past,
        conditioning=None,
        conditioned=None,
    )
    return ours.cpu(), data["decoder.logits"]
