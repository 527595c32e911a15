"""Tool choice and argument validity on cases of the Berkeley Function-Calling Leaderboard.

    python -m tests.benchmarks.bfcl FILE [--rows 40]

FILE is `bfcl.jsonl.gz` (Apache-2.0; not part of this repository): questions, tools, and what may
be called. First every known answer is played by a scripted backend through an agent with the tools
of its case: how many calls are taken as valid? Some are at fault themselves; the file says which,
and they should not be. Then the embedded model answers the first `--rows` cases of three categories
(0: all): how often does it choose the right tool, or none where none fits, and how often are all
arguments among those allowed? Strings are compared as the leaderboard does: without case, spaces
and `,./-_*^`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import anyio

from agentdiff import Agent, Scripted, Tool, ToolCall, ToolSpec, UsageLimits, connect
from agentdiff.agent.mcp import BareSchema
from agentdiff.errors import AgentDiffError
from agentdiff.generation import Backend, Budget, Request, generate
from agentdiff.messages import Json, Message, system, user

SERVED = ("simple_python", "multiple", "irrelevance")
"""Categories with one call at most; the embedded model writes one call at a time."""
MAX_TOOLS = 10
BUDGET = Budget(target=32, ceiling=192)
_IGNORED = re.compile(r"[ ,./\-_*^]")


def cases_in(path: Path) -> Iterator[dict[str, Any]]:
    """The cases, names written as an API takes them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            for named in (*case["tools"], *case["expected"], *case["calls"]):
                named["name"] = re.sub(r"[^A-Za-z0-9_-]", "_", named["name"])
            yield case


# --- known answers, played ---


async def replayed(case: dict[str, Any]) -> tuple[int, int]:
    """(calls of the known answer, those that ran) with an agent that has the tools of the case."""
    ran = 0

    async def run(arguments: dict[str, Json]) -> str:
        nonlocal ran
        ran += 1
        return "done"

    tools = [
        Tool(
            function=run,
            name=each["name"],
            description=each["description"],
            _parameters=BareSchema(each["name"], each["parameters"]),
        )
        for each in case["tools"]
    ]
    calls = [
        ToolCall(id=f"c{place}", name=call["name"], arguments=call["arguments"])
        for place, call in enumerate(case["calls"])
    ]
    backend = Scripted([calls, "Done."] if calls else ["Done."])
    result = await Agent(backend, tools=tools, limits=UsageLimits(requests=2)).run(
        case["question"][-1]["content"]
    )
    backend.assert_done()
    assert len(result.steps) == 1 + bool(calls)
    return len(calls), ran


# --- the embedded model ---


async def answered(backend: Backend, case: dict[str, Any]) -> tuple[bool, bool]:
    """(the right tool was chosen, and with arguments that are allowed)."""
    roles = {"system": system, "user": user}
    messages: tuple[Message, ...] = tuple(
        roles[each["role"]](each["content"]) for each in case["question"]
    )
    tools = tuple(
        ToolSpec(name=each["name"], description=each["description"], parameters=each["parameters"])
        for each in case["tools"]
    )
    result = await generate(
        backend, Request(kind="route", messages=messages, tools=tools, budget=BUDGET)
    )
    if not case["expected"]:
        is_right = result.reason == "refused"
        return is_right, is_right
    (wanted,) = case["expected"]
    if len(result.tool_calls) != 1 or result.tool_calls[0].name != wanted["name"]:
        return False, False
    return True, are_allowed(dict(result.tool_calls[0].arguments), wanted["arguments"])


def are_allowed(given: dict[str, Json], allowed: dict[str, list[Any]]) -> bool:
    """Whether each argument is among its allowed values; `""` among them says that it may be left out."""
    if given.keys() - allowed.keys():
        return False
    return all(
        any(is_same(given[name], value) for value in values) if name in given else "" in values
        for name, values in allowed.items()
    )


def is_same(given: Json, value: Any) -> bool:
    if isinstance(given, str) and isinstance(value, str):
        return _IGNORED.sub("", given).lower() == _IGNORED.sub("", value).lower()
    if isinstance(given, list) and isinstance(value, list):
        return len(given) == len(value) and all(map(is_same, given, value))
    if isinstance(given, dict) and isinstance(value, dict):
        return are_allowed(given, value)
    return isinstance(given, bool) == isinstance(value, bool) and given == value


async def report(path: Path, rows: int) -> None:
    cases = list(cases_in(path))
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        calls, ran = await replayed(case)
        at_fault = bool(case["problems"])
        totals[case["category"]] += Counter(cases=1, calls=calls, ran=ran, at_fault=at_fault)
    print("| known answers, played | cases | at fault themselves | calls | valid |")
    print("|---|---|---|---|---|")
    for category, count in totals.items():
        print(
            f"| {category} | {count['cases']} | {count['at_fault']} | {count['calls']}"
            f" | {count['ran']} |"
        )

    backend = connect("embedded")
    print("\n| embedded model | cases | right tool | and arguments | not served | s/case |")
    print("|---|---|---|---|---|---|")
    for category in SERVED:
        mine = (case for case in cases if case["category"] == category)
        tool = exact = asked = 0
        left_out: Counter[str] = Counter()
        started = time.process_time()
        for case in islice(mine, rows or None):
            if len(case["tools"]) > MAX_TOOLS:
                left_out["too many tools"] += 1
                continue
            try:
                is_tool, is_exact = await answered(backend, case)
            except AgentDiffError as error:
                left_out[type(error).__name__] += 1
                continue
            asked, tool, exact = asked + 1, tool + is_tool, exact + is_exact
        spent = (time.process_time() - started) / max(1, asked)
        why = ", ".join(f"{count} {name}" for name, count in left_out.items()) or "0"
        print(
            f"| {category} | {asked} | {tool / max(1, asked):.1%} | {exact / max(1, asked):.1%}"
            f" | {why} | {spent:.2f} |"
        )
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    await backend.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=40, help="of each category; 0 for all")
    options = parser.parse_args()
    anyio.run(report, options.file, options.rows)


if __name__ == "__main__":
    main()
