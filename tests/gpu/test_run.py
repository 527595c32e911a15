"""The GPU script, on whatever is here: golden sizes and a few tokens."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch (the `local` extra) is not installed")
pytest.importorskip("transformers", reason="transformers (the `local` extra) is not installed")

from tests.gpu.run import main

pytestmark = pytest.mark.filterwarnings(  # what transformers' loop imports in torch
    "ignore:.*torch.jit.*:DeprecationWarning"
)


def check_tables(printed: str) -> list[list[str]]:
    before, speed = printed.split("Prompt ")
    parity, scores = before.split("Scores of a step")
    moved = [line.split(" | ") for line in scores.splitlines() if line.startswith("| ")][1:]
    assert [row[2] for row in moved] == 4 * ["whole rows", "by parts"]
    assert "out of tolerance" not in parity
    lines = [line for line in parity.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3 * 2  # families, precisions
    rows = [line.split(" | ") for line in speed.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 2 * 2 * 5 + 2 * 4  # models, batches, ways: mask models and the canvas model
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)
    assert sum("%" in row[6] for row in rows) == 3 * 2  # those under the schema
    return rows


@pytest.mark.slow
def test_the_script_runs_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--dtype", "float32", "--tiny"]) == 0
    rows = check_tables(capsys.readouterr().out)
    assert {row[5] for row in rows} == {"100%", ""}


@pytest.mark.gpu
def test_the_script_runs_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tiny"]) == 0
    check_tables(capsys.readouterr().out)


def test_without_a_gpu_it_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([]) == 2
    assert "--device cpu --tiny" in capsys.readouterr().err
