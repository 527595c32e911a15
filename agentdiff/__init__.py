"""agentdiff: agents on diffusion language models.

The face: the names for users. Each is loaded from its home when it is first used, so that importing
the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentdiff._version import __version__
    from agentdiff.agent import (
        Agent,
        Journal,
        Plan,
        PlanStep,
        Price,
        Ref,
        RunContext,
        RunResult,
        RunState,
        StepSettings,
        Tool,
        UsageLimits,
        load_tools,
        mcp_tools,
        tool,
    )
    from agentdiff.backends import connect
    from agentdiff.backends.router import Router
    from agentdiff.backends.scripted import FunctionBackend, Scripted, TestBackend
    from agentdiff.errors import (
        AgentDiffError,
        ApprovalRequired,
        ModelRetry,
        OutOfScope,
        RunPaused,
        ToolFailed,
    )
    from agentdiff.generation import (
        Backend,
        Budget,
        Request,
        Result,
        Sampling,
        generate,
        only_doubles,
    )
    from agentdiff.length import LengthPredictor
    from agentdiff.messages import Message, ToolCall, ToolSpec, Usage, assistant, system, user
    from agentdiff.telemetry import trace_to_file

_HOMES = {
    "_version": "__version__",
    "agent": "Agent Journal Plan PlanStep Price Ref RunContext RunResult RunState StepSettings Tool "
    "UsageLimits "
    "load_tools mcp_tools tool",
    "backends": "connect",
    "backends.router": "Router",
    "backends.scripted": "FunctionBackend Scripted TestBackend",
    "errors": "AgentDiffError ApprovalRequired ModelRetry OutOfScope RunPaused ToolFailed",
    "generation": "Backend Budget Request Result Sampling generate only_doubles",
    "length": "LengthPredictor",
    "messages": "Message ToolCall ToolSpec Usage assistant system user",
    "telemetry": "trace_to_file",
}

__all__ = [
    "Agent", "AgentDiffError", "ApprovalRequired", "Backend", "Budget", "FunctionBackend",
    "Journal", "LengthPredictor", "Message", "ModelRetry", "OutOfScope", "Plan", "PlanStep",
    "Price", "Ref", "Request", "Result", "Router", "RunContext", "RunPaused", "RunResult",
    "RunState", "Sampling", "Scripted", "StepSettings", "TestBackend", "Tool", "ToolCall",
    "ToolFailed", "ToolSpec", "Usage", "UsageLimits", "__version__", "assistant", "connect",
    "generate", "load_tools", "mcp_tools", "only_doubles", "system", "tool", "trace_to_file",
    "user",
]  # fmt: skip

if not TYPE_CHECKING:  # so that a type checker knows these names and no others

    def __getattr__(name):
        home = next((home for home in _HOMES if name in _HOMES[home].split()), None)
        if home is None:
            raise AttributeError(f"module 'agentdiff' has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"agentdiff.{home}"), name)
        return value


def __dir__() -> list[str]:
    return __all__
