"""`torch.compile` around the decoders of stock models: an option that may fail without harm."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from agentdiff.errors import ConfigurationError

T = TypeVar("T")


def compile_module(module: nn.Module, backend: str) -> None:
    """Let a module be compiled by a backend of `torch.compile` when it is first called, for shapes of all sizes.

    Raises:
        ConfigurationError: There is no such backend.
    """
    known: list[str] = torch.compiler.list_backends(())
    if backend not in known:
        raise ConfigurationError(
            f"`torch_compile` is {backend!r}, which is no backend of torch.compile here; there are {', '.join(known)}"
        )
    module.compile(backend=backend, dynamic=True)


def call_compiled(module: nn.Module, call: Callable[[], T]) -> T:
    """Run what calls a module; where its compiled form fails and the module itself does not, it stays uncompiled.

    Says so once. What the module itself raises is raised.
    """
    if module._compiled_call_impl is None:  # pyright: ignore[reportPrivateUsage] - torch has no other way to ask
        return call()
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        module._compiled_call_impl = None  # pyright: ignore[reportPrivateUsage]
        result = call()
        warnings.warn(
            f"`torch_compile` failed ({type(error).__name__}); {type(module).__name__} goes on uncompiled",
            stacklevel=2,
        )
        return result
