"""Have a person approve a tool call: the run pauses, its state is a file, another process goes on."""

from pathlib import Path

import anyio

from agentdiff import Agent, FunctionBackend, Request, RunPaused, RunState, ToolCall, tool


@tool(approval=lambda arguments: arguments["amount"] > 100)
def refund(order: str, amount: int) -> str:
    """Refund an order. Large amounts need a person."""
    return f"refunded {amount} for {order}"


def answer(request: Request) -> str | list[ToolCall]:
    """Stands in for a model: asks for two refunds, then sums up what became of them."""
    results = [message.content for message in request.messages if message.role == "tool"]
    if results:
        return "; ".join(results)
    return [
        ToolCall(id="a", name="refund", arguments={"order": "A-17", "amount": 20}),
        ToolCall(id="b", name="refund", arguments={"order": "B-42", "amount": 500}),
    ]


agent = Agent(FunctionBackend(answer), tools=[refund])
saved = Path("run.json")
try:
    agent.run_sync("Refund A-17 and B-42.")
except RunPaused as paused:
    saved.write_text(paused.state.to_json())
    print("waiting for:", *(f"{call.name} {dict(call.arguments)}" for call in paused.pending))

# Later, elsewhere: what was done is not done again.
state = RunState.from_json(saved.read_text())
answers = {"a person": {"b": True}, "another": {"b": "not without a receipt"}}
for who, approvals in answers.items():
    result = anyio.run(lambda approvals=approvals: agent.resume(state, approvals=approvals))
    print(f"{who}: {result.output}")
