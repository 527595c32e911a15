"""`agentdiff bench embedded`, over a double that refuses everything."""

import json

import pytest

from agentdiff.cli import main
from tests.cli.doubles import embedded, refuses


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # so that they are put back
    monkeypatch.setenv("COLUMNS", "80")
    backend = embedded(*[refuses()] * 2000)
    monkeypatch.setattr("agentdiff.backends.connect", lambda spec: backend)


def test_refusing_everything_is_right_where_no_tool_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "embedded", "--only", "hand_none", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["machine"]
    (score,) = said["sets"]
    assert (score["exact"], score["refused"], score["right_tool"]) == (1.0, 1.0, 0.0)
    assert score["rows"] >= 100


def test_the_table_fits_80_columns_and_shows_what_was_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "embedded", "--only", "hand_", "--show-wrong", "1"]) == 0
    table, *wrong = capsys.readouterr().out.split("\n\n")[1:]
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("hand-written, no tool fits") and "100.0%" in line for line in lines)
    assert any(line.startswith("hand-written, foreign tools") and " 0.0%" in line for line in lines)
    assert len([text for text in wrong if "expected" in text]) == 3


def test_an_unknown_set_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "embedded", "--only", "nothing"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hand_none.jsonl" in line
