"""Route and arguments in one generation or two: by the lengths that are predicted and the backend."""

import pytest

from agentdiff.agent import Agent, Journal, tool
from agentdiff.errors import Unavailable
from agentdiff.generation import Capabilities
from tests.agent.doubles import Double, calls, ends, says

CANVAS = Capabilities(quantum=8, tokenizer="canvas")
"""A full canvas: all of it is computed at each pass."""


@tool
async def ping() -> str:
    return "pong"


@tool
async def describe(
    name: str, color: str, size: str, material: str, origin: str, maker: str, year: int, notes: str
) -> str:
    return f"{name} described"


TOOLS = [ping, describe]
ROUTE = says('{"tool": "ping"}')


async def test_on_a_canvas_a_name_first_and_its_arguments_then_where_that_is_cheaper() -> None:
    backend = Double(ROUTE, says("{}"), says('{"tool": "none"}'), says("done"), capabilities=CANVAS)
    result = await Agent(backend, tools=TOOLS, instructions="Be kind.").run("Go")
    assert result.output == "done"
    assert [r.kind for r in backend.requests] == ["route", "arguments", "route", "route"]
    choice, arguments, _, merged = backend.requests
    assert choice.schema is not None
    assert choice.schema["properties"]["tool"]["enum"] == ["ping", "describe", "none"]
    assert arguments.schema == ping.parameters
    assert [spec.name for spec in merged.tools] == ["ping", "describe"]
    assert backend.told() == ["pong"]
    assert [m.role for m in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [(s.kind, len(s.calls)) for s in result.steps] == [
        ("route", 0),
        ("arguments", 1),
        ("route", 0),
        ("answer", 0),
    ]


@pytest.mark.parametrize(
    "capabilities",
    [
        Capabilities(),  # a cap, which costs nothing
        Capabilities(quantum=8, extends=True),  # blocks, which stop early
        Capabilities(quantum=4096),  # one canvas holds anything
    ],
)
async def test_everywhere_else_both_come_at_once(capabilities) -> None:
    backend = Double(calls(("ping", {})), says("done"), capabilities=capabilities)
    await Agent(backend, tools=TOOLS).run("Go")
    assert [len(r.tools) for r in backend.requests] == [2, 2]


async def test_one_tool_needs_no_choice() -> None:
    backend = Double(calls(("ping", {})), says("done"), capabilities=CANVAS)
    await Agent(backend, tools=[ping]).run("Go")
    assert [r.kind for r in backend.requests] == ["route", "route"]


@pytest.mark.parametrize("choice", [says("?"), says('{"tool": "nope"}'), says("[]")])
async def test_a_choice_that_is_none_falls_back_to_both_at_once(choice) -> None:
    backend = Double(choice, says("done"), capabilities=CANVAS)
    assert (await Agent(backend, tools=TOOLS).run("Go")).output == "done"


async def test_arguments_that_are_no_json_are_told() -> None:
    backend = Double(
        ROUTE, says("{oops"), says('{"tool": "none"}'), says("done"), capabilities=CANVAS
    )
    await Agent(backend, tools=TOOLS).run("Go")
    assert "not a JSON object" in backend.told()[0]


async def test_a_cut_is_made_again_in_each_of_the_two() -> None:
    backend = Double(
        ends("length", '{"to'),
        ROUTE,
        ends("length", "{"),
        says("{}"),
        says('{"tool": "none"}'),
        says("done"),
        capabilities=CANVAS,
    )
    assert (await Agent(backend, tools=TOOLS).run("Go")).output == "done"


async def test_a_run_that_broke_off_between_the_two_goes_on_there(tmp_path) -> None:
    journal = Journal(tmp_path / "runs.sqlite")
    first = Double(ROUTE, Unavailable("gone"), capabilities=CANVAS)
    with pytest.raises(Unavailable):
        await Agent(first, tools=TOOLS).run("Go", journal=journal.run("r"))
    after = Double(says("{}"), says('{"tool": "none"}'), says("done"), capabilities=CANVAS)
    result = await Agent(after, tools=TOOLS).run("Go", journal=journal.run("r"))
    assert (result.output, after.requests[0].kind) == ("done", "arguments")
    journal.close()
