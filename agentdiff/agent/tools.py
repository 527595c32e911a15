"""Tools: typed Python functions that a model may call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import anyio
import anyio.to_thread

from agentdiff.agent.parameters import Parameters, describe, read_parameters
from agentdiff.agent.schemas import Schema
from agentdiff.errors import ConfigurationError, ToolFailed
from agentdiff.messages import Json, ToolSpec

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[P, R]):
    """A function as a tool.

    Calling it calls the function, as before; `call` is the way of a model's arguments.
    """

    function: Callable[P, R]
    name: str
    description: str
    timeout_s: float | None
    """Seconds for one call, None for no limit."""
    sequential: bool
    """Whether it runs alone: calls before it end first, calls after it wait."""
    grounded: bool
    """Whether free string arguments must be spans of the conversation."""
    _parameters: Parameters

    @property
    def parameters(self) -> Schema:
        """JSON Schema of the arguments."""
        return self._parameters.schema

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            grounded=self.grounded,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no validation, no timeout."""
        return self.function(*args, **kwargs)

    async def call(self, arguments: Mapping[str, Json]) -> Any:
        """Validate a model's arguments and run the function; a sync function runs in a thread.

        A thread cannot be stopped. A cancelled call of a sync function waits for its end, so that
        nothing goes on unseen; with `timeout_s` it is left to itself instead.

        Raises:
            InvalidArguments: The arguments do not satisfy the schema; the function was not called.
            ToolFailed: The call took longer than `timeout_s`.
            Exception: Whatever the function raises.
        """
        args, kwargs = self._parameters.bind(arguments)
        with anyio.move_on_after(self.timeout_s):
            return await self._run(args, kwargs)
        raise ToolFailed(f"`{self.name}` took longer than {self.timeout_s:g} s and was stopped")

    async def _run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        call = functools.partial(self.function, *args, **kwargs)
        if _is_async(self.function):
            value: Any = call()
        else:
            value = await anyio.to_thread.run_sync(
                call, abandon_on_cancel=self.timeout_s is not None
            )
        return await value if inspect.isawaitable(value) else value


AnyTool = Tool[..., Any]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    sequential: bool = False,
    grounded: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    sequential: bool = False,
    grounded: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a typed function, sync or async.

    Its type hints and defaults become the JSON Schema of the arguments, the first paragraph of its
    docstring the description, the `Args:` section (Google style) the descriptions of the
    parameters.

    Args:
        function: The function; each parameter has a type hint.
        name: The tool's name, if not the function's.
        description: What the tool does, if not what the docstring says.
        timeout_s: Seconds for one call.
        sequential: Run it alone when a model asks for several calls at once.
        grounded: Free string arguments must be spans of the conversation (where the backend
            enforces in the block).

    Raises:
        ConfigurationError: The function cannot be a tool; says which parameter and why.
    """

    def make(function: Callable[P, R]) -> Tool[P, R]:
        named = name or getattr(function, "__name__", type(function).__name__)
        if not _NAME.fullmatch(named):
            raise ConfigurationError(
                f"a tool's name is 1 to 64 letters, digits, `_` or `-`, got {named!r};"
                " give one: `@tool(name=...)`"
            )
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigurationError(
                f"tool `{named}`: `timeout_s` must be positive, got {timeout_s!r}"
            )
        return Tool(
            function=function,
            name=named,
            description=describe(inspect.getdoc(function) or "")
            if description is None
            else description,
            timeout_s=timeout_s,
            sequential=sequential,
            grounded=grounded,
            _parameters=read_parameters(function, tool=named),
        )

    return make if function is None else make(function)


def as_tool(value: object) -> AnyTool:
    """A tool as it is, a function as a tool.

    Raises:
        ConfigurationError: It is neither, or the function cannot be a tool.
    """
    if isinstance(value, Tool):
        return cast("AnyTool", value)
    if callable(value):
        return tool(value)
    raise ConfigurationError(f"a tool is a `Tool` or a function, got {value!r}")


def by_name(tools: list[AnyTool]) -> dict[str, AnyTool]:
    """The tools by their names.

    Raises:
        ConfigurationError: Two of them have the same name.
    """
    named: dict[str, AnyTool] = {}
    for each in tools:
        if named.setdefault(each.name, each) is not each:
            raise ConfigurationError(
                f"two tools are named `{each.name}`; rename one: `@tool(name=...)`"
            )
    return named


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )
