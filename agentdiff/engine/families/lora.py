"""LoRA adapters (d1 and its kin) on a stock model, through peft.

An adapter is written against the module names of the published modelling code, so its names are renamed as those of the
checkpoint are; what that code keeps fused (`query_key_value` of LLaDA2) is split the same way.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentdiff.engine.families.keys import Renames, rename
from agentdiff.engine.weights import read_header
from agentdiff.errors import ConfigurationError

WEIGHT = re.compile(r"(?:base_model\.model\.)?(.*)\.(lora_[AB])\.weight")
QKV = ".qkv_proj"


def apply_adapter(
    model: PreTrainedModel, folder: Path, *, renames: Renames, merge: bool
) -> PreTrainedModel:
    """A model with an adapter's deltas.

    Args:
        model: Changed in place.
        folder: `adapter_config.json` and `adapter_model.safetensors`, as peft writes them.
        renames: Of the model's family.
        merge: Add the deltas to the weights, so that they cost nothing; not possible for quantised weights.

    Raises:
        ConfigurationError: peft is not installed, the folder is no adapter, or it does not fit the model.
    """
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError as error:
        raise ConfigurationError("adapters need peft: pip install peft") from error
    path = folder / "adapter_model.safetensors"
    if not (folder / "adapter_config.json").is_file() or not path.is_file():
        raise ConfigurationError(
            f"`{folder}` is no adapter: it needs adapter_config.json and adapter_model.safetensors"
        )
    tensors = adapter_tensors(path, model, renames)
    modules: set[str] = {name for name, _ in cast("Any", model).named_modules()}
    targets = sorted({name.rpartition(".lora_")[0] for name in tensors})
    if missing := [name for name in targets if name not in modules]:
        raise ConfigurationError(
            f"`{path}` changes `{missing[0]}`, which this model does not have as a module of its own"
        )
    config: Any = peft.PeftConfig.from_pretrained(str(folder))
    if config.rank_pattern or config.alpha_pattern:
        raise ConfigurationError(
            f"`{folder}`: ranks that differ by module (`rank_pattern`) cannot be loaded"
        )
    config.target_modules = targets
    config.exclude_modules = None
    config.inference_mode = True
    wrapped: Any = peft.PeftModel(model, config)
    prefixed = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    result: Any = peft.set_peft_model_state_dict(wrapped, prefixed)
    if result.unexpected_keys:
        raise ConfigurationError(f"`{path}` has unknown tensors: {result.unexpected_keys[0]}")
    return wrapped.merge_and_unload() if merge else model


def adapter_tensors(path: Path, model: PreTrainedModel, renames: Renames) -> dict[str, Tensor]:
    """The matrices of an adapter under the names of the stock model.

    Raises:
        ConfigurationError: It holds something other than LoRA matrices.
    """
    tensors: dict[str, Tensor] = {}
    for name, stored in read_header(path):
        match = WEIGHT.fullmatch(name)
        if match is None:
            raise ConfigurationError(
                f"`{path}` holds `{name}`; only LoRA matrices can be loaded, not whole modules"
            )
        module = rename(f"{match[1]}.weight", renames).removesuffix(".weight")
        tensor = stored.whole()[...]
        if not module.endswith(QKV):
            tensors[f"{module}.{match[2]}.weight"] = tensor
            continue
        parts = [module.removesuffix(QKV) + f".{part}_proj" for part in "qkv"]
        split = [tensor] * len(parts)
        if match[2] == "lora_B":
            rows = [cast("nn.Linear", model.get_submodule(part)).out_features for part in parts]
            split = torch.split(tensor, rows)
        for part, own in zip(parts, split, strict=True):
            tensors[f"{part}.{match[2]}.weight"] = own.contiguous()
    return tensors
