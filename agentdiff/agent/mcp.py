"""The tools of an MCP server, as tools of an agent. Needs the `mcp` extra (the official SDK)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from jsonschema import Draft202012Validator, validators
from referencing import Registry

from agentdiff.agent.schemas import Schema
from agentdiff.agent.tools import AnyTool, NeedsApproval, Tool, check_name
from agentdiff.errors import ConfigurationError, InvalidArguments, MissingExtra, ToolFailed
from agentdiff.messages import Json

_FAULTS = 5
"""Faults of arguments that are told at most."""


@asynccontextmanager
async def mcp_tools(
    server: object,
    *,
    prefix: str = "",
    only: Collection[str] | None = None,
    timeout_s: float | None = 60.0,
    approval: NeedsApproval = False,
) -> AsyncGenerator[list[AnyTool]]:
    """Connect to an MCP server and open its tools; leaving the context disconnects.

    Enter and leave it in one task, and run the agent inside.

    Args:
        server: The URL of a server that speaks streamable HTTP; the command line, as a list, of one
            that speaks over its stdin and stdout; or whatever else `mcp.Client` takes (a transport
            with headers of its own, `StdioServerParameters`, a server in this process).
        prefix: Put before the name of each tool, so that those of two servers do not clash.
        only: Names of the tools to take, as the server has them; None takes all.
        timeout_s: Seconds for one call; None for no limit.
        approval: Whether a person has to approve each call, or a function of the arguments that
            says so.

    Raises:
        MissingExtra: The SDK is not installed.
        ConfigurationError: The server has no tool of a name in `only`.
    """
    try:
        sdk: Any = import_module("mcp")
    except ImportError as error:
        raise MissingExtra("an MCP server", extra="mcp") from error
    if isinstance(server, Sequence) and not isinstance(server, str):
        command, *arguments = cast("Sequence[str]", server)
        server = sdk.StdioServerParameters(command=command, args=arguments)
    failure: Exception | None = None
    async with sdk.Client(server) as client:
        try:
            found = await _listed(client)
            _check_names(only or (), found)
            yield [
                _tool(client, spec, prefix=prefix, timeout_s=timeout_s, approval=approval)
                for name, spec in found.items()
                if only is None or name in only
            ]
        except Exception as error:
            failure = error  # raised outside the task groups of the client, which would wrap it
    if failure is not None:
        raise failure


def _check_names(wanted: Collection[str], found: Collection[str]) -> None:
    for name in wanted:
        if name not in found:
            raise ConfigurationError(
                f"the MCP server has no tool {name!r}; it has {', '.join(found) or 'none'}"
            )


async def _listed(client: Any) -> dict[str, Any]:
    """The server's tools by name, page after page."""
    found: dict[str, Any] = {}
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found |= {spec.name: spec for spec in page.tools}
        cursor = page.next_cursor
        if cursor is None:
            return found


def _tool(
    client: Any,
    spec: Any,
    *,
    prefix: str,
    timeout_s: float | None,
    approval: NeedsApproval,
) -> AnyTool:
    async def call(arguments: Mapping[str, Json]) -> Json:
        answer = await client.call_tool(spec.name, dict(arguments))
        text = "\n".join(map(_text_of, answer.content))
        if answer.is_error:
            raise ToolFailed(text or f"`{spec.name}` failed")
        return text if answer.structured_content is None else answer.structured_content

    name = prefix + re.sub(r"[^A-Za-z0-9_-]", "_", spec.name)
    check_name(name)
    function = cast("Callable[..., Any]", call)
    return Tool(
        function=function,
        name=name,
        description=spec.description or "",
        timeout_s=timeout_s,
        approval=approval,
        _parameters=BareSchema(name, _object_schema(spec.input_schema)),
        _returns=spec.output_schema,
    )


def _object_schema(schema: Mapping[str, Json]) -> Schema:
    """The schema as models know it; some servers leave out that it is an object, or of what."""
    whole: Schema = {"type": "object", "properties": {}, **schema}
    return {key: value for key, value in whole.items() if key not in ("$schema", "title")}


def _text_of(part: Any) -> str:
    """A part of a result in words; what is no text is named."""
    text = getattr(part, "text", None)
    return text if isinstance(text, str) else f"[{part.type}]"


@dataclass(frozen=True, slots=True)
class BareSchema:
    """Arguments that only a JSON Schema describes; they are passed on as one object."""

    tool: str
    schema: Schema

    @property
    def takes_context(self) -> bool:
        return False

    def bind(self, arguments: Mapping[str, Json]) -> tuple[list[Any], dict[str, Any]]:
        kind = validators.validator_for(self.schema, default=Draft202012Validator)
        checker = kind(self.schema, registry=Registry())
        faults = [
            f"`{'.'.join(map(str, fault.absolute_path))}`: {fault.message}"
            if fault.absolute_path
            else fault.message
            for fault in checker.iter_errors(dict(arguments))
        ]
        if faults:
            raise InvalidArguments(
                f"the arguments of `{self.tool}` are invalid: {'; '.join(faults[:_FAULTS])}"
            )
        return [dict(arguments)], {}
