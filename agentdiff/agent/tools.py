"""Tools: typed Python functions that a model may call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import anyio
import anyio.to_thread

from agentdiff.agent.context import RunContext
from agentdiff.agent.parameters import describe, read_parameters, return_schema
from agentdiff.agent.schemas import Schema
from agentdiff.errors import ConfigurationError, ToolFailed
from agentdiff.generation import Budget
from agentdiff.messages import Json, ToolSpec

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

NeedsApproval: TypeAlias = bool | Callable[[Mapping[str, Json]], bool | Awaitable[bool]]
"""Whether a person has to approve a call; a function, async or not, decides by the arguments."""


class Arguments(Protocol):
    """The arguments that a tool takes: `Parameters` of a function, or a bare JSON Schema."""

    @property
    def schema(self) -> Schema: ...
    @property
    def takes_context(self) -> bool: ...
    def bind(self, arguments: Mapping[str, Json]) -> tuple[list[Any], dict[str, Any]]:
        """Validate arguments and lay them out as `(args, kwargs)`, or raise `InvalidArguments`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[P, R]):
    """A function as a tool.

    Calling it calls the function, as before; `call` is the way of a model's arguments.
    """

    function: Callable[P, R]
    name: str
    description: str
    timeout_s: float | None = None
    """Seconds for one call, None for no limit."""
    sequential: bool = False
    """Whether it runs alone: calls before it end first, calls after it wait."""
    in_thread: bool = True
    """Whether a sync function runs in a thread; without one, everything waits while it runs."""
    grounded: bool = False
    """Whether free string arguments must be spans of the conversation."""
    approval: NeedsApproval = False
    """Whether a person has to say yes before a call runs."""
    retries: int | None = None
    """How often in a row the model may be told to make a call again; None takes the agent's."""
    budget: Budget | None = None
    """For generations that write a call of this tool; None leaves it to the agent."""
    _parameters: Arguments
    _returns: Schema | None = None

    @property
    def parameters(self) -> Schema:
        """JSON Schema of the arguments."""
        return self._parameters.schema

    @property
    def takes_context(self) -> bool:
        """Whether the function takes a `RunContext` first."""
        return self._parameters.takes_context

    @property
    def returns(self) -> Schema | None:
        """JSON Schema of the result; None where the function does not say."""
        return return_schema(self.function) if self._returns is None else self._returns

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

    async def call(
        self, arguments: Mapping[str, Json], context: RunContext[Any] | None = None
    ) -> Any:
        """Validate a model's arguments and run the function; a sync one in a thread, if `in_thread`.

        A thread cannot be stopped. A cancelled call of a sync function waits for its end, so that
        nothing goes on unseen; with `timeout_s` it is left to itself instead.

        Args:
            arguments: What the model wrote, parsed.
            context: For a function that takes one.

        Raises:
            InvalidArguments: The arguments do not satisfy the schema; the function was not called.
            ToolFailed: The call took longer than `timeout_s`.
            ConfigurationError: The function takes a context and none was given.
            Exception: Whatever the function raises.
        """
        args, kwargs = self._parameters.bind(arguments)
        if self._parameters.takes_context:
            if context is None:
                raise ConfigurationError(f"`{self.name}` takes a `RunContext`: call it in a run")
            args.insert(0, context)
        if self.timeout_s is None:
            return await self._run(args, kwargs)
        with anyio.move_on_after(self.timeout_s):
            return await self._run(args, kwargs)
        raise ToolFailed(f"`{self.name}` took longer than {self.timeout_s:g} s and was stopped")

    def check(self, arguments: Mapping[str, Json]) -> None:
        """Pass when a call with these arguments could run; else `InvalidArguments`."""
        self._parameters.bind(arguments)

    async def needs_approval(self, arguments: Mapping[str, Json]) -> bool:
        """Whether a call with these arguments waits for a person."""
        if isinstance(self.approval, bool):
            return self.approval
        needs = self.approval(arguments)
        return await needs if inspect.isawaitable(needs) else needs

    async def _run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not self.in_thread or _is_async(self.function):
            value: Any = cast("AnyTool", self).function(*args, **kwargs)
        else:
            value = await anyio.to_thread.run_sync(
                functools.partial(self.function, *args, **kwargs),
                abandon_on_cancel=self.timeout_s is not None,
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
    in_thread: bool = True,
    grounded: bool = False,
    approval: NeedsApproval = False,
    retries: int | None = None,
    budget: int | Budget | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    sequential: bool = False,
    in_thread: bool = True,
    grounded: bool = False,
    approval: NeedsApproval = False,
    retries: int | None = None,
    budget: int | Budget | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a typed function, sync or async.

    Its type hints and defaults become the JSON Schema of the arguments, the first paragraph of its
    docstring the description, the `Args:` section (Google style) the descriptions of the
    parameters. A first parameter of type `RunContext` is given the run, and no model sees it.

    Args:
        function: The function; each parameter has a type hint.
        name: The tool's name, if not the function's.
        description: What the tool does, if not what the docstring says.
        timeout_s: Seconds for one call.
        sequential: Run it alone when a model asks for several calls at once.
        in_thread: Whether a sync function runs in a thread. One that returns at once (arithmetic, a
            look into a dict) is called much faster without; one that waits would hold up all other
            runs.
        grounded: Free string arguments must be spans of the conversation (where the backend
            enforces in the block).
        approval: Whether a person has to approve each call, or a function of the arguments that
            says so.
        retries: How often in a row the model may be told to make a call of this tool again (wrong
            arguments, `ModelRetry`) before the run ends; None takes what the agent says.
        budget: Tokens for a generation that writes a call of this tool.

    Raises:
        ConfigurationError: The function cannot be a tool; says which parameter and why.
    """

    def make(function: Callable[P, R]) -> Tool[P, R]:
        named = name or getattr(function, "__name__", type(function).__name__)
        check_name(named)
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigurationError(
                f"tool `{named}`: `timeout_s` must be positive, got {timeout_s!r}"
            )
        if retries is not None and retries < 0:
            raise ConfigurationError(
                f"tool `{named}`: `retries` must not be negative, got {retries!r}"
            )
        if timeout_s is not None and not in_thread and not _is_async(function):
            raise ConfigurationError(
                f"tool `{named}`: `timeout_s` cannot stop a sync function without a thread;"
                " leave out `in_thread=False`"
            )
        return Tool(
            function=function,
            name=named,
            description=describe(inspect.getdoc(function) or "")
            if description is None
            else description,
            timeout_s=timeout_s,
            sequential=sequential,
            in_thread=in_thread,
            grounded=grounded,
            approval=approval,
            retries=retries,
            budget=Budget(target=budget, ceiling=budget) if isinstance(budget, int) else budget,
            _parameters=cast("Arguments", read_parameters(function, tool=named)),
        )

    return make if function is None else make(function)


def check_name(name: str) -> None:
    """Pass when a model can say this name.

    Raises:
        ConfigurationError: It cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a tool's name is 1 to 64 letters, digits, `_` or `-`, got {name!r};"
            " give one: `@tool(name=...)`"
        )


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


def by_name(tools: Sequence[AnyTool]) -> dict[str, AnyTool]:
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
    if isinstance(function, FunctionType) and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case, without the slow way
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )
