"""A checkpoint, a folder or a hub id, to a family: by what its `config.json` says it is, or by what the caller says."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentdiff.engine.families.base import Attention, Shift
from agentdiff.engine.families.compiled import compile_module
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.stock import LoadOptions, to_dtype
from agentdiff.engine.families.table import FAMILIES, FamilySpec
from agentdiff.engine.families.traits import TraitOptions
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.engine.families.base import CanvasFamily, Family


def load_family(
    source: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    adapter: str | Path | None = None,
    family: str | None = None,
    attention: Attention | None = None,
    shift: Shift | None = None,
    block_len: int | None = None,
    mask_id: int | None = None,
    attn_implementation: str = "sdpa",
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[Any, Any] | None = None,
    offload_folder: str | Path | None = None,
    quantization_config: Any = None,
    torch_compile: str | None = None,
) -> Family | CanvasFamily:
    """Load a checkpoint.

    Args:
        source: A folder with `config.json` and safetensors, or a hub id.
        device: Where the model runs; None and "auto" take the GPU where there is one, else the CPU.
        dtype: "auto" is float32 on a CPU, elsewhere what the config names.
        adapter: A LoRA adapter (folder or hub id) that is merged into the weights; needs peft.
        family: A name from the table, for checkpoints whose config does not say what they are.
        attention: For families that come in both kinds (A2D).
        shift: For checkpoints that were trained with another shift than their family (A2D).
        block_len: Where the config names none, or the model was trained with several.
        mask_id: Where no file of the checkpoint names it.
        attn_implementation: As transformers names them: "sdpa" or "eager".
        device_map: Several devices, as transformers takes it; needs accelerate.
        max_memory: Goes with `device_map`.
        offload_folder: Goes with `device_map`.
        quantization_config: As transformers takes it.
        torch_compile: A backend of `torch.compile` ("inductor") that stock models are compiled by when they are first
            run; where that fails they run as they are, which is said once. "reduce-overhead" is inductor with CUDA
            graphs, which are recorded for every thread that runs the model. None compiles nothing.

    Raises:
        ConfigurationError: No such checkpoint, one of a kind that is not known, a value of its config that is missing,
            contradictory or cannot be, or weights that do not fit it.
    """
    folder = find_checkpoint(source)
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigurationError(f"`{folder}` is not a checkpoint folder: it has no config.json")
    values = json.loads(path.read_text("utf-8"))
    asked = f"{source} {folder}"
    spec = find_spec(path, values, family, source=asked)
    if not spec.verified:
        warnings.warn(
            f"`{spec.name}` models are mapped from published code, but have not been compared with it number by number",
            stacklevel=2,
        )
    chosen = torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if device in (None, "auto") else device
    )
    module, _, name = spec.adapter.partition(":")
    if torch_compile is not None and not spec.native:
        raise ConfigurationError(
            f"`torch_compile` is for models of transformers, `{spec.name}` is none"
        )
    loaded = getattr(importlib.import_module(module), name)
    if spec.name == "router":
        try:
            return loaded.load(folder, values, device=chosen)
        except KeyError as error:
            raise ConfigurationError(f"`{path}` lacks the value {error.args[0]!r}") from error
    native = {
        "device_map": device_map,
        "max_memory": max_memory,
        "offload_folder": offload_folder,
        "quantization_config": quantization_config,
    }
    if attn_implementation not in ("sdpa", "eager"):
        raise ConfigurationError(
            f"`attn_implementation` must be 'sdpa' or 'eager', got {attn_implementation!r}"
        )
    options = LoadOptions(
        device=chosen,
        dtype=_dtype(dtype),
        adapter=None if adapter is None else find_checkpoint(adapter),
        traits=TraitOptions(
            mask_id=mask_id, block_len=block_len, attention=attention, shift=shift, source=asked
        ),
        attn_implementation=attn_implementation,
        native={name: value for name, value in native.items() if value is not None},
    )
    model = loaded.load(spec, Reading(path, values), options)
    if torch_compile is not None:
        for part in model.parts:
            compile_module(part, torch_compile)
    return model


def find_spec(
    path: Path, values: Mapping[str, Any], family: str | None = None, *, source: str = ""
) -> FamilySpec:
    """The row of the table for a config: by the given name, else by architecture, else by model type.

    source: the folder or hub id, which tells kinds apart that write the same config.

    Raises:
        ConfigurationError: There is none.
    """
    if family is not None:
        for spec in FAMILIES:
            if spec.name == family:
                return spec
        names = ", ".join(spec.name for spec in FAMILIES)
        raise ConfigurationError(f"`family` is {family!r}, which is not known; known are {names}")
    architectures: list[str] = values.get("architectures") or []
    model_type = values.get("model_type")
    for spec in FAMILIES:
        is_meant = not spec.source or re.search(spec.source, source.lower())
        if set(spec.architectures) & set(architectures) and (
            is_meant or model_type in spec.model_types
        ):
            return spec
    for spec in FAMILIES:
        if not architectures and model_type in spec.model_types:
            return spec
    names = ", ".join(spec.name for spec in FAMILIES)
    what = f"a model of type {model_type!r}" + (f" ({architectures[0]})" if architectures else "")
    raise ConfigurationError(
        f"`{path.parent}` holds {what}, which is not supported as it is; if it is one of {names} under another name, "
        f"pass that name as `family`"
    )


def find_checkpoint(source: str | Path) -> Path:
    """The folder of a checkpoint, or of a hub snapshot that is downloaded if need be.

    Raises:
        ConfigurationError: Neither a folder nor a hub id that can be had.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    name = str(source)
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise ConfigurationError(
            f"no checkpoint folder at `{source}`; give a folder or a hub id such as `owner/name`"
        )
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"`{source}` is not a folder here and could not be downloaded as a hub id "
            f"({type(error).__name__})"
        ) from error


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    return None if dtype == "auto" else to_dtype(dtype, "`dtype`")
