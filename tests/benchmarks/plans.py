"""Plans of NESTFUL and Seal-Tools, run through the executor: are they taken or refused rightly, and what is the gain?

    python -m tests.benchmarks.plans FOLDER

FOLDER holds `nestful.jsonl.gz` and `seal-tools.jsonl.gz` (Apache-2.0; not part of this repository). Every plan is
checked against its tools. Then all that have an order (unique ids, no circle) run three times with the same simulated
tool latencies, equal ones and log-normal ones: one call after the other, level by level, and as dataflow. The clock is
trio's mock clock, which only sleeping moves: the figures are exact and the same on every machine.

At the end `mode="auto"` is held against the same data: does a prompt that needs two tools look like it, and one that
needs one not? Beside the tools of a case stand four of other cases, so that there is something to confuse. Where FOLDER
holds `bfcl.jsonl.gz` too (the Berkeley Function-Calling Leaderboard, Apache-2.0), so is its questions' need.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import anyio
import trio.testing

from agentdiff.agent.auto import looks_like_several
from agentdiff.agent.dataflow import Returned, execute
from agentdiff.agent.plan import Plan, PlanStep
from agentdiff.agent.plan_check import faults_of
from agentdiff.agent.tools import AnyTool
from agentdiff.messages import Json, ToolSpec

MEDIAN_S = 0.02


class DataTool(NamedTuple):
    """As much of a tool as a check needs."""

    name: str
    parameters: dict[str, Json]
    returns: dict[str, Json] | None


class Case(NamedTuple):
    """A plan of the data."""

    steps: list[dict[str, Json]]
    tools: dict[str, DataTool]
    is_clean: bool
    """Whether the data say that nothing is wrong with it."""


def nestful(path: Path) -> list[Case]:
    """The plans of NESTFUL: `$var1.field$` refers to the call labelled `var1`."""
    return [
        Case(
            [
                {
                    "id": call["label"].strip("$"),
                    "tool": call["name"],
                    "arguments": _rewritten(call["arguments"]),
                }
                for call in row["expected"]
            ],
            _tools(row["tools"]),
            not row["problems"],
        )
        for row in _rows(path)
    ]


def seal_tools(path: Path) -> list[Case]:
    """The plans of Seal-Tools: an argument that is the id of a response refers to that field of its call."""
    cases: list[Case] = []
    for row in _rows(path):
        tools = _tools(row["tools"])
        fields: dict[str, str] = {}
        steps: list[dict[str, Json]] = []
        for number, call in enumerate(row["expected"], 1):
            arguments = {
                name: _substituted(value, fields) for name, value in call["arguments"].items()
            }
            steps.append({"id": f"s{number}", "tool": call["name"], "arguments": arguments})
            returns: dict[str, Json] = {}
            if call["name"] in tools:
                returns = (tools[call["name"]].returns or {}).get("properties", {})
            for response, field in zip(call["responses"], returns, strict=False):
                fields[response] = f"$s{number}.{field}"
        cases.append(Case(steps, tools, not row["problems"]))
    return cases


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _tools(rows: Sequence[Mapping[str, Any]]) -> dict[str, DataTool]:
    return {
        r["name"]: DataTool(r["name"], _closed(r["parameters"]), r.get("returns")) for r in rows
    }


def _closed(parameters: Mapping[str, Json]) -> dict[str, Json]:
    """As our own tools are: no argument that is not named."""
    return {**parameters, "additionalProperties": False}


def _rewritten(value: Json) -> Json:
    if isinstance(value, str):
        return re.sub(r"\$([A-Za-z_]\w*(?:\.\w+|\[\d+\])*)\$", r"$\1", value)
    if isinstance(value, list):
        return [_rewritten(item) for item in cast("list[Json]", value)]
    if isinstance(value, dict):
        return {key: _rewritten(item) for key, item in cast("dict[str, Json]", value).items()}
    return value


def _substituted(value: Json, fields: Mapping[str, str]) -> Json:
    if not isinstance(value, str):
        return value
    for response in sorted(fields, key=len, reverse=True):
        value = re.sub(rf"\b{re.escape(response)}\b", lambda _, r=response: fields[r], value)
    return value


def plan_of(case: Case) -> Plan | None:
    """The case as a plan; None where an id or the shape is impossible."""
    try:
        return Plan.model_validate({"steps": case.steps})
    except ValueError:
        return None


class Everything(dict[str, "Everything"]):
    """A result in which every part is there."""

    def __missing__(self, key: str) -> Everything:
        return Everything()


async def sequential(plan: Plan, call: Callable[[PlanStep], Awaitable[None]]) -> None:
    """One call after the other."""
    for step in plan.steps:
        await call(step)


async def by_levels(plan: Plan, call: Callable[[PlanStep], Coroutine[Any, Any, None]]) -> None:
    """All steps whose needs are met, then the next level: a barrier between them."""
    left = list(plan.steps)
    over: set[str] = set()
    while left:
        level = [step for step in left if over.issuperset(step.needs)]
        async with anyio.create_task_group() as tasks:
            for step in level:
                tasks.start_soon(call, step)
        over |= {step.id for step in level}
        left = [step for step in left if step.id not in over]


async def measure(plans: Sequence[Plan], sigma: float) -> tuple[float, float, int]:
    """(sequential / dataflow, levels / dataflow, plans slower than by levels)."""
    totals = [0.0, 0.0, 0.0]
    slower = 0
    for number, plan in enumerate(plans):
        rng = Random(number)
        took = {step.id: MEDIAN_S * math.exp(rng.gauss(0, sigma)) for step in plan.steps}

        async def sleep(step: PlanStep, took: Mapping[str, float] = took) -> None:
            await anyio.sleep(took[step.id])

        async def call(
            step: PlanStep, arguments: Mapping[str, Json], took: Mapping[str, float] = took
        ) -> Returned:
            await anyio.sleep(took[step.id])
            return Returned(result=Everything())

        times: list[float] = []
        for way in (
            lambda plan=plan: sequential(plan, sleep),
            lambda plan=plan: by_levels(plan, sleep),
            lambda plan=plan: execute(plan, call),
        ):
            started = anyio.current_time()
            await way()
            times.append(anyio.current_time() - started)
        totals = [total + t for total, t in zip(totals, times, strict=True)]
        slower += times[2] > times[1] + 1e-9
    one, levels, flow = totals
    return one / flow, levels / flow, slower


def needs(path: Path, key: str) -> list[tuple[str, list[ToolSpec], bool]]:
    """(prompt, its tools, whether it needs two or more of them) of the cases that have two tools to choose from."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    others = [tool for case in cases for tool in case["tools"]]
    rng = Random(1)
    found: list[tuple[str, list[ToolSpec], bool]] = []
    for case in cases:
        tools = {tool["name"]: tool for tool in case["tools"]}
        if key == "query":  # BFCL brings its own to confuse
            tools |= {tool["name"]: tool for tool in rng.sample(others, 4)}
        wanted = {call["name"] for call in case["expected"]}
        if len(tools) > 1 and wanted:
            asked = case[key] if key == "query" else case[key][-1]["content"]
            specs = [ToolSpec(name=name, description=t["description"]) for name, t in tools.items()]
            found.append((asked, specs, len(wanted) > 1))
    return found


