"""An agent with two tools of your own, on the model that ships with the package: no key, no server, no GPU.

Needs `pip install 'agentdiff[local]'`.
"""

from agentdiff import Agent, OutOfScope, connect, tool

SHELVES = {"the sea wolf": "aisle 3, shelf B", "moby dick": "on loan until friday"}


@tool
def find_book(title: str) -> str:
    """Find where a book stands."""
    return SHELVES.get(title.lower(), f"no book called {title}")


@tool
def renew_loan(title: str, weeks: int = 2) -> str:
    """Renew the loan of a book."""
    return f"{title} is yours for {weeks} more weeks"


agent = Agent(connect("embedded"), tools=[find_book, renew_loan])

for request in ("where do i find the book moby dick?", "bake me a cake"):
    try:
        result = agent.run_sync(request)
    except OutOfScope as refusal:
        print(f"{request} -> refused: {refusal}")
        continue
    for step in result.steps:
        for call in step.calls:
            print(f"{request} -> {call.tool}({dict(call.arguments)}), {step.enforcement}")
    print(result.output)
