from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.goldens.check import check_folder, main

GOLDENS = Path(__file__).parent


def test_a_folder_that_holds_says_so_and_one_that_does_not_names_the_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        shutil.copytree(GOLDENS / "llada_moe", folder)
    forward = load_file(bad / "forward.safetensors")
    forward["left_pad.logits"][0, -1, 7] += 2e-4
    save_file(forward, bad / "forward.safetensors")
    trace = json.loads((bad / "trace.json").read_text())
    run = trace["runs"][1]
    run["steps"][3]["canvas"][0][-1] = 1
    run["forward_passes"] += 1
    trace["runs"][2]["forward_passes"] += 1
    (bad / "trace.json").write_text(json.dumps(trace))

    assert main(good) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-1] == "ok"

    assert main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "bad: left_pad: logits differ by 0.0002" in out
    assert f"bad: {run['name']}: step 3 differs" in out
    name, passes = trace["runs"][2]["name"], trace["runs"][2]["forward_passes"]
    assert f"bad: {name}: {passes - 1} forwards, the reference {passes}" in out
    assert out.count("FAILED") == 1


def test_a_folder_that_cannot_be_loaded_is_a_fault_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    report = check_folder(tmp_path)
    assert not report.is_good
    assert "not supported" in report.faults[0]
