"""LLaDA2.x: a stock GLM-4 MoE, but for the block routing of LLaDA2.2.

There the experts are chosen in two steps (LLaDA2.2 technical report, section 2.2): a block admits the `expert_capacity`
experts with the highest score that any of its tokens gives them, and each token takes its best few among those. It
changes the logits, so it is part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.compat import replace_routing
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.stock import LoadOptions, StockFamily
from agentdiff.engine.families.table import FamilySpec


class BlockRouting:
    """How the tokens of one pass choose their experts; shared by all layers, told of each pass before it runs."""

    def __init__(self, *, capacity: int, chosen: int, normalised: bool, scale: float) -> None:
        self.capacity = capacity
        """C: experts that a block admits."""
        self.chosen = chosen
        """K: experts that a token takes."""
        self.normalised = normalised
        self.scale = scale
        self._group = torch.zeros(0, dtype=torch.int64)
        self._counts = torch.zeros(0, dtype=torch.bool)

    def begin(self, blocks: Tensor, mask: Tensor) -> None:
        """The next pass has these blocks.

        blocks [B, T]: each position's block; mask [B, 1, T, S + T] bool. A position that no other sees is padding,
        and does not speak for its block.
        """
        length = blocks.shape[1]
        own = mask[:, 0, :, -length:]
        others = own & ~torch.eye(length, dtype=torch.bool, device=own.device)
        same = blocks[:, :, None] == blocks[:, None, :]
        # A group is named by the first position of its block, so that no count has to leave the device.
        self._group = same.to(torch.uint8).argmax(-1)
        self._counts = others.any(1) | (same.sum(-1) == 1)

    def route(self, hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [..., E] -> chosen experts [N, K] int64 and their weights [N, K]."""
        rows, length = self._group.shape
        flat = hidden.reshape(rows * length, -1)
        scores = F.linear(flat.float(), weight.float()).sigmoid()
        biased = scores + bias
        experts = scores.shape[-1]
        counted = biased.view(rows, length, experts).masked_fill(
            ~self._counts[..., None], -torch.inf
        )
        index = self._group[..., None].expand(-1, -1, experts)
        best = torch.full_like(counted, -torch.inf).scatter_reduce(1, index, counted, "amax")
        admitted = torch.zeros_like(best, dtype=torch.bool).scatter(
            2, best.topk(self.capacity, dim=-1).indices, value=True
        )
        allowed = admitted.gather(1, index).view(rows * length, experts)
        chosen = biased.masked_fill(~allowed, -torch.inf).topk(self.chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.scale


class Llada2Family(StockFamily):
    """See `Family`. With block routing, a pass has to hold whole blocks."""

    routing: BlockRouting | None = None

    @classmethod
    def load(cls, spec: FamilySpec, reading: Reading, options: LoadOptions) -> Self:
        """See `StockFamily.load`."""
        family = super().load(spec, reading, options)
        if reading.get("expert_capacity") is not None:
            family.routing = BlockRouting(
                capacity=reading.count("expert_capacity"),
                chosen=reading.count("num_experts_per_tok"),
                normalised=reading.get("norm_topk_prob", True),
                scale=reading.get("routed_scaling_factor", 1.0),
            )
            if not family.routing.chosen <= family.routing.capacity <= reading.count("num_experts"):
                raise reading.wrong(
                    "expert_capacity", "it must lie between the experts of a token and all experts"
                )
            for layer in cast("Any", family.model.base_model).layers:
                if hasattr(layer.mlp, "gate"):
                    _install(layer.mlp, family.routing)
        return family

    def with_traits(self, traits: FamilyTraits) -> Self:
        """See `StockFamily.with_traits`."""
        family = super().with_traits(traits)
        family.routing = self.routing
        return family

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, Sequence[LayerKV]]:
        """See `Family.run`."""
        if self.routing is not None:
            self.routing.begin(positions // self._traits.block_len, mask)
        return super().run(ids, positions=positions, mask=mask, past=past)


def _install(mlp: Any, routing: BlockRouting) -> None:
    gate: nn.Module = mlp.gate

    def route(hidden: Tensor) -> tuple[Tensor, Tensor]:
        weight: Any = gate.weight
        bias: Any = gate.e_score_correction_bias
        return routing.route(hidden, weight, bias)

    replace_routing(mlp, route)
