"""What differs between versions of transformers, from 5.12 on: the only place that knows.

- `past_key_values` is called `cache` from 5.24 on. `Cache.crop`, which changed its meaning, is not needed: a cache
  object of ours lives for one call.
- The experts of a GLM-4 MoE are chosen by its router module from 5.23 on, by the layer before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.utils import logging

from agentdiff.engine.cache import HeldKV, LayerKV
from agentdiff.engine.families.compiled import has_graphs

Route = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Hidden states [..., E] -> chosen experts [N, K] int64 and their weights [N, K]."""


class Behind(DynamicLayer):
    """One layer's cache for one pass: what came before is read, what the pass adds is kept apart."""

    def __init__(self, past: LayerKV | None) -> None:
        super().__init__()
        self.past = past
        self.own: LayerKV | None = None
        self.is_initialized = True

    def update(  # pyright: ignore[reportIncompatibleMethodOverride] - later arguments differ by version
        self, key_states: Tensor, value_states: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """The past followed by the given states, as the attention wants them."""
        self.own = LayerKV(key_states, value_states)
        if self.past is None:
            return key_states, value_states
        if isinstance(self.past, HeldKV) and self.past.keys.device == key_states.device:
            start, whole = self.past.keys.shape[2], self.past.whole
            whole.keys[:, :, start:] = key_states
            whole.values[:, :, start:] = value_states
            return whole.keys, whole.values
        keys, values = (held.to(key_states.device) for held in self.past)
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)

    def get_seq_length(self) -> int:
        """Positions before this pass."""
        return 0 if self.past is None else self.past.keys.shape[2]


def run_decoder(
    decoder: nn.Module,
    ids: Tensor,
    *,
    positions: Tensor,
    mask: Tensor | dict[str, Tensor],
    past: Sequence[LayerKV],
    layers: int,
) -> tuple[Tensor, list[LayerKV]]:
    """Run a decoder of so many layers without its head; `past` is not changed.

    ids, positions [B, T] int64, mask [B, 1, T, S + T] as the attention implementation wants it -> (hidden [B, T, E],
    own keys and values per layer).
    """
    if has_graphs(decoder):
        past = [LayerKV(*kv) for kv in past]
    behind = [Behind(kv) for kv in past] or [Behind(None) for _ in range(layers)]
    output = decoder(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        use_cache=True,
        **{cache_argument(type(decoder)): Cache(layers=[*behind])},
    )
    own: list[LayerKV] = []
    for layer in behind:
        assert layer.own is not None
        own.append(layer.own)
    return output.last_hidden_state, own


def cached(decoder: nn.Module, past: Sequence[LayerKV]) -> dict[str, Cache]:
    """Keys and values that a decoder reads and leaves as they are, as the argument it takes them by."""
    layers: list[Any] = []
    for kv in past:
        layer = DynamicLayer()
        layer.keys, layer.values = kv
        layer.is_initialized = True
        layers.append(layer)
    return {cache_argument(type(decoder)): Cache(layers=layers)}


@cache
def cache_argument(decoder: type[nn.Module]) -> str:
    """What a model calls the cache it is given."""
    return (
        "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    )


def load_stock(
    native: type[PreTrainedModel],
    config: Any,
    tensors: dict[str, Any],
    *,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> PreTrainedModel:
    """A stock model with the given (lazy) tensors, through transformers' own loader.

    options: of `from_pretrained`, by name.
    """
    with _no_progress_bar():
        return native.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, **options
        )


def load_stock_folder(
    native: type[PreTrainedModel], folder: Path, *, dtype: torch.dtype, options: dict[str, Any]
) -> PreTrainedModel:
    """A model from a folder that transformers wrote itself."""
    with _no_progress_bar():
        return native.from_pretrained(str(folder), dtype=dtype, local_files_only=True, **options)


@contextmanager
def _no_progress_bar() -> Generator[None]:
    showed = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if showed:
            logging.enable_progress_bar()


def tied_names(model: PreTrainedModel) -> set[str]:
    """Parameters that share another one's values."""
    return set(cast("dict[str, str] | None", model.all_tied_weights_keys) or {})


def replace_routing(mlp: Any, route: Route) -> None:
    """Let the layer `mlp` of a GLM-4 MoE choose its experts by `route`."""
    if hasattr(mlp, "route_tokens_to_experts"):  # it chooses by what its router returns
        mlp.gate.forward = _unchanged
        mlp.route_tokens_to_experts = route
        return

    def forward(hidden: Tensor) -> tuple[None, Tensor, Tensor]:
        indices, weights = route(hidden)
        return None, weights, indices

    mlp.gate.forward = forward


def _unchanged(hidden: Tensor) -> Tensor:
    return hidden
