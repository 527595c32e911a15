"""Every Python block of the README and the docs runs, and prints what its `#>` lines say.

A block that needs more than the base install says so: ```python {requires="local"}. A block that
cannot run at all (a key, a server): ```python {test="skip"}.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("pytest_examples")

from pytest_examples import CodeExample, EvalExample, find_examples

ROOT = Path(__file__).parent.parent
EXTRAS = {"local": "transformers", "mcp": "mcp", "otel": "opentelemetry.exporter"}
"""The package by whose presence an extra is recognised."""

EXAMPLES = list(find_examples(ROOT / "README.md", ROOT / "docs"))


def is_installed(extra: str) -> bool:
    return find_spec(EXTRAS[extra]) is not None


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_block_of_the_docs_prints_what_it_shows(
    example: CodeExample,
    eval_example: EvalExample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = example.prefix_settings()
    if settings.get("test") == "skip":
        pytest.skip("the block says so")
    if (extra := settings.get("requires")) and not is_installed(extra):
        pytest.skip(f"needs the `{extra}` extra")
    monkeypatch.chdir(tmp_path)  # an agent's tools write where they run
    eval_example.set_config(line_length=100)
    if eval_example.update_examples:
        eval_example.format_ruff(example)
        eval_example.run_print_update(example)
    else:
        eval_example.lint_ruff(example)
        eval_example.run_print_check(example)


def test_the_readme_shows_python() -> None:
    assert any(example.path == ROOT / "README.md" for example in EXAMPLES)
