"""What a model on this machine would run on."""

from __future__ import annotations

import torch

from agentdiff.embedded.bench import machine


def device() -> str:
    """The GPU that models are loaded to, with its free memory; the processor where there is none."""
    if not torch.cuda.is_available():
        return machine()
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
