"""Tools: what `@tool` makes, how a call runs, where tools are loaded from."""

import threading

import anyio
import pytest

from agentdiff.agent import Tool, load_tools, tool
from agentdiff.errors import ConfigurationError, InvalidArguments, ToolFailed


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_a_tool_is_still_the_function() -> None:
    assert add(2, b=3) == 5
    assert isinstance(add, Tool)


def test_a_tool_is_described_by_its_function() -> None:
    assert (add.name, add.description) == ("add", "Add two numbers.")
    assert add.spec.parameters == add.parameters
    assert add.parameters["required"] == ["a"]


def test_options_win_over_what_the_function_says() -> None:
    @tool(name="plus", description="Sum.", timeout_s=2, sequential=True, grounded=True)
    def f(a: int) -> int:
        return a

    assert (f.name, f.description, f.timeout_s, f.sequential) == ("plus", "Sum.", 2, True)
    assert f.spec.grounded


@pytest.mark.parametrize("name", ["with space", "é", "a" * 65])
def test_a_name_that_a_model_cannot_say_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"@tool\(name="):
        tool(name=name)(lambda: None)
    with pytest.raises(ConfigurationError, match="lambda"):
        tool(lambda: None)


def test_a_timeout_is_positive() -> None:
    with pytest.raises(ConfigurationError, match="`timeout_s` must be positive, got 0"):
        tool(name="f", timeout_s=0)(lambda: None)


async def test_a_sync_function_that_returns_at_once_needs_no_thread() -> None:
    @tool(in_thread=False)
    def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await here.call({}) is True
    with pytest.raises(ConfigurationError, match="cannot stop a sync function without a thread"):
        tool(in_thread=False, timeout_s=1)(here.function)


async def test_a_sync_function_runs_in_a_thread() -> None:
    @tool
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await where.call({}) is False


async def test_an_async_function_runs_here_and_so_does_an_object() -> None:
    @tool
    async def where() -> bool:
        await anyio.lowlevel.checkpoint()
        return threading.current_thread() is threading.main_thread()

    class Greeter:
        async def __call__(self, name: str) -> str:
            return f"hi {name}"

    assert await where.call({}) is True
    assert await tool(name="greet")(Greeter()).call({"name": "Eve"}) == "hi Eve"


async def test_wrong_arguments_never_reach_the_function() -> None:
    with pytest.raises(InvalidArguments, match="`a`: Field required"):
        await add.call({"b": 1})


async def test_an_async_tool_is_stopped_at_its_timeout() -> None:
    was_stopped = False

    @tool(timeout_s=0.01)
    async def wait() -> None:
        nonlocal was_stopped
        try:
            await anyio.sleep_forever()
        finally:
            was_stopped = True

    with pytest.raises(ToolFailed, match=r"`wait` took longer than 0\.01 s"):
        await wait.call({})
    assert was_stopped


async def test_a_sync_tool_is_left_at_its_timeout() -> None:
    release = threading.Event()

    @tool(timeout_s=0.01)
    def wait() -> None:
        release.wait(5)

    try:
        with pytest.raises(ToolFailed, match="took longer"):
            await wait.call({})
    finally:
        release.set()


async def test_a_timeout_of_the_function_itself_is_its_own() -> None:
    @tool(timeout_s=5)
    async def f() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await f.call({})


# -- loading ----

LISTED = """
from agentdiff.agent import tool
def a() -> int: return 1
def b() -> int: return 2
tools = [b]
"""
DECORATED = """
from agentdiff.agent import tool
@tool
def a() -> int: return 1
def b() -> int: return 2
c = a
"""
PLAIN = """
from os.path import join
def a() -> int: return 1
def _b() -> int: return 2
class C: ...
"""


@pytest.mark.parametrize(("text", "names"), [(LISTED, ["b"]), (DECORATED, ["a"]), (PLAIN, ["a"])])
def test_tools_are_listed_or_decorated_or_all_public_functions(tmp_path, text, names) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert [each.name for each in load_tools(str(path))] == names


def test_a_module_is_found_by_its_name_in_the_working_directory(tmp_path, monkeypatch) -> None:
    (tmp_path / "tools_of_this_test.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    assert [each.name for each in load_tools("tools_of_this_test")] == ["a"]


def test_a_file_may_import_its_neighbour(tmp_path) -> None:
    (tmp_path / "neighbour_of_this_test.py").write_text("X = 3\n")
    (tmp_path / "mine.py").write_text(
        "from neighbour_of_this_test import X\ndef a() -> int: return X\n"
    )
    assert load_tools(str(tmp_path / "mine.py"))[0]() == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no tools in"),
        ("x = 1", "no tools in"),
        ("tools = []", "no tools in"),
        ("tools = 'abc'", "`tools` in .* must be a list of tools"),
        ("tools = [1]", "a tool is a `Tool` or a function, got 1"),
        ("def f(x): ...", "tool `f`: parameter `x` has no type hint"),
        ("def f(:", "cannot load tools from .*: SyntaxError"),
        ("import nowhere_to_be_found", "cannot load tools from .*: ModuleNotFoundError"),
        ("1/0", "cannot load tools from .*: ZeroDivisionError"),
        ("import sys; sys.exit(3)", "cannot load tools from .*: SystemExit"),
        ("def a() -> int: ...\ndef b() -> int: ...\nb.__name__ = 'a'", "two tools are named `a`"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, text, says) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        load_tools(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["nowhere.py", "./no/such", "nowhere_at_all", "", "a..b", "."])
def test_what_is_not_there_is_one_line(source) -> None:
    with pytest.raises(ConfigurationError, match="cannot load tools from") as caught:
        load_tools(source)
    assert "\n" not in str(caught.value)
