"""Running a stock transformers decoder over a prefix of our own, on transformers 5.12 and newer.

The only place that knows how versions differ: `past_key_values` is called `cache` from 5.24 on.
`Cache.crop`, which changed its meaning, is not needed: a cache object lives for one call.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache

from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from agentdiff.engine.cache import LayerKV


def run_decoder(
    decoder: nn.Module, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
) -> tuple[Tensor, list[LayerKV]]:
    """Run a decoder without its head; `past` is not changed.

    ids, positions [B, T] int64, mask additive [B, 1, T, S + T] -> (hidden [B, T, E], own keys and
    values per layer).
    """
    layers = [DynamicLayer() for _ in past]
    for layer, kv in zip(layers, past, strict=True):
        layer.lazy_initialization(kv.keys, kv.values)
        layer.keys, layer.values = kv
    held = {_cache_argument(type(decoder)): Cache(layers=[*layers]), "use_cache": True}
    output = decoder(input_ids=ids, position_ids=positions, attention_mask=mask, **held)
    own: list[LayerKV] = []
    for layer, kv in zip(layers, past, strict=True):
        assert layer.keys is not None
        assert layer.values is not None
        start = kv.keys.shape[2]
        own.append(LayerKV(layer.keys[:, :, start:], layer.values[:, :, start:]))
    return output.last_hidden_state, own


@cache
def _cache_argument(decoder: type[nn.Module]) -> str:
    return (
        "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    )
