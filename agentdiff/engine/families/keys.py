"""Stored tensors to the parameters of a stock model: renamed, split or fused, and checked before anything is read.

A family gives renames only. What the published checkpoints pack differently is recognised by the names that follow:

- `….qkv_proj.weight` holds the rows of `q_proj`, `k_proj` and `v_proj`, one after the other (LLaDA2);
- `….experts.N.{gate,up,down}_proj.weight` are single experts, which transformers 5 keeps fused as `gate_up_proj`
  [experts, 2 · inner, width] and `down_proj` [experts, width, inner].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from agentdiff.engine.weights import Assembled, Part, Stored
from agentdiff.errors import ConfigurationError

Shape = tuple[int, ...]
Renames = Sequence[tuple[str, str]]
"""Regular expressions and replacements, applied to a stored name one after the other; an empty result drops it."""

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
FUSED_QKV = re.compile(r"(.*)\.qkv_proj\.(weight|bias)")


def rename(name: str, renames: Renames) -> str:
    """The name a stored tensor has in the stock model, or an empty one if it is not needed there."""
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def arrange(
    stored: Mapping[str, Stored],
    expected: Mapping[str, Shape],
    *,
    renames: Renames,
    tied: Iterable[str] = (),
    dtype: torch.dtype,
    folder: Path,
) -> dict[str, Assembled]:
    """Say for each parameter which stored values it takes.

    Args:
        stored: The tensors of the checkpoint.
        expected: Names and shapes that the stock model has.
        renames: See `Renames`.
        tied: Parameters that share another one's values; they are neither wanted nor taken.
        dtype: The type of matrices; vectors keep theirs, since some must stay float32.
        folder: For the messages.

    Raises:
        ConfigurationError: Tensors are missing, unknown, or of a shape that the config does not ask for.
    """
    shared = set(tied)
    parts: dict[str, list[Part]] = {}
    types: dict[str, torch.dtype] = {}
    unknown: list[str] = []
    for name, tensor in stored.items():
        target = rename(name, renames)
        if not target or target in shared:
            continue
        taken = _parts(target, tensor, expected, folder=folder, name=name)
        if not taken:
            unknown.append(name)
        for parameter, part in taken:
            parts.setdefault(parameter, []).append(part)
            is_matrix = len(expected[parameter]) > 1 and tensor.dtype.is_floating_point
            types[parameter] = dtype if is_matrix else tensor.dtype
    assembled = {
        name: Assembled(shape=expected[name], dtype=types[name], parts=found)
        for name, found in parts.items()
    }
    missing = [
        name
        for name in expected
        if name not in shared and not (name in assembled and assembled[name].is_complete)
    ]
    for what, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            raise ConfigurationError(
                f"`{folder}` {what} tensors: {', '.join(names[:3])}"
                + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                + "; is its config.json that of these weights?"
            )
    return assembled


def _parts(
    target: str, tensor: Stored, expected: Mapping[str, Shape], *, folder: Path, name: str
) -> list[tuple[str, Part]]:
    """The parameters that a stored tensor fills, wholly or in part."""
    if target in expected:
        _check(tensor.shape, expected[target], folder=folder, name=name)
        return [(target, Part(source=tensor, count=tensor.numel))]
    if match := FUSED_QKV.fullmatch(target):
        names = [f"{match[1]}.{part}_proj.{match[2]}" for part in "qkv"]
        if all(part in expected for part in names):
            shapes = [expected[part] for part in names]
            rows = sum(shape[0] for shape in shapes)
            _check(tensor.shape, (rows, *shapes[0][1:]), folder=folder, name=name)
            filled: list[tuple[str, Part]] = []
            skip = 0
            for part, shape in zip(names, shapes, strict=True):
                count = tensor.numel // rows * shape[0]
                filled.append((part, Part(source=tensor, count=count, skip=skip)))
                skip += count
            return filled
    if match := EXPERT.fullmatch(target):
        number, kind = int(match[2]), match[3]
        fused = f"{match[1]}.{'down_proj' if kind == 'down' else 'gate_up_proj'}"
        if fused in expected and number < expected[fused][0]:
            _, rows, columns = expected[fused]
            own = rows if kind == "down" else rows // 2
            _check(tensor.shape, (own, columns), folder=folder, name=name)
            place = (number * rows + (own if kind == "up" else 0)) * columns
            return [(fused, Part(source=tensor, count=tensor.numel, place=place))]
    return []


def _check(shape: Shape, wanted: Shape, *, folder: Path, name: str) -> None:
    if shape != wanted:
        raise ConfigurationError(
            f"`{folder}`: `{name}` has the shape {shape}, but config.json asks for {wanted}"
        )
