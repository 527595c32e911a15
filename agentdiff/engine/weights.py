"""Reading and writing the tensors of a checkpoint folder: safetensors in shards, int8 if wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from agentdiff.errors import ConfigurationError

INDEX = "model.safetensors.index.json"
SCALE = ".row_scale"
"""Suffix of the scale tensor [rows] that belongs to an int8 matrix [rows, columns]."""


def stream_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint folder as they are stored, one at a time, shard by shard.

    Raises:
        ConfigurationError: There is no `model.safetensors` and no index of shards.
    """
    index = folder / INDEX
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        shards = ["model.safetensors"]
    else:
        raise ConfigurationError(f"`{folder}` has no `model.safetensors` and no `{INDEX}`")
    for shard in shards:
        opened: Any = safetensors.safe_open(folder / shard, framework="pt")
        with opened as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, int8 matrices as float32.

    Raises:
        ConfigurationError: There is no `model.safetensors` and no index of shards.
    """
    tensors = dict(stream_weights(folder))
    for scale in [name for name in tensors if name.endswith(SCALE)]:
        matrix = scale.removesuffix(SCALE)
        tensors[matrix] = tensors[matrix].float() * tensors.pop(scale)[:, None]
    return tensors


def quantize_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with one float32 scale for each row; vectors stay float32."""
    quantized: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape[0] <= 2:
            quantized[name] = tensor.float().contiguous()
            continue
        scale = tensor.float().abs().amax(1).clamp(min=1e-12) / 127
        quantized[name] = torch.round(tensor.float() / scale[:, None]).to(torch.int8).contiguous()
        quantized[name + SCALE] = scale
    return quantized


def write_weights(tensors: Mapping[str, Tensor], folder: Path, *, shard_bytes: int) -> list[str]:
    """Write shards of at most `shard_bytes` with their index; returns the file names."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        safetensors.torch.save_file(shard, folder / name, metadata={"format": "pt"})
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    return names
