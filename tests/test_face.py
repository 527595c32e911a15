"""The public face: complete, sorted, and light to import."""

import subprocess
import sys

import agentdiff

HEAVY = ("jsonschema_rs", "numpy", "opentelemetry.sdk", "torch", "transformers")


def test_importing_the_package_leaves_the_heavy_ones_alone() -> None:
    script = f"import agentdiff, sys; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_every_name_imports_without_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from agentdiff import *"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_names_are_sorted_and_there() -> None:
    names = list(agentdiff.__all__)
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(agentdiff, name)] == []
