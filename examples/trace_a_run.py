"""Write a trace of a run and read it back: which step took how long, and how full its budget was.

Needs `pip install 'agentdiff[local,otel]'`.
"""

from pathlib import Path

from rich.console import Console

from agentdiff import Agent, connect, trace_to_file
from agentdiff.cli.trace import render_trace
from agentdiff.embedded.tools import shipped_tools

path = Path("run.jsonl")
with trace_to_file(path) as trace:
    agent = Agent(connect("embedded"), tools=shipped_tools(Path()), name="assistant")
    result = agent.run_sync("what is 17% of 2340?")

print(result.output)
print(f"{trace.spans} spans in {path}")
render_trace(path, Console(width=100, force_terminal=False))
