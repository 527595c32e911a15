"""Several requests at once on one local model: their blocks share forward passes.

Needs `pip install 'agentdiff[local]'`.
"""

from pathlib import Path

import anyio

from agentdiff import connect
from agentdiff.embedded.tools import shipped_tools
from agentdiff.generation import Request, generate
from agentdiff.messages import user

TASKS = [
    "convert 26.2 miles to km",
    "convert 3 pounds to kg",
    "convert 20 celsius to fahrenheit",
    "convert 5 feet to meters",
]


async def main() -> None:
    backend = connect("embedded")
    tools = tuple(tool.spec for tool in shipped_tools(Path()))

    async def ask(task: str) -> None:
        request = Request(messages=(user(task),), tools=tools, kind="route")
        result = await generate(backend, request)
        for call in result.tool_calls:
            print(f"{task}: {call.name} {dict(call.arguments)}")
        print(f"  {result.stats.forwards} forward passes, some of them for others too")

    async with anyio.create_task_group() as tasks:
        for task in TASKS:
            tasks.start_soon(ask, task)


anyio.run(main)
