"""Watch a block being denoised: drafts replace each other, committed text stays.

Needs `pip install 'agentdiff[local]'`.
"""

from pathlib import Path

import anyio

from agentdiff import Agent, connect
from agentdiff.agent import Committed, Drafting, RunFinished, ToolFinished
from agentdiff.embedded.tools import shipped_tools


async def main() -> None:
    agent = Agent(connect("embedded"), tools=shipped_tools(Path()))
    text = ""
    async with agent.run_events("convert 26.2 miles to km") as events:
        async for event in events:
            match event:
                case Committed(text=piece):
                    text += piece
                case Drafting(text=draft):
                    print(f"{text}{draft}")
                case ToolFinished(record=record):
                    print(f"ran {record.tool}: {record.result}")
                    text = ""
                case RunFinished(result=result):
                    print(f"answer: {result.output}")
                case _:
                    pass


anyio.run(main)
