"""A checkpoint folder to a family, by the `model_type` of its `config.json`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.engine.families.base import Family

FAMILIES = {
    "agentdiff_router": "agentdiff.engine.families.router:RouterFamily",
    "sdar": "agentdiff.engine.families.sdar:SdarFamily",
}
"""`model_type` -> where its family is; imported on use."""


def load_family(folder: Path, *, device: str | torch.device | None = None) -> Family:
    """Load a checkpoint folder.

    Args:
        folder: Holds `config.json` and safetensors.
        device: Where the model runs; by default the GPU where there is one, else the CPU.

    Raises:
        ConfigurationError: No config, an unknown `model_type`, or a required value is missing.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigurationError(f"`{folder}` is not a checkpoint folder: it has no config.json")
    config = json.loads(path.read_text("utf-8"))
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ConfigurationError(
            f"`{folder}` holds a model of type {model_type!r}, which is not supported; "
            f"supported are {', '.join(sorted(FAMILIES))}"
        )
    module, _, name = FAMILIES[model_type].partition(":")
    family = getattr(importlib.import_module(module), name)
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        return family.load(folder, config, device=chosen)
    except KeyError as error:
        raise ConfigurationError(f"`{path}` lacks the value {error.args[0]!r}") from error
