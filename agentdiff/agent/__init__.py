"""Agents: tools, the run loop, its limits, its events and its records."""

from agentdiff.agent.agent import Agent
from agentdiff.agent.events import (
    CallRecord,
    Committed,
    Drafting,
    RunEvent,
    RunFinished,
    RunResult,
    StepFinished,
    StepRecord,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from agentdiff.agent.limits import UsageLimits
from agentdiff.agent.loading import load_tools
from agentdiff.agent.tools import Tool, tool

__all__ = [
    "Agent",
    "CallRecord",
    "Committed",
    "Drafting",
    "RunEvent",
    "RunFinished",
    "RunResult",
    "StepFinished",
    "StepRecord",
    "StepStarted",
    "Tool",
    "ToolFinished",
    "ToolStarted",
    "UsageLimits",
    "load_tools",
    "tool",
]
