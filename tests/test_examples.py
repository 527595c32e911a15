"""Every example runs to its end, offline, in an interpreter of its own."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def needs_local(path: Path) -> bool:
    """Whether the example says, in its docstring, that it needs the `local` extra."""
    return "agentdiff[local" in path.read_text(encoding="utf-8")


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_offline(path: Path, tmp_path: Path) -> None:
    if needs_local(path) and find_spec("transformers") is None:
        pytest.skip("needs the `local` extra")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "offline.py", path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"
