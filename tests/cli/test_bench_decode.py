"""`agentdiff bench decode`: the picture on made-up points, the whole command on a few requests."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest

from agentdiff.cli import main

pytest.importorskip("torch", reason="torch (the `local` extra) is not installed")

from rich.console import Console

from agentdiff.cli import decode_picture as picture
from agentdiff.embedded.bench import SETS
from agentdiff.embedded.sweep import Point, Setting, every_setting, load, measure, sample
from agentdiff.engine import Factor, Quota, Threshold


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # so that they are put back
    monkeypatch.setenv("COLUMNS", "80")


def point(kind: str, dial: float, speed: float, exact: float) -> Point:
    policy = Threshold(dial) if kind == "threshold" else Factor(dial)
    effort = "balanced" if (kind, dial) == ("threshold", 0.9) else None
    return Point(
        setting=Setting(kind=kind, dial=dial, policy=policy, effort=effort),
        exact=exact,
        tokens_per_forward=speed,
        forwards=20 / speed,
        positions=250,
        cpu_ms=50,
    )


POINTS = [
    point("threshold", 0.5, 6.0, 0.6),
    point("threshold", 0.9, 4.0, 0.8),
    point("factor", 0.3, 5.0, 0.6),
    point("factor", 1.0, 4.0, 0.7),
    point("factor", 3.0, 5.0, 0.7),
]


def test_the_frontier_is_what_no_other_setting_beats() -> None:
    assert [p.setting.name for p in picture.frontier(POINTS)] == [
        "threshold 0.9",
        "factor 3",
        "threshold 0.5",
    ]
    assert picture.frontier([POINTS[0], POINTS[0]]) == [POINTS[0]]


def test_the_picture_has_every_setting_the_line_and_the_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [line.plain for line in picture.plot(POINTS, width=60)]
    assert max(map(len, lines)) <= 60
    drawn = lines[1 : 1 + picture.ROWS]
    assert sum(line.count("●") for line in drawn) == 2
    assert sum(line.count("▲") for line in drawn) == 3
    assert drawn[0].startswith(" 80.0% │●")
    assert "balanced" in drawn[0]
    assert drawn[-1].rstrip().endswith("●")
    assert "4.00" in lines[-4]
    Console(width=80).print(picture.table(POINTS))
    said = capsys.readouterr().out
    assert said.count("✓") == 3
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("points", [POINTS[:1], [POINTS[0], POINTS[0]]])
def test_one_point_is_a_picture_too(points: list[Point]) -> None:
    assert sum(line.plain.count("●") for line in picture.plot(points, width=40)) == 2  # the legend
    assert picture.as_svg(points, title="a & b").count("<title>") == len(points)


def test_the_svg_names_every_setting() -> None:
    drawn = picture.as_svg(POINTS, title="a & b")
    assert all(one.setting.name in drawn for one in POINTS)
    assert "a &amp; b" in drawn


def test_the_efforts_are_measured_on_a_real_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = {"one set": SETS["hand-written, shipped tools"]}
    monkeypatch.setattr("agentdiff.embedded.sweep.SETS", few)
    svg = tmp_path / "frontier.svg"
    assert main(["bench", "decode", "--sample", "1", "--svg", str(svg), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["machine"]
    assert said["requests"] == 1
    assert [one["effort"] for one in said["settings"]] == ["speed", "balanced", "quality"]
    for one in said["settings"]:
        assert 0 <= one["exact"] <= 1
        assert one["positions"] > one["forwards"] >= 1
        assert one["tokens_per_forward"] > 1
    assert any(one["on_frontier"] for one in said["settings"])
    assert svg.read_text("utf-8").startswith("<svg")


def test_a_setting_reaches_the_decode(tmp_path: Path) -> None:
    backend, engine = load()
    cases = anyio.run(partial(sample, tmp_path, size=6, seed=7))[:1]
    settings = [Setting(kind="quota", dial=n, policy=Quota(steps=n)) for n in (1, 16)]
    few, many = (anyio.run(measure, backend, engine, setting, cases) for setting in settings)
    assert few.forwards < many.forwards
    assert few.positions < many.positions


def test_a_sweep_has_each_setting_once_and_the_efforts_among_them() -> None:
    settings = every_setting(load()[1].family.traits)
    chosen = [(s.policy, s.revision, s.speculation) for s in settings]
    assert all(chosen.count(one) == 1 for one in chosen)
    assert [s.effort for s in settings if s.effort] == ["speed", "balanced", "quality"]
    assert len({setting.kind for setting in settings}) >= 6
