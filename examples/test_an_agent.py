"""Test an agent without any model: `Scripted` answers from a list and remembers what it was asked."""

from agentdiff import Agent, Scripted, ToolCall, tool


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


backend = Scripted(
    [
        ToolCall(id="1", name="weather", arguments={"city": "Oslo"}),
        "It is sunny in Oslo.",
    ]
)
result = Agent(backend, tools=[weather]).run_sync("How is the weather in Oslo?")

print(result.output)
for step in result.steps:
    calls = ", ".join(f"{call.tool} -> {call.result}" for call in step.calls)
    print(f"step {step.number}: {step.kind}", calls)

assert [spec.name for spec in backend.requests[0].tools] == ["weather"]
assert backend.requests[1].messages[-1].content == "sunny in Oslo"
backend.assert_done()
