"""Servers killed under load: does every call end in time, and how; and what does a router cost?

Rounds of concurrent calls on real sockets, each with its own doomed server, killed when all calls are
under way: a third of them have text, a third have half of a structured output, a third have nothing.
Then the CPU time of a call through a router beside the same call without it.

    python tests/benchmarks/failover.py [ROUNDS]
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections import Counter

import anyio

from agentdiff.backends.openai import OpenAIBackend
from agentdiff.backends.router import Router
from agentdiff.backends.scripted import FunctionBackend
from agentdiff.errors import BackendError, TimedOut
from agentdiff.generation import Backend, Capabilities, Request, Result, generate
from agentdiff.messages import user
from tests.backends.conformance import CITY
from tests.backends.server import serving, until
from tests.backends.test_router_failover import half, well

CALLS = 50
DEADLINE_S = 20.0
REQUESTS = (
    Request(messages=(user("hello"),), deadline_s=DEADLINE_S),
    Request(messages=(user("hello"),), schema=CITY, deadline_s=DEADLINE_S),
    Request(messages=(user("silence"),), deadline_s=DEADLINE_S),
)


async def killed(counts: Counter[str], times: list[float]) -> None:
    """One round."""

    async def ask(router: Router, request: Request) -> None:
        began = anyio.current_time()
        try:
            result: Result | BackendError = await generate(router, request)
        except BackendError as error:
            result = error
        times.append(anyio.current_time() - began)
        if times[-1] > DEADLINE_S + 0.5:
            counts["LATE"] += 1
        if isinstance(result, TimedOut):
            counts["timed out"] += 1
        elif isinstance(result, BackendError):
            counts["typed error, its caller had text"] += 1
        elif result.usage.requests > 1 and not result.warnings:
            counts["ASKED TWICE AND NOT SAID"] += 1
        else:
            counts["answered by the other"] += 1

    async with serving(well) as alive:
        backends = [OpenAIBackend(alive.url, "m", name="b")]
        async with anyio.create_task_group() as tasks, serving(half) as doomed:
            backends.insert(0, OpenAIBackend(doomed.url, "m", name="a"))
            router = Router(backends)
            for number in range(CALLS):
                tasks.start_soon(ask, router, REQUESTS[number % 3])
            await until(lambda: doomed.answering == CALLS)
        counts["slots that were not given back"] += sum(b.service.in_use for b in backends)
        for backend in backends:
            await backend.aclose()


async def cost(backend: Backend, calls: int) -> float:
    """CPU seconds of a call."""
    request = Request(messages=(user("hello"),))
    for _ in range(50):
        await generate(backend, request)
    gc.collect()
    began = time.process_time()
    for _ in range(calls):
        await generate(backend, request)
    return (time.process_time() - began) / calls


async def main(rounds: int) -> None:
    counts: Counter[str] = Counter()
    times: list[float] = []
    for _ in range(rounds):
        await killed(counts, times)
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs")
    print(f"\n{rounds} rounds of {CALLS} calls, the server killed in the middle")
    for what, count in sorted(counts.items()):
        print(f"  {count:6}  {what}")
    missing = rounds * CALLS - len(times)
    print(
        f"  {missing:6}  never ended\n  slowest call {max(times):.2f} s, deadline {DEADLINE_S:g} s"
    )

    def double(name: str) -> FunctionBackend:
        return FunctionBackend(lambda request: "hi", name=name, capabilities=Capabilities())

    alone, routed = double("a"), Router([double("a"), double("b")])
    pairs = [(await cost(alone, 500), await cost(routed, 500)) for _ in range(5)]
    plain, through = (min(times) for times in zip(*pairs, strict=True))
    print(f"\na router costs {1e6 * (through - plain):.0f} us of CPU for a call (best of 5 rounds)")


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 10)
