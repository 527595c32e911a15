"""The shipped weights do what the model card says, through the same door as any checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest

from agentdiff.agent import Agent
from agentdiff.backends.local import LocalBackend
from agentdiff.embedded.bench import EVALUATION, SETS, Score, judge, load_cases
from agentdiff.embedded.tools import shipped_tools
from agentdiff.embedded.training.card import measured
from agentdiff.embedded.training.tokenizer import WEIGHTS
from agentdiff.errors import ConfigurationError, OutOfScope

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def backend() -> LocalBackend:
    return LocalBackend.load("embedded", device="cpu")


def metrics() -> list[dict]:
    return json.loads((WEIGHTS / "metrics.json").read_text("utf-8"))["sets"]


def test_the_files_are_the_ones_that_were_measured() -> None:
    sums = json.loads((WEIGHTS / "sha256.json").read_text("utf-8"))
    assert len(sums) >= 2
    for name, expected in sums.items():
        data = (WEIGHTS / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == expected
        assert len(data) < 4 * 1024 * 1024


def test_the_model_card_shows_the_measured_figures() -> None:
    assert measured() in (DOCS / "embedded.md").read_text("utf-8")


def test_evaluation_sets_are_large_enough() -> None:
    counts = {row["set"]: row["rows"] for row in metrics()}
    assert set(counts) == set(SETS)
    assert counts["shipped tools, unseen phrasings"] >= 500
    assert counts["unseen tools"] >= 500
    assert counts["hand-written, shipped tools"] >= 100
    assert counts["hand-written, no tool fits"] >= 100


@pytest.mark.parametrize("title", ["hand-written, shipped tools", "hand-written, no tool fits"])
def test_a_sample_of_a_set_scores_as_the_card_says(
    backend: LocalBackend, title: str, tmp_path: Path
) -> None:
    specs = {tool.name: tool.spec for tool in shipped_tools(tmp_path)}
    cases = load_cases(EVALUATION / SETS[title][0], specs, lambda _tool, _arguments: "")
    Random(1).shuffle(cases)
    score: Score = anyio.run(partial(judge, backend, title, cases[:40], jobs=8))
    (recorded,) = [row["exact"] for row in metrics() if row["set"] == title]
    assert score.accuracy >= recorded - 0.2


def test_replies_do_not_depend_on_what_runs_beside_them(backend: LocalBackend) -> None:
    cases = load_cases(EVALUATION / "hand_foreign.jsonl", {}, lambda _tool, _arguments: "")[-40:]
    alone, beside = (
        sorted(anyio.run(partial(judge, backend, "", cases, jobs=jobs)).wrong, key=lambda w: w[0])
        for jobs in (1, 6)
    )
    assert [row[:3] for row in alone] == [row[:3] for row in beside]
    assert [row[3] for row in alone] == pytest.approx([row[3] for row in beside], abs=1e-4)


def test_a_two_step_task_runs_to_its_answer(backend: LocalBackend, tmp_path: Path) -> None:
    agent = Agent(backend, tools=shipped_tools(tmp_path))
    result = agent.run_sync("convert 26.2 miles to km, then add a note with the result")
    calls = [call for step in result.steps for call in step.calls]
    assert [call.tool for call in calls] == ["convert_units", "add_note"]
    assert calls[0].result == "26.2 miles = 42.16481 km"
    assert "42.16481" in str(calls[1].result)
    assert all(step.enforcement == "in_block" for step in result.steps)
    notes = (tmp_path / ".agentdiff" / "notes.json").read_text("utf-8")
    assert "42.16481" in notes


@pytest.mark.parametrize("task", ["what is 17% of 2340?", "open the file nowhere.txt"])
def test_an_answer_is_made_of_what_the_tools_returned(
    backend: LocalBackend, tmp_path: Path, task: str
) -> None:
    result = Agent(backend, tools=shipped_tools(tmp_path)).run_sync(task)
    told = " ".join(m.content for m in result.messages if m.role == "tool")
    assert set(re.findall(r"\w+", result.output)) <= set(re.findall(r"\w+", told))


def test_a_request_that_no_tool_fits_is_refused(backend: LocalBackend, tmp_path: Path) -> None:
    agent = Agent(backend, tools=shipped_tools(tmp_path))
    with pytest.raises(OutOfScope, match=r"--backend") as caught:
        agent.run_sync("tell me a joke")
    assert caught.value.usage is not None


def test_more_tools_than_it_was_trained_for_are_refused(backend: LocalBackend) -> None:
    def tool_number(number: int):
        def stand_in(text: str) -> str:
            """Stand in."""
            return text

        stand_in.__name__ = f"tool_{number}"
        return stand_in

    with pytest.raises(ConfigurationError, match="13"):
        Agent(backend, tools=[tool_number(n) for n in range(13)]).run_sync("note milk")
