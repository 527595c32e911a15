"""`torch.compile` around the decoders of stock models: an option that may fail without harm."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._dynamo import config
from torch.utils._pytree import tree_map_only

from agentdiff.errors import ConfigurationError

T = TypeVar("T")
GRAPHS = "reduce-overhead"
"""Torch's name for its own compiler with CUDA graphs around what it compiles."""
MOST_FORMS = 64
"""Compiled forms of one code that there may be. Torch's own limit is 8 for all modules of a class together, beyond
which it runs them uncompiled; rounded shapes of one model come to fewer than that, but not of several."""


def compile_module(module: nn.Module, backend: str) -> None:
    """Let a module be compiled by a backend of `torch.compile` when it is first called, for shapes of all sizes.

    Raises:
        ConfigurationError: There is no such backend.
    """
    if backend == GRAPHS:
        module.compile(mode=GRAPHS, dynamic=True)
        module._compiled_call_impl = _Graphed(_compiled(module))  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        return
    known: list[str] = torch.compiler.list_backends(())
    if backend not in known:
        raise ConfigurationError(
            f"`torch_compile` is {backend!r}, which is no backend of torch.compile here; there are "
            f"{', '.join([*known, GRAPHS])}"
        )
    module.compile(backend=backend, dynamic=True)


def has_graphs(module: nn.Module) -> bool:
    """Whether passes of a module are replayed as CUDA graphs.

    Such a pass must not write into what it is given, and what it returns lies in memory that the next one writes.
    """
    return isinstance(_compiled(module), _Graphed)


def call_compiled(module: nn.Module, call: Callable[[], T]) -> T:
    """Run what calls a module; where its compiled form fails and the module itself does not, it stays uncompiled.

    Says so once. What the module itself raises is raised. The tensors in what `call` returns are the caller's own.
    """
    if _compiled(module) is None:
        return call()
    try:
        with config.patch(recompile_limit=MOST_FORMS):
            result = call()
        return tree_map_only(Tensor, torch.clone, result) if has_graphs(module) else result
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


@dataclass(frozen=True, slots=True)
class _Graphed:
    """A compiled module whose outputs are taken out before it is called again."""

    compiled: Callable[..., Any]

    def __call__(self, *args: Any, **named: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return self.compiled(*args, **named)


def _compiled(module: nn.Module) -> Any:
    # Torch has no other way to ask.
    return cast("Any", module._compiled_call_impl)  # pyright: ignore[reportPrivateUsage]
