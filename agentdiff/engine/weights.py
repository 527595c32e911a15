"""The tensors of a checkpoint folder: safetensors in shards, read piece by piece; int8 if wanted.

A checkpoint may be larger than half of the memory, so nothing here maps a file or holds two copies of a tensor:
`open_checkpoint` reads headers only, and an `Assembled` tensor is filled from the file in small pieces, converted on
the way, when somebody takes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from agentdiff.errors import ConfigurationError

INDEX = "model.safetensors.index.json"
SCALE = ".row_scale"
"""Suffix of the scale tensor [rows] that belongs to an int8 matrix [rows, columns]."""
PIECE_BYTES = 8 * 2**20
"""Bytes read at once where a tensor is converted."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor in a safetensors file; nothing of it is in memory."""

    file: Path
    start: int
    """The byte where its data begin."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)

    def whole(self) -> Assembled:
        """This tensor alone, unconverted."""
        part = Part(source=self, count=self.numel)
        return Assembled(shape=self.shape, dtype=self.dtype, parts=[part])

    def read_into(self, out: Tensor, *, skip: int = 0) -> None:
        """Fill a contiguous tensor on the CPU with the values from number `skip` on, converted to its type."""
        flat = out.view(-1)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start + skip * self.dtype.itemsize)
            if self.dtype == flat.dtype:
                _fill(file, flat, self.file)
                return
            step = max(1, PIECE_BYTES // self.dtype.itemsize)
            for first in range(0, flat.numel(), step):
                part = flat[first : first + step]
                piece = torch.empty(part.numel(), dtype=self.dtype)
                _fill(file, piece, self.file)
                part.copy_(piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where some values of a stored tensor go: flat positions, in values."""

    source: Stored
    count: int
    skip: int = 0
    """The first one in the source."""
    place: int = 0
    """The first one in the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A tensor put together from stored ones when it is taken: `tensor[...]`, as transformers takes a lazy one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Sequence[Part]

    @property
    def is_complete(self) -> bool:
        """Whether the parts cover it."""
        return sum(part.count for part in self.parts) == math.prod(self.shape)

    def __getitem__(self, whole: object) -> Tensor:
        out = torch.empty(self.shape, dtype=self.dtype)
        flat = out.view(-1)
        for part in self.parts:
            part.source.read_into(flat[part.place : part.place + part.count], skip=part.skip)
        return out


def open_checkpoint(folder: Path) -> dict[str, Stored]:
    """The tensors of a checkpoint folder by name; only the headers of its files are read.

    Raises:
        ConfigurationError: There is no `model.safetensors` and no index of shards, a shard is missing, or a file is
            no safetensors file.
    """
    index = folder / INDEX
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        shards = ["model.safetensors"]
    else:
        raise ConfigurationError(
            f"`{folder}` has no `model.safetensors` and no `{INDEX}`; only safetensors are loaded"
        )
    return {name: tensor for shard in shards for name, tensor in read_header(folder / shard)}


def read_header(path: Path) -> list[tuple[str, Stored]]:
    """The tensors of one safetensors file.

    Raises:
        ConfigurationError: The file is missing, or is not what its name says.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError
            header: dict[str, Any] = json.loads(file.read(length))
        return [
            (
                name,
                Stored(
                    file=path,
                    start=8 + length + entry["data_offsets"][0],
                    dtype=DTYPES[entry["dtype"]],
                    shape=tuple(entry["shape"]),
                ),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except FileNotFoundError:
        raise ConfigurationError(f"`{path}` is missing; download the checkpoint again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"`{path}` is no safetensors file that can be read") from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, int8 matrices as float32.

    Raises:
        ConfigurationError: See `open_checkpoint`.
    """
    tensors: dict[str, Tensor] = {}
    for name, stored in open_checkpoint(folder).items():
        tensors[name] = torch.empty(stored.shape, dtype=stored.dtype)
        stored.read_into(tensors[name])
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


def _fill(file: Any, tensor: Tensor, path: Path) -> None:
    """Read a flat tensor's bytes from an unbuffered file."""
    wanted = (
        memoryview(cast("Any", tensor.view(torch.uint8).numpy()))
        if tensor.numel()
        else memoryview(b"")
    )
    while wanted:
        count = file.readinto(wanted)
        if not count:
            raise ConfigurationError(f"`{path}` ends too early; download the checkpoint again")
        wanted = wanted[count:]
