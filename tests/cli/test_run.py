"""`agentdiff run`: what it prints, what it returns, and how it fails."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentdiff.backends.scripted import FunctionBackend, Scripted
from agentdiff.cli import main
from agentdiff.errors import ContextTooLong, Unavailable
from tests.cli.doubles import calls, embedded, refuses, says

ROOT = Path(__file__).parent.parent.parent
TOOLS = '''
def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("noise from a tool")
    return a + b

def shout(text: str) -> str:
    """Say it louder."""
    raise ValueError("too loud: \\x1b[31m" + text)
'''

Connect = Callable[..., Scripted]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Connect:
    """Makes `connect` answer with these replies, in a folder that has a module of tools."""
    (tmp_path / "my_tools.py").write_text(TOOLS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def script(*replies: Any) -> Scripted:
        backend = embedded(*replies)
        monkeypatch.setattr("agentdiff.backends.connect", lambda spec: backend)
        return backend

    return script


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    assert line.startswith("agentdiff: ")
    return line


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main(["run", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_run_without_a_terminal_prints_lines(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(calls(("calculate", {"expression": "17% of 2340"})), says("397.8"))
    assert main(["run", "what is 17% of 2340?"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "embedded · agentdiff-router, block diffusion"
    assert lines[2].startswith('● calculate(expression="17% of 2340")  ')
    assert lines[2].endswith("tokens · 6 forwards · 71 ms · in_block")
    assert "397.8" in lines[3]
    assert lines[4].startswith("● answer")
    assert lines[6] == "397.8"
    assert re.fullmatch(r"2 steps · \d+ tokens · [\d.]+ tokens per forward · .*tools", lines[8])
    assert "\x1b" not in out


def test_on_a_terminal_the_block_is_seen_being_denoised(
    connect: Connect, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("agentdiff.cli.display.FRAME_S", 0.0)
    connect(calls(("add", {"a": 1, "b": 2})), says("3"))
    assert main(["run", "1 + 2", "--tools", "my_tools"]) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert "░" in shown
    assert "loading the embedded model…" in shown
    assert "route · budget " in shown
    assert "● add(a=1, b=2) " in shown
    last = shown[shown.rindex("● answer") :].splitlines()
    assert "░" not in "".join(last)
    assert [len(line.rstrip()) <= 80 for line in last] == [True] * len(last)


def test_json_is_one_object_whatever_tools_print(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(calls(("add", {"a": 1, "b": 2}), ("shout", {"text": "hi"})), says("It is 3."))
    code, said = run_json(capsys, "1 + 2", "--tools", "my_tools.py")
    assert code == 0
    assert list(said) == ["output", "steps", "usage", "model"]
    assert (said["output"], said["model"]) == ("It is 3.", "agentdiff-router")
    add, shout, answer = said["steps"]
    assert list(add) == [
        "kind", "tool", "arguments", "result", "budget", "stats", "enforcement",
    ]  # fmt: skip
    assert (add["kind"], add["tool"], add["result"]) == ("route", "add", 3)
    assert add["arguments"] == {"a": 1, "b": 2}
    assert add["budget"]["used"] > 0
    assert add["stats"]["forwards"] == 6
    assert add["enforcement"] == "in_block"
    assert (shout["budget"], shout["stats"], shout["result"]) == (None, None, None)
    assert "too loud" in shout["error"]
    assert (answer["kind"], answer["tool"]) == ("answer", None)
    assert said["usage"]["requests"] == 2


def test_a_number_that_json_does_not_have_is_null(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "nan.py").write_text("def nan() -> float:\n    return float('nan')\n")
    connect(calls(("nan", {})), says("none"))
    _, said = run_json(capsys, "x", "--tools", "nan.py")
    assert said["steps"][0]["result"] is None


def test_a_refusal_exits_with_3_and_says_what_a_larger_model_would_do(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(refuses())
    assert main(["run", "write me a poem"]) == 3
    out, err = capsys.readouterr()
    assert "● no tool fits  " in out
    assert (
        "found no tool for this request; a larger diffusion model (`--backend local:…`)"
        in one_line(err)
    )


def test_another_backend_takes_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    error = Unavailable("connection refused", backend="down")
    down = FunctionBackend(lambda request: error, name="down")
    replies = calls(("calculate", {"expression": "1 + 1"})), says("2")
    backends = {"mercury:m": down, "embedded": embedded(*replies)}
    monkeypatch.setattr("agentdiff.backends.connect", lambda spec: backends[spec])
    command = ["1 + 1", "--backend", "mercury:m", "--backend", "embedded"]
    code, said = run_json(capsys, *command)
    assert (code, said["output"], said["model"]) == (0, "2", "agentdiff-router")
    assert len(down.requests) == 2
    assert said["steps"][0]["warnings"] == ["`down` was asked before: Unavailable"]


def test_json_says_why_there_is_no_output(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(refuses())
    code, said = run_json(capsys, "write me a poem")
    assert code == 3
    assert said["output"] is None
    assert said["error"]["type"] == "OutOfScope"
    (step,) = said["steps"]
    assert step["budget"]["used"] > 0
    assert "reason" not in step


def test_what_a_tool_returns_does_not_steer_the_terminal(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(calls(("shout", {"text": "hi"})), says("\x1b[2Jdone"))
    assert main(["run", "x", "--tools", "my_tools"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "→ ✗ ValueError: too loud: ?[31mhi" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([""], 2, "the task is empty"),
        (["  "], 2, "the task is empty"),
        ([], 2, "TASK"),
        (["x", "--nope"], 2, "--nope"),
        (["x", "--effort", "much"], 2, "'much'"),
        (["x", "--seed", "-1"], 2, "--seed"),
        (["x", "--root", "nowhere"], 2, "'nowhere' is not a folder"),
        (["x", "--root", "my_tools.py"], 2, "'my_tools.py' is not a folder"),
        (["x", "--tools", "no_such_module"], 2, "no_such_module"),
        (["x", "--tools", "broken.py"], 2, "SyntaxError"),
        (["x", "--tools", "untyped.py"], 2, "`value`"),
        (["bad \udcff bytes"], 2, "UTF-8"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    code: int,
    said: str,
    connect: Connect,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    (tmp_path / "untyped.py").write_text("def f(value): ...", encoding="utf-8")
    connect()
    before = sorted(tmp_path.iterdir())
    assert main(["run", *arguments]) == code
    out, err = capsys.readouterr()
    assert said in one_line(err)
    assert out == ""
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


def test_an_unknown_backend_is_one_line_and_touches_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("kept")
    root = tmp_path / "root"
    root.mkdir()
    command = ["run", "x", "--backend", "magic", "--root", str(root), "--trace", str(trace)]
    assert main(command) == 2
    assert "'magic'" in one_line(capsys.readouterr().err)
    assert trace.read_text() == "kept"
    assert list(root.iterdir()) == []


def test_a_missing_extra_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['numpy'] = sys.modules['torch'] = None\n"
        "from agentdiff.cli import main; sys.exit(main(['run', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "pip install 'agentdiff[local]'" in one_line(done.stderr)


def test_a_task_that_does_not_fit_is_one_line(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(ContextTooLong("the task takes 3000 tokens\nand more", backend="embedded"))
    assert main(["run", "long " * 3000]) == 1
    assert "3000 tokens and more" in one_line(capsys.readouterr().err)


def test_a_broken_store_is_reported_and_the_run_goes_on(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / ".agentdiff").mkdir()
    (tmp_path / ".agentdiff" / "lengths.sqlite").write_bytes(b"not a database" * 100)
    connect(calls(("calculate", {"expression": "1 + 1"})), says("2"))
    assert main(["run", "1 + 1"]) == 0
    out, err = capsys.readouterr()
    assert "warning" in one_line(err)
    assert "\n2\n" in out


def test_lengths_are_learned_below_the_root(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "there"
    root.mkdir()
    connect(calls(("calculate", {"expression": "1 + 1"})), says("2"))
    assert main(["run", "1 + 1", "--root", str(root)]) == 0
    assert [path.name for path in (root / ".agentdiff").iterdir()] == ["lengths.sqlite"]
    assert not (tmp_path / ".agentdiff").exists()


def test_a_trace_is_written_and_named(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    connect(calls(("calculate", {"expression": "1 + 1"})), says("2"))
    assert main(["run", "1 + 1", "--trace", "run.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "agentdiff trace show run.jsonl" in out
    names = [
        span["name"]
        for line in (tmp_path / "run.jsonl").read_text().splitlines()
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    assert any(name.startswith("execute_tool") for name in names)
    assert any(name.startswith("invoke_agent") for name in names)


def test_a_trace_that_cannot_be_written_is_one_line(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    connect(says("never"))
    assert main(["run", "x", "--trace", "no/such/folder/run.jsonl"]) == 1
    out, err = capsys.readouterr()
    assert "no/such/folder/run.jsonl" in one_line(err)
    assert out == ""


def test_ctrl_c_while_the_model_writes_ends_the_run(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hang(request: object) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()
        return ""

    connect(hang)
    assert main(["run", "x"]) == 130
    assert one_line(capsys.readouterr().err) == "agentdiff: interrupted"


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_does_not_wait_for_a_tool_that_hangs(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "hanging.py").write_text(
        "import os, signal, threading\n"
        "def hang() -> str:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Event().wait(60)\n",
        encoding="utf-8",
    )
    script = (
        "import sys, agentdiff.backends, agentdiff.cli, agentdiff.cli.interrupt as interrupt\n"
        "from tests.cli.doubles import calls, embedded\n"
        "interrupt.GRACE_S = 0.05\n"
        "agentdiff.backends.connect = lambda spec: embedded(calls(('hang', {})))\n"
        "sys.exit(agentdiff.cli.main())"
    )
    command = [sys.executable, "-c", script, "run", "x", "--root", str(tmp_path)]
    command += ["--tools", str(tmp_path / "hanging.py"), *(["--json"] if as_json else [])]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 130
    assert one_line(done.stderr) == "agentdiff: interrupted"
    if as_json:
        assert json.loads(done.stdout)["error"]["type"] == "Interrupted"


@pytest.mark.local
def test_a_reader_that_goes_away_is_no_disaster(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -c 'from agentdiff.cli import main; raise SystemExit(main())'"
        f" run 'what is 2 + 2' --root {tmp_path} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("embedded")
