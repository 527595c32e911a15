"""Tools from a module or a file, as `--tools` names them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

from agentdiff.agent.tools import AnyTool, Tool, as_tool, by_name
from agentdiff.errors import ConfigurationError


def load_tools(source: str) -> list[AnyTool]:
    """Load tools from a dotted module or from the path of a `.py` file. This runs its code.

    The tools are the module's list `tools` or `TOOLS`; without one, every `Tool` in it; without
    any, every public function that is defined in it. Modules are looked for in the working
    directory, too.

    Raises:
        ConfigurationError: It is not there, cannot be imported, or holds no tools; one line that
            says which.
    """
    module = _load_file(Path(source)) if _is_path(source) else _load_module(source)
    tools = [as_tool(found) for found in _found(module, source)]
    if not tools:
        raise ConfigurationError(
            f"no tools in {source!r}: decorate functions with `@tool`,"
            " or list them in `tools = [...]`"
        )
    by_name(tools)
    return tools


def _is_path(source: str) -> bool:
    return (
        source.endswith(".py")
        or os.sep in source
        or (os.altsep is not None and os.altsep in source)
    )


def _found(module: ModuleType, source: str) -> list[object]:
    names = vars(module)
    for name in ("tools", "TOOLS"):
        listed: object = names.get(name)
        if listed is not None and not isinstance(listed, ModuleType):
            if isinstance(listed, str) or not isinstance(listed, Iterable):
                raise ConfigurationError(
                    f"`{name}` in {source!r} must be a list of tools, got {listed!r}"
                )
            return list(cast("Iterable[object]", listed))
    decorated: list[object] = [value for value in names.values() if isinstance(value, Tool)]
    if decorated:
        return list({id(value): value for value in decorated}.values())
    return [
        value
        for name, value in names.items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _load_module(name: str) -> ModuleType:
    with _one_line(name), _importable(Path.cwd()):
        return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"cannot load tools from {str(path)!r}: there is no such file")
    name = f"agentdiff_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(
            f"cannot load tools from {str(path)!r}: it is not a Python file (`.py`)"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up
    with _one_line(str(path)), _importable(path.parent.resolve()):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


@contextmanager
def _one_line(source: str) -> Generator[None]:
    """Whatever the import raises, a call of `sys.exit` too, as one line."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot load tools from {source!r}: {error}") from error
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"cannot load tools from {source!r}: {type(error).__name__}: {reason}"
        ) from error


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """The folder on the import path, for as long as the import lasts."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
