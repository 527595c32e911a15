"""The exact block cache: keys and values of everything that is final, one value per sequence.

In a block-causal model a finished block never sees what follows it, so its keys and values are computed once and kept
(exact: cached equals uncached). A prefix is never changed in place; appending a block makes a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerKV(NamedTuple):
    """Keys and values of one layer: [B, H, S, D] each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Prefix:
    """Everything final of one sequence, as the model needs it (B = 1 in every tensor)."""

    layers: tuple[LayerKV, ...]
    length: int
    """S: positions held."""
    extra: tuple[Tensor, ...] = ()
    """What a family keeps beside keys and values (the router: pointer keys [1, P, E] and prompt ids [1, P])."""


def extend(prefix: Prefix, layers: Sequence[LayerKV]) -> Prefix:
    """`prefix` followed by one more block; the given prefix is not changed."""
    joined = tuple(
        LayerKV(torch.cat([old.keys, new.keys], 2), torch.cat([old.values, new.values], 2))
        for old, new in zip(prefix.layers, layers, strict=True)
    )
    return Prefix(joined, prefix.length + layers[0].keys.shape[2], prefix.extra)


def stack(prefixes: Sequence[Prefix]) -> tuple[tuple[LayerKV, ...], Tensor]:
    """Prefixes of different lengths as one batch, padded on the right.

    Returns layers of [B, H, S, D] and [B, S] bool, false on padding.
    """
    longest = max(prefix.length for prefix in prefixes)
    if len(prefixes) == 1:  # nothing to pad, so nothing to copy
        layers = prefixes[0].layers
        return layers, torch.ones(1, longest, dtype=torch.bool, device=layers[0].keys.device)

    def padded(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0, 0, 0, longest - tensor.shape[2]))

    layers = tuple(
        LayerKV(
            torch.cat([padded(p.layers[n].keys) for p in prefixes]),
            torch.cat([padded(p.layers[n].values) for p in prefixes]),
        )
        for n in range(len(prefixes[0].layers))
    )
    lengths = torch.tensor([p.length for p in prefixes], device=layers[0].keys.device)
    return layers, torch.arange(longest, device=lengths.device) < lengths[:, None]
