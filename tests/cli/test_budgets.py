import gzip
import json
import struct
import zlib
from xml.etree import ElementTree

import pytest

from agentdiff.cli import app as app_module
from agentdiff.length import CapCost, LengthPredictor, StepContext, open_store

NOTE = StepContext("desk", "arguments", "add_note", "small", schema_min=4, last_tokens=9)
ANSWER = StepContext("desk", "answer", model="small")
TOOLS = '''
from enum import Enum


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


def turn(side: Side) -> str:
    """Turn to a side.

    Args:
        side: Where to turn.
    """
    return side.value


def add_note(text: str, tags: list[str]) -> str:
    """Keep a note.

    Args:
        text: What to keep.
        tags: Words to find it by.
    """
    return text
'''


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs a command line in an empty folder; exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        code = app_module.invoke(["budgets", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def taught(tmp_path):
    """A store that knows two steps."""
    path = tmp_path / ".agentdiff" / "lengths.sqlite"
    store = open_store(path)
    predictor = LengthPredictor(store)
    for number in range(40):
        for context, used in ((NOTE, 20 + number % 3), (ANSWER, 60 + 9 * number)):
            if context is NOTE or number < 20:
                budget = predictor.predict(context, CapCost())
                predictor.observe(context, budget, used=used, truncated=False)
    store.close()
    return path


@pytest.fixture
def recorded(tmp_path):
    """A file of recorded steps."""
    path = tmp_path / "steps.jsonl.gz"
    rows = [
        {
            "src": "desk", "ep": f"e{number % 7}", "t": number, "agent": "desk",
            "kind": "tool_args", "tool": "add_note", "model": "m", "prompt": 90, "last": 20,
            "out": 20 + number * 7 % 60, "min": 5,
        }
        for number in range(120)
    ]  # fmt: skip
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    return path


def test_show_lists_every_step_with_its_lengths_and_its_budget(cli, taught):
    code, out, _ = cli("show")
    assert code == 0
    first, second = (line.split() for line in out.splitlines()[1:3])
    assert first[:2] == ["arguments/desk/add_note", "40"]
    assert second[:2] == ["answer/desk", "20"]
    assert "60 steps · small · .agentdiff/lengths.sqlite · counts and names, no text" in out
    rows = json.loads(cli("show", "--json")[1])
    assert [(row["key"], row["seen"], row["recent"]) for row in rows] == [
        ("arguments/desk/add_note/small", 40, 40),
        ("answer/desk/small", 20, 20),
    ]
    assert 0 < rows[0]["fill"] <= 1


def test_explain_says_why_a_budget_is_what_it_is(cli, taught):
    code, out, _ = cli("explain", "add_note", "--quantum", "8")
    assert code == 0
    assert "history:arguments/add_note (n=40)" in out
    assert "◂ budget" in out
    why = json.loads(cli("explain", "add_note", "--quantum", "8", "--json")[1])
    assert why["target"] % 8 == 0
    assert why["median"] == pytest.approx(21, abs=2)
    assert why["levels"]["kind"] == 40
    assert sum(why["experts"].values()) == pytest.approx(1)


def test_a_key_that_is_not_one_step_lists_the_steps(cli, taught):
    code, _, err = cli("explain", "desk")
    assert code == 2
    assert "several steps have 'desk' in the name; there are: arguments/desk/add_note/small" in err
    assert "no step has 'fly' in the name" in cli("explain", "fly")[2]


def test_lint_names_the_fields_without_a_limit(cli, tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    code, out, _ = cli("lint", "tools.py")
    assert code == 0
    assert "add `maxLength`" not in out  # backticks are drawn as colour
    assert "text    add maxLength, or an enum" in out
    assert "tags[]  add maxItems" in out
    assert "1 of 2 tools can grow without limit" in out
    turn, note = json.loads(cli("lint", "tools.py", "--json")[1])
    assert turn["unbounded"] == {}
    assert turn["max_tokens"] >= turn["min_tokens"]
    assert note["max_tokens"] is None


def test_exported_lengths_add_up_when_they_are_imported_again(cli, taught):
    assert cli("export", "lengths.json")[:2] == (0, "2 kinds of step written to lengths.json\n")
    assert cli("import", "lengths.json")[:2] == (
        0,
        "2 kinds of step known in .agentdiff/lengths.sqlite\n",
    )
    store = open_store(taught)
    assert set(LengthPredictor(store).keys().values()) == {80, 40}
    store.close()


def test_an_import_may_replace_and_may_start_a_new_model(cli, taught):
    cli("export", "lengths.json")
    code, out, _ = cli("import", "lengths.json", "--replace", "--adopt", "small=large")
    assert (code, out) == (0, "4 kinds of step known in .agentdiff/lengths.sqlite\n")
    code, _, err = cli("import", "lengths.json", "--replace", "--adopt", "none=large")
    assert code == 2
    assert "nothing is known of a model 'none'" in err
    assert "`--adopt` must be OLD=NEW" in cli("import", "lengths.json", "--adopt", "small")[2]


def test_a_replay_prints_figures_and_a_picture(cli, recorded):
    code, out, _ = cli("replay", recorded)
    assert code == 0
    assert "total" in out
    assert "█ fits" in out
    assert max(map(len, out.splitlines())) <= 105


def test_a_replay_as_json_has_totals_and_sources(cli, recorded):
    code, out, _ = cli("replay", recorded, "--quantum", "8", "--target", "0.95", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["total"] == report["by_source"]["desk"]
    assert {"coverage", "overshoot", "lin", "wasted"} < set(report["total"])


def test_a_replay_draws_an_svg_with_a_dot_for_each_step(cli, recorded, tmp_path):
    cli("replay", recorded, "--svg", "plot.svg")
    drawn = ElementTree.parse(tmp_path / "plot.svg")
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == 120


def test_a_replay_draws_a_png_in_the_colours_of_fits_and_misses(cli, recorded, tmp_path):
    assert cli("replay", recorded, "--png", "plot.png", "--json")[0] == 0
    width, height, pixels = decoded((tmp_path / "plot.png").read_bytes())
    assert (width, height) == (640, 640)
    colors = {pixels[at : at + 3] for at in range(0, len(pixels), 3)}
    assert {b"\xff\xff\xff", b"\x22\x22\x22", b"\x08\x91\xb2", b"\xdc\x26\x26"} < colors


def decoded(file):
    """Width, height and RGB bytes of a PNG whose rows have no filter."""
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(file):
        (length,) = struct.unpack_from(">I", file, at)
        name, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", file, at + 8 + length) == (zlib.crc32(name + data),)
        chunks[name] = data
        at += 12 + length
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    rows = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 3 * width
    return width, height, b"".join(rows[y * stride + 1 : (y + 1) * stride] for y in range(height))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show",), "there is no store at"),
        (("replay", "absent.jsonl"), "'absent.jsonl' cannot be read: No such file"),
        (("replay", "bad.jsonl"), "a line is not JSON"),
        (("replay", "list.jsonl"), "line 1: not a JSON object"),
        (("replay", "empty.jsonl", "--target", "1"), "`--target` must be in"),
        (("replay", "short.jsonl"), "row 1: `src` must be a text, got None"),
        (("replay", "bad.gz"), "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(cli, tmp_path, arguments, message):
    for name, text in (("bad", "{"), ("list", "[]"), ("empty", ""), ("short", "{}")):
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "bad.gz").write_text("no archive")
    code, out, err = cli(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_looking_makes_no_store(cli, tmp_path):
    cli("show")
    assert list(tmp_path.iterdir()) == []
    assert cli("replay", "--help")[0] == 0


def test_a_replay_of_nothing_says_so(cli, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert cli("replay", "empty.jsonl")[:2] == (0, "no steps to measure\n")


def test_a_store_that_holds_nothing_says_so(cli, tmp_path):
    open_store(tmp_path / "lengths.db").close()
    assert cli("show", "--store", "lengths.db")[:2] == (0, "nothing has been learned yet\n")


def test_a_broken_store_is_an_error_that_names_it(cli, tmp_path):
    (tmp_path / "lengths.db").write_bytes(b"no database " * 99)
    code, _, err = cli("show", "--store", "lengths.db")
    assert code == 1
    assert "'lengths.db' cannot be used: file is not a database" in err
