"""An MCP server for tests: in this process, or `python -m tests.agent.mcp_server [PORT]`."""

import sys
from importlib import import_module
from typing import Any


def make_server() -> Any:
    server = import_module("mcp.server").MCPServer("shop")

    @server.tool()
    def stock_of(item: str) -> int:
        """Count an item."""
        return {"mug": 12}[item]

    @server.tool()
    async def greet(name: str = "you") -> str:
        """Greet somebody."""
        return f"hello {name}"

    @server.tool(name="no.arguments")
    def nothing() -> str:
        return "nothing"

    return server


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make_server().run("streamable-http", port=int(sys.argv[1]))
    else:
        make_server().run("stdio")
