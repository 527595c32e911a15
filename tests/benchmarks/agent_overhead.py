"""What the agent loop costs beside a bare HTTP loop, and beside other agent libraries.

A server of its own process answers ten tool calls and then a text, so a run is eleven model calls;
a step is one model call with its tool. Reported is the CPU time of the client for each step, as a
ratio to the bare `httpx` loop of the same round: rounds take turns, since a busy machine changes
milliseconds more than ratios.

    python tests/benchmarks/agent_overhead.py [--rounds 5] [--peers [--envs DIR]]

`--peers` makes an environment for each peer in a temporary folder (or in `--envs DIR`, where they
are kept) and runs it against the same server. All do the same work: the same prompt, tool and number
of calls, one agent and one client for all runs. Ours writes spans (OpenTelemetry SDK, batches to
nowhere); of the peers, what traces by default is switched off.
"""

# The peers live in environments of their own:
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
CALLS = 10
"""Tool calls of one run; one more model call answers."""
STEPS = CALLS + 1
WARM_UP = 5
RUNS = 40
"""Runs one after the other."""
AT_ONCE = 100
INSTRUCTIONS = "Look the keys up, one after the other."
PROMPT = "Look up the keys 0 to 9 and tell me the last value."
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a key.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "integer"}},
            "required": ["key"],
            "additionalProperties": False,
        },
    },
}

# --- the server ---


def reply(results: int, *, streamed: bool) -> bytes:
    """The whole HTTP response to a request with `results` tool results in it."""
    usage = {"prompt_tokens": 100 + 20 * results, "completion_tokens": 12, "total_tokens": 0}
    call = {
        "id": f"call_{results}",
        "type": "function",
        "function": {"name": "lookup", "arguments": json.dumps({"key": results})},
    }
    said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls"
    if results >= CALLS:
        said, reason = {"role": "assistant", "content": "The last value is 18."}, "stop"
    body = {"id": "r", "created": 1, "model": "m", "system_fingerprint": None}
    if not streamed:
        choice = {"index": 0, "message": said, "finish_reason": reason, "logprobs": None}
        text = json.dumps(body | {"object": "chat.completion", "choices": [choice], "usage": usage})
        return _response(text.encode(), "application/json")
    if "tool_calls" in said:
        said = said | {"tool_calls": [{"index": 0} | call]}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": said, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    ]
    lines = [json.dumps(body | {"object": "chat.completion.chunk"} | each) for each in chunks]
    text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
    return _response(text.encode(), "text/event-stream")


def _response(body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve() -> None:
    """Answer for ever; prints the port."""
    replies = {
        (results, streamed): reply(results, streamed=streamed)
        for results in range(CALLS + 1)
        for streamed in (False, True)
    }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n", 1)[0])
                body = await reader.readexactly(length)
                results = min(CALLS, body.count(b'"tool_call_id"'))
                streamed = b'"stream":true' in body or b'"stream": true' in body
                writer.write(replies[results, streamed])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


# --- the clients: each gives a coroutine function that does one run ---

Run = Callable[[], Awaitable[object]]


async def lookup(key: int) -> str:
    """Look up a key."""
    return str(2 * key)


async def bare_httpx(url: str) -> Run:
    import httpx

    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=AT_ONCE))

    async def run() -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": PROMPT},
        ]
        while True:
            body = {"model": "m", "messages": messages, "tools": [TOOL], "max_tokens": 256}
            response = await client.post(f"{url}/chat/completions", json=body)
            response.raise_for_status()
            said = response.json()["choices"][0]["message"]
            messages.append(said)
            if not said.get("tool_calls"):
                return said["content"]
            for call in said["tool_calls"]:
                result = await lookup(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return run


def _agentdiff(
    *, streaming: bool = True, budget: int | None = None
) -> Callable[[str], Awaitable[Run]]:
    async def client(url: str) -> Run:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )

        from agentdiff import Agent, UsageLimits
        from agentdiff.backends.openai import OpenAIBackend

        class Nowhere(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                return SpanExportResult.SUCCESS

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        trace.set_tracer_provider(provider)
        backend = OpenAIBackend(url, "m", streaming=streaming)
        agent = Agent(
            backend,
            instructions=INSTRUCTIONS,
            tools=[lookup],
            limits=UsageLimits(requests=50),
            budget=budget or "auto",
        )

        async def run() -> str:
            result = await agent.run(PROMPT)
            assert len(result.steps) == STEPS
            return result.output

        return run

    return client


async def pydantic_ai(url: str) -> Run:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, instructions=INSTRUCTIONS, tools=[lookup])

    async def run() -> str:
        return (await agent.run(PROMPT)).output

    return run


async def openai_agents(url: str) -> Run:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none")
    agent = Agent(
        name="a",
        instructions=INSTRUCTIONS,
        tools=[function_tool(lookup)],
        model=OpenAIChatCompletionsModel(model="m", openai_client=client),
    )

    async def run() -> str:
        return (await Runner.run(agent, PROMPT, max_turns=50)).final_output

    return run


async def langchain(url: str) -> Run:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="m", base_url=url, api_key="none")  # type: ignore[arg-type]
    agent = create_agent(model, tools=[lookup], system_prompt=INSTRUCTIONS)

    async def run() -> object:
        state = await agent.ainvoke({"messages": [{"role": "user", "content": PROMPT}]})
        return state["messages"][-1].content

    return run


