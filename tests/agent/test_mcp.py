"""The tools of MCP servers: in this process, over stdin and stdout, over HTTP."""

import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from agentdiff.agent import Agent, mcp_tools
from agentdiff.errors import ConfigurationError, MissingExtra, RunPaused
from tests.agent.doubles import Double, calls, says

ROOT = Path(__file__).parents[2]
STDIO = [sys.executable, "-m", "tests.agent.mcp_server"]


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"agentdiff\[mcp\]"):
        async with mcp_tools("http://localhost/mcp"):
            pass


@pytest.fixture
def server() -> object:
    pytest.importorskip("mcp", reason="needs the `mcp` extra")
    from tests.agent.mcp_server import make_server

    return make_server()


async def told(server: object, *turn: tuple[str, dict[str, object]]) -> list[str]:
    """What the model is told about calls of a server's tools."""
    backend = Double(calls(*turn), says("done"))
    async with mcp_tools(server) as tools:
        await Agent(backend, tools=tools).run("Go")
    return backend.told()


async def test_the_tools_of_a_server_are_tools(server) -> None:
    async with mcp_tools(server) as tools:
        assert [each.name for each in tools] == ["stock_of", "greet", "no_arguments"]
        assert tools[0].description == "Count an item."
        assert tools[0].parameters["required"] == ["item"]
        assert tools[0].returns is not None
        assert tools[2].parameters["properties"] == {}
        assert all(each.timeout_s == 60 for each in tools)


async def test_calls_go_to_the_server_and_results_come_back(server) -> None:
    assert await told(
        server, ("stock_of", {"item": "mug"}), ("greet", {}), ("no_arguments", {})
    ) == [
        '{"result":12}',
        '{"result":"hello you"}',
        '{"result":"nothing"}',
    ]


async def test_wrong_arguments_never_reach_the_server_and_its_errors_are_told(server) -> None:
    wrong, failed = await told(server, ("stock_of", {"item": 3}), ("stock_of", {"item": "cup"}))
    assert wrong.startswith("error: the arguments of `stock_of` are invalid: `item`: 3 is not")
    assert failed.startswith("error: Error executing tool stock_of")


async def test_an_error_inside_comes_out_as_it_is(server) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mcp_tools(server):
            raise ZeroDivisionError


async def test_tools_are_chosen_named_and_approved(server) -> None:
    async with mcp_tools(server, prefix="shop_", only=["greet"], approval=True) as tools:
        assert [each.name for each in tools] == ["shop_greet"]
        with pytest.raises(RunPaused):
            await Agent(Double(calls(("shop_greet", {}))), tools=tools).run("Go")
    with pytest.raises(ConfigurationError, match="no tool 'sell'; it has stock_of, greet"):
        async with mcp_tools(server, only=["sell"]):
            pass


async def test_a_server_may_be_a_command(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert await told(STDIO, ("greet", {"name": "Eve"})) == ['{"result":"hello Eve"}']


@pytest.fixture
def url(server) -> Generator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([*STDIO, str(port)], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


async def is_up(url: str) -> None:
    port = int(url.split(":")[2].split("/")[0])
    while True:
        try:
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
            return
        except OSError:
            await anyio.sleep(0.05)


async def test_a_server_may_be_an_address(url) -> None:
    with anyio.fail_after(60):
        await is_up(url)
        assert await told(url, ("greet", {"name": "Eve"})) == ['{"result":"hello Eve"}']
