"""How good the embedded router is: every committed evaluation set through the real backend.

A row is right when the reply is the expected tool with the expected arguments, all of them and no others; an argument
that only repeats its declared default counts as absent.
"""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from agentdiff.embedded.tools import shipped_tools
from agentdiff.generation import Budget, Request, Result, generate
from agentdiff.messages import Json, ToolSpec, assistant, tool_result, user

if TYPE_CHECKING:
    from agentdiff.generation import Backend
    from agentdiff.messages import Message

EVALUATION = Path(__file__).parent / "evaluation"
SETS = {
    "shipped tools, unseen phrasings": ("shipped_phrasings.jsonl", 0.95),
    "unseen tools": ("unseen_calls.jsonl", 0.80),
    "hand-written, shipped tools": ("hand_shipped.jsonl", 0.75),
    "hand-written, foreign tools": ("hand_foreign.jsonl", 0.75),
    "hand-written, no tool fits": ("hand_none.jsonl", 0.92),
    "hand-written, second of two steps": ("hand_chain.jsonl", None),
}
"""Title -> (file, the bar that was set before training)."""
BUDGET = Budget(target=32, ceiling=192)


@dataclass(slots=True)
class Score:
    """Counts over one evaluation set."""

    title: str
    bar: float | None = None
    rows: int = 0
    exact: int = 0
    right_tool: int = 0
    refused: int = 0
    tokens: int = 0
    forwards: int = 0
    positions: int = 0
    cpu_s: float = 0.0
    wrong: list[tuple[str, Json, Json, float]] = field(
        default_factory=list[tuple[str, Json, Json, float]]
    )
    """(request, expected, got, confidence) of the rows that are not exact."""

    @property
    def accuracy(self) -> float:
        """Share of exact rows."""
        return self.exact / max(1, self.rows)

    @property
    def tokens_per_forward(self) -> float:
        """Output tokens for each forward pass, prefill and block stores included."""
        return self.tokens / max(1, self.forwards)

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of processor time for each generation, tokenizing and grammar included."""
        return 1000 * self.cpu_s / max(1, self.rows)


@dataclass(frozen=True, slots=True)
class Case:
    """One generation to be judged."""

    request: Request
    expect: Json
    result_text: str | None = None
    """The result that a `from_result` argument must be a span of."""


def load_cases(
    path: Path, specs: Mapping[str, ToolSpec], run: Callable[[str, Json], str]
) -> list[Case]:
    """The cases of a set; `run(tool, arguments)` really runs a shipped tool, for second steps."""
    cases: list[Case] = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        tools = tuple(specs.values())
        if isinstance(row.get("tools"), list):
            tools = tuple(
                ToolSpec(name=t["name"], description=t["description"], parameters=t["parameters"])
                for t in row["tools"]
            )
        messages: tuple[Message, ...] = (user(row["request"]),)
        expect, result_text = row["expect"], None
        if isinstance(expect, list):
            first, expect = cast("list[dict[str, Json]]", expect)
            arguments: dict[str, Json] = {
                name: accepted[0] for name, accepted in first["args"].items()
            }
            result_text = run(first["tool"], arguments)
            call = _call(first["tool"], arguments)
            messages = (*messages, assistant(tool_calls=[call]), tool_result(call, result_text))
        request = Request(messages=messages, tools=tools, kind="route", budget=BUDGET)
        cases.append(Case(request, expect, result_text))
    return cases


def _call(tool: str, arguments: Mapping[str, Json]) -> Any:
    from agentdiff.messages import ToolCall

    return ToolCall(id="call_0", name=tool, arguments=dict(arguments))


def is_exact(case: Case, result: Result) -> bool:
    """Whether the reply is what the case expects."""
    if "none" in case.expect:
        return result.reason == "refused"
    if len(result.tool_calls) != 1 or result.tool_calls[0].name != case.expect["tool"]:
        return False
    spec = next(tool for tool in case.request.tools if tool.name == case.expect["tool"])
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    expected: Mapping[str, Json] = case.expect["args"]
    given = {
        name: value
        for name, value in result.tool_calls[0].arguments.items()
        if name in expected or value != properties.get(name, {}).get("default", ...)
    }
    if given.keys() != expected.keys():
        return False
    return all(_accepted(case, given[name], accepted) for name, accepted in expected.items())


def _accepted(case: Case, value: Json, accepted: Json) -> bool:
    if isinstance(accepted, dict):
        return bool(str(value)) and str(value) in (case.result_text or "")
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in accepted
    )


async def judge(
    backend: Backend, title: str, cases: Sequence[Case], *, bar: float | None = None, jobs: int = 1
) -> Score:
    """Run all cases, `jobs` at a time, and count."""
    score = Score(title, bar)
    limiter = anyio.CapacityLimiter(jobs)

    async def one(case: Case) -> None:
        async with limiter:
            result = await generate(backend, case.request)
        score.rows += 1
        score.exact += (exact := is_exact(case, result))
        score.refused += result.reason == "refused"
        calls = result.tool_calls
        score.right_tool += bool(calls) and calls[0].name == case.expect.get("tool")
        score.tokens += (result.usage.output_tokens or 0) + 1
        score.forwards += result.stats.forwards or 0
        score.positions += result.stats.positions or 0
        if not exact:
            got = [calls[0].name, dict(calls[0].arguments)] if calls else result.reason
            score.wrong.append(
                (case.request.messages[0].content, case.expect, got, result.stats.confidence or 0)
            )

    before = time.process_time()
    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(one, case)
    score.cpu_s = time.process_time() - before
    return score


async def bench(backend: Backend, root: Path, *, jobs: int = 1, only: str = "") -> list[Score]:
    """Scores of all sets. `root` is an empty folder in which the first steps of chains really run."""
    gc.freeze()  # as `agentdiff run` does: what is loaded is not looked through again and again
    scores: list[Score] = []
    for title, (file, bar) in SETS.items():
        if only and only not in file:
            continue
        cases = await cases_of(file, root)
        scores.append(await judge(backend, title, cases, bar=bar, jobs=jobs))
    return scores


async def cases_of(file: str, root: Path) -> list[Case]:
    """The cases of a committed set. `root` is an empty folder in which the first steps of chains really run."""
    tools = {tool.name: tool for tool in shipped_tools(root)}
    specs = {name: tool.spec for name, tool in tools.items()}

    def run(name: str, arguments: Json) -> str:
        try:
            return str(anyio.from_thread.run(tools[name].call, arguments))
        except Exception as error:
            return f"error: {error}"

    return await anyio.to_thread.run_sync(load_cases, EVALUATION / file, specs, run)


def use_threads(count: int) -> None:
    """How many threads a forward pass may use; the latency figures are for one."""
    import torch

    torch.set_num_threads(count)


def machine() -> str:
    """The processor this runs on, for the record."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = f"{len(names)} x {names[0]}" if names else model
    return model