async def smolagents(url: str) -> Run:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    def lookup(key: int) -> str:
        """Look up a key.

        Args:
            key: The key.
        """
        return str(2 * key)

    function = tool(lookup)
    model = OpenAIServerModel("m", api_base=url, api_key="none")

    async def run() -> object:  # an agent remembers its run, so each has its own
        agent = ToolCallingAgent(
            tools=[function], model=model, verbosity_level=0, max_steps=2 * STEPS
        )
        return await asyncio.to_thread(agent.run, PROMPT)

    return run


CLIENTS: dict[str, Callable[[str], Awaitable[Run]]] = {
    "httpx": bare_httpx,
    "agentdiff": _agentdiff(),
    "agentdiff, whole replies": _agentdiff(streaming=False),
    "agentdiff, budget given": _agentdiff(budget=256),
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "langchain": langchain,
    "smolagents": smolagents,
}
PEERS = {
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "openai-agents": ["openai-agents"],
    "langchain": ["langchain", "langchain-openai"],
    "smolagents": ["smolagents[openai]"],
}


QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
"""Nothing is sent to anybody, and nobody's spans but ours are measured."""


async def measure(name: str, url: str, *, runs: int, together: int) -> dict[str, float]:
    """CPU milliseconds of this process for each step: one run after the other, and many at once."""
    run = await CLIENTS[name](url)
    for _ in range(WARM_UP):
        await run()
    alone = time.process_time()
    for _ in range(runs):
        await run()
    alone = time.process_time() - alone
    at_once, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(run() for _ in range(together)))
    at_once, wall = time.process_time() - at_once, time.perf_counter() - wall
    return {
        "alone": 1000 * alone / (runs * STEPS),
        "at_once": 1000 * at_once / (together * STEPS),
        "steps_per_s": together * STEPS / wall,
    }


# --- rounds ---


def environments(folder: Path) -> dict[str, str]:
    """The Python of each peer that could be installed, by its name."""
    found: dict[str, str] = {}
    for name, packages in PEERS.items():
        home = folder / name.replace("-", "_")
        python = home / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            install = [python, "-m", "pip", "install", "-q", *packages]
            if subprocess.run(install, check=False).returncode:
                print(f"{name}: could not be installed; left out", file=sys.stderr)
                continue
        found[name] = str(python)
    return found


def rounds_of(pythons: dict[str, str], *, rounds: int, runs: int, together: int) -> None:
    """Measure and print: medians over rounds, ratios to `httpx` of the same round."""
    with subprocess.Popen(
        [sys.executable, "-P", __file__, "--serve"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        try:
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
            for number in range(rounds):
                for name, python in pythons.items():
                    # -P: the folder of this file is no place to import from.
                    command = [python, "-P", __file__, "--measure", name, url, "--runs", str(runs)]
                    command += ["--together", str(together)]
                    env = os.environ | QUIET | {"PYTHONPATH": str(ROOT)}
                    done = subprocess.run(
                        command, env=env, capture_output=True, text=True, check=False
                    )
                    if done.returncode:
                        print(f"{name}: {done.stderr[-600:]}", file=sys.stderr)
                        continue
                    taken[name].append(json.loads(done.stdout.splitlines()[-1]))
                    found = ", ".join(f"{key} {each:.2f}" for key, each in taken[name][-1].items())
                    print(f"round {number + 1}, {name}: {found}", file=sys.stderr, flush=True)
        finally:
            server.kill()
    floor = taken["httpx"]
    print("| client | CPU ms/step | ratio | many at once: CPU ms/step | ratio | steps/s |")
    print("|---|---|---|---|---|---|")
    for name, mine in taken.items():
        if not mine:
            continue
        cells = [name]
        for key in ("alone", "at_once"):
            ratios = [a[key] / b[key] for a, b in zip(mine, floor, strict=False)]
            cells.append(f"{median(each[key] for each in mine):.2f}")
            cells.append(f"{median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]")
        cells.append(f"{median(each['steps_per_s'] for each in mine):.0f}")
        print("| " + " | ".join(cells) + " |")
    print(
        f"{rounds} rounds, {runs} runs each, {together} at once, {STEPS} steps a run, "
        f"Python {platform.python_version()}, {os.cpu_count()} x {processor()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for name, python in pythons.items():
        if name in PEERS:
            print(f"{name}: {versions(python, PEERS[name])}")


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(python: str, packages: list[str]) -> str:
    """Names and versions of packages in another environment."""
    wanted = [package.partition("[")[0] for package in packages]
    code = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    done = subprocess.run([python, "-c", code, *wanted], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--together", type=int, default=AT_ONCE, help="runs at once")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--envs", type=Path)
    parser.add_argument("--only", nargs="*", help="names of clients")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    elif options.measure:
        name, url = options.measure
        print(
            json.dumps(
                asyncio.run(measure(name, url, runs=options.runs, together=options.together))
            )
        )
    else:
        ours = {name: sys.executable for name in CLIENTS if name not in PEERS}
        if options.only:
            ours = {name: ours[name] for name in ("httpx", *options.only)}
        with tempfile.TemporaryDirectory() as folder:
            peers = environments(options.envs or Path(folder)) if options.peers else {}
            rounds_of(
                ours | peers, rounds=options.rounds, runs=options.runs, together=options.together
            )


if __name__ == "__main__":
    main()
