"""The same agent, the same tool, the same machine: the embedded diffusion model and a server of your own, timed.

Needs `pip install 'agentdiff[local]'`. Without a server it times the embedded model alone:

    HF_HUB_OFFLINE=1 transformers serve FOLDER --host 127.0.0.1 --port 8000 &
    python examples/same_agent_two_backends.py openai:http://127.0.0.1:8000/v1#FOLDER transformers-serve
"""

import sys
import time

from agentdiff import Agent, AgentDiffError, Backend, connect, tool

PRICES = {"mug": "4 euros", "teapot": "19 euros"}
REQUEST = "what is the price of the item teapot?"


@tool
def price_of(item: str) -> str:
    """Look up the price of an item."""
    return PRICES.get(item, f"no {item} for sale")


def timed(backend: Backend) -> None:
    agent = Agent(backend, tools=[price_of])
    outcome = ""
    for attempt in ("cold", "warm"):
        started = time.perf_counter()
        try:
            result = agent.run_sync(REQUEST)
            outcome = f"{result.output!r}, structure {result.steps[0].enforcement}"
        except AgentDiffError as error:  # a small model may well write something else
            outcome = type(error).__name__
        print(f"{backend.name:12} {attempt} {time.perf_counter() - started:6.2f} s   {outcome}")


timed(connect("embedded"))
if len(sys.argv) > 1:
    timed(connect(sys.argv[1], profile=sys.argv[2] if len(sys.argv) > 2 else None))
else:
    print("name a server to time it too, as in openai:http://127.0.0.1:8000/v1#model")
