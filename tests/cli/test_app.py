"""The command line as a whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentdiff.cli import main

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for command in ("run", "trace", "bench"):
        assert re.search(rf"\b{command}\b", out)


@pytest.mark.parametrize("group", ["trace", "bench"])
def test_a_group_without_a_command_shows_its_help(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group]) == 0
    assert "Usage" in capsys.readouterr().out


def test_help_leaves_the_heavy_ones_alone() -> None:
    heavy = ("torch", "transformers", "numpy", "httpx", "opentelemetry")
    script = (
        "import sys; from agentdiff.cli import main; main(['run', '--help'])\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"agentdiff .+\n", capsys.readouterr().out)


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'rnu'" in line
