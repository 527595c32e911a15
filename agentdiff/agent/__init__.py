"""Agents: tools, the run loop, its limits, its events and its records."""

from agentdiff.agent.agent import Agent
from agentdiff.agent.budgets import BudgetChoice, StepSettings
from agentdiff.agent.context import RunContext
from agentdiff.agent.dataflow import PlanRun
from agentdiff.agent.events import (
    Approval,
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
from agentdiff.agent.history import repaired
from agentdiff.agent.journal import Journal, JournaledRun
from agentdiff.agent.limits import Price, UsageLimits
from agentdiff.agent.loading import load_tools
from agentdiff.agent.mcp import mcp_tools
from agentdiff.agent.plan import Plan, PlanStep, Ref
from agentdiff.agent.state import RunState
from agentdiff.agent.tools import Tool, tool

__all__ = [
    "Agent",
    "Approval",
    "BudgetChoice",
    "CallRecord",
    "Committed",
    "Drafting",
    "Journal",
    "JournaledRun",
    "Plan",
    "PlanRun",
    "PlanStep",
    "Price",
    "Ref",
    "RunContext",
    "RunEvent",
    "RunFinished",
    "RunResult",
    "RunState",
    "StepFinished",
    "StepRecord",
    "StepSettings",
    "StepStarted",
    "Tool",
    "ToolFinished",
    "ToolStarted",
    "UsageLimits",
    "load_tools",
    "mcp_tools",
    "repaired",
    "tool",
]
