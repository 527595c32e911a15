"""`agentdiff bench constraint`, on one small schema and a small made-up vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentdiff.cli import main

pytest.importorskip("numpy", reason="numpy (the `local` or `fast` extra) is not installed")

from agentdiff.cli.bench_constraint import PeerFigures, table
from agentdiff.constraint.bench import Figures


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # so that they are put back
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def schemas(tmp_path: Path) -> str:
    rows = [
        {"name": "flag", "schema": {"type": "object", "properties": {"on": {"type": "boolean"}}}},
        {"name": "nothing", "schema": False},
    ]
    path = tmp_path / "schemas.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_the_figures_are_one_json_object(schemas: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "constraint", "--schemas", schemas, "--tokens", "900", "--tasks", "0"]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["vocabulary"].startswith("901 tokens (made up")
    assert (said["schemas"], said["texts"], said["valid"], said["over_budget"]) == (1, 2, 2, 0)
    assert [name for name, _ in said["refused"]] == ["nothing"]
    assert said["ms"]["compile + first step"]["p50"] >= said["ms"]["compile"]["p50"] > 0
    assert 0 < said["mb"]["max" if "max" in said["mb"] else "p100"] < 2
    assert said["forwards"] is None


def test_the_table_names_peers_or_says_that_there_are_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = Figures(compile_s=[0.001], cold_s=[0.002], grammar_bytes=[2e5], texts=2, valid=2)
    table(figures, [])
    said = capsys.readouterr().out
    assert "2 of 2 valid" in said
    assert "not installed" in said
    peer = PeerFigures(
        name="peer 1.0", refused=1, closed=0, compile_s=(0.1,), block_s=(0.2,), mask_s=(0.1,)
    )
    table(figures, [peer])
    said = capsys.readouterr().out
    assert "peer 1.0: 0 of 1 closed" in said
    assert max(map(len, said.splitlines())) <= 100


def test_a_file_of_something_else_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "else.txt"
    path.write_text("no json")
    assert main(["bench", "constraint", "--schemas", str(path)]) != 0
    assert "--schemas" in capsys.readouterr().err
