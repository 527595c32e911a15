import json
from pathlib import Path

import pytest

from agentdiff.embedded.tools import shipped_tools
from agentdiff.errors import ConfigurationError
from tests.embedded_tools.desks import CORPUS, Bench


def learned() -> list[dict]:
    return [json.loads(line) for line in (CORPUS / "shipped.jsonl").read_text().splitlines()]


def test_the_tools_are_those_that_the_model_has_learned(bench: Bench) -> None:
    assert list(bench.tools) == [tool["name"] for tool in learned()]


@pytest.mark.parametrize("tool", learned(), ids=lambda tool: tool["name"])
def test_a_tool_looks_as_the_model_has_learned_it(bench: Bench, tool: dict) -> None:
    shipped = bench.tools[tool["name"]]
    properties = shipped.parameters["properties"]
    assert shipped.description.rstrip(".") == tool["description"]
    assert {name: schema["type"] for name, schema in properties.items()} == {
        parameter["name"]: parameter["type"] for parameter in tool["parameters"]
    }
    assert list(properties) == [parameter["name"] for parameter in tool["parameters"]]
    required = [parameter["name"] for parameter in tool["parameters"] if parameter["required"]]
    assert shipped.parameters.get("required", []) == required


async def test_without_a_clock_the_tools_use_that_of_the_machine(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in shipped_tools(tmp_path)}
    await tools["add_note"].call({"text": "now"})
    written = json.loads((tmp_path / ".agentdiff/notes.json").read_text())[0]["written"]
    assert written.endswith("Z") or written[-6] in "+-"


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be a folder"):
        shipped_tools(tmp_path / "nowhere")


def test_making_the_tools_writes_nothing(tmp_path: Path) -> None:
    shipped_tools(tmp_path)
    assert list(tmp_path.iterdir()) == []