def told_apart(folder: Path) -> None:
    """Print how often `mode="auto"` is right about what needs a plan."""
    for name, file, key in (
        ("NESTFUL", "nestful.jsonl.gz", "query"),
        ("Seal-Tools", "seal-tools.jsonl.gz", "query"),
        ("BFCL", "bfcl.jsonl.gz", "question"),
    ):
        if not (folder / file).exists():
            continue
        said = [
            (need, looks_like_several(prompt, specs))
            for prompt, specs, need in needs(folder / file, key)
        ]
        several = [guess for need, guess in said if need]
        one = [guess for need, guess in said if not need]
        print(
            f"auto, {name}: planned {sum(several)} of {len(several)} that need two tools or more,"
            f" {sum(one)} of {len(one)} that need one"
        )


def main() -> None:
    """Check, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", action="store_true", help="print why clean plans are refused")
    args = parser.parse_args()
    for name, cases in (
        ("NESTFUL", nestful(args.folder / "nestful.jsonl.gz")),
        ("Seal-Tools", seal_tools(args.folder / "seal-tools.jsonl.gz")),
    ):
        taken: dict[bool, list[bool]] = {True: [], False: []}
        plans: list[Plan] = []
        for case in cases:
            plan = plan_of(case)
            faults = ["not a plan"] if plan is None else faults_with(plan, case.tools)
            taken[case.is_clean].append(not faults)
            if faults and case.is_clean and args.faults:
                print("   ", faults)
            if plan is not None and not faults_with(plan, anything(plan)):
                plans.append(plan)
        clean, faulty = taken[True], taken[False]
        print(
            f"{name}: {len(cases)} plans; {sum(clean)} of {len(clean)} clean ones taken,"
            f" {len(faulty) - sum(faulty)} of {len(faulty)} faulty ones refused; {len(plans)} have an order"
        )
        several = [plan for plan in plans if len(plan.steps) > 1]
        for what, some in (("all", plans), ("two calls or more", several)):
            for latencies, sigma in (("equal", 0.0), ("log-normal, sigma 0.6", 0.6)):
                gain, over_levels, slower = anyio.run(
                    measure,
                    some,
                    sigma,
                    backend="trio",
                    backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)},
                )
                print(
                    f"    {what} ({len(some)}), latencies {latencies}: dataflow {gain:.2f}x over one after"
                    f" the other, {over_levels:.3f}x over levels, slower than levels in {slower} plans"
                )
    told_apart(args.folder)


def faults_with(plan: Plan, tools: Mapping[str, DataTool]) -> list[str]:
    """What is wrong with a plan over these tools."""
    return list(faults_of(plan, cast("Mapping[str, AnyTool]", tools), known={}))


def anything(plan: Plan) -> dict[str, DataTool]:
    """Tools that take everything: what is wrong with a plan over them is wrong with its order."""
    return {step.tool: DataTool(step.tool, {}, None) for step in plan.steps}


if __name__ == "__main__":
    main()
