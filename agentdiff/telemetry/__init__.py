"""Spans: the only room that knows the name of a span or an attribute.

It needs nothing but `opentelemetry-api`, so without an SDK every call here costs microseconds and
records nothing. A user's own tracer provider is used as it is; `trace_to_file` brings one of its
own for the time of a `with` block.
"""

from agentdiff.telemetry.chat import traced
from agentdiff.telemetry.otlp_file import TraceFile, trace_to_file
from agentdiff.telemetry.runs import (
    PlanSpan,
    RunSpan,
    ToolSpan,
    carry_out_plan,
    execute_tool,
    invoke_agent,
)

__all__ = [
    "PlanSpan",
    "RunSpan",
    "ToolSpan",
    "TraceFile",
    "carry_out_plan",
    "execute_tool",
    "invoke_agent",
    "trace_to_file",
    "traced",
]
