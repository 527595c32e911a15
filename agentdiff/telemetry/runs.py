"""The spans of a run: the run itself, its plans and its tool calls. Generations have their own.

Whoever opens one with `with` tells it what happens; names and spelling are known only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from opentelemetry import trace

from agentdiff.messages import Json, Usage
from agentdiff.telemetry import content, names
from agentdiff.telemetry.metrics import count_run, count_tool_call
from agentdiff.telemetry.spans import SpanBlock, error_type, fail


def invoke_agent(*, agent: str, model: str) -> RunSpan:
    """A span `invoke_agent {agent}` around one run: the parent of all spans started inside."""
    return RunSpan(agent, model)


def execute_tool(
    *, tool: str, call_id: str, arguments: Mapping[str, Json] | None = None
) -> ToolSpan:
    """A span `execute_tool {tool}` around one call.

    `arguments` are written only if content capture is on.
    """
    return ToolSpan(tool, call_id, arguments)


def carry_out_plan(*, replan: int = 0) -> PlanSpan:
    """A span `plan` around the calls of a plan, and around the generation that writes it.

    `replan` is from 1 where steps of an earlier plan failed and the rest is planned anew.
    """
    return PlanSpan("plan", {names.REPLAN: replan or None})


class RunSpan(SpanBlock):
    """The span of a run."""

    __slots__ = ("_agent", "trace_id")

    def __init__(self, agent: str, model: str) -> None:
        super().__init__(
            f"invoke_agent {agent}",
            {names.OPERATION: "invoke_agent", names.AGENT: agent, names.REQUEST_MODEL: model},
        )
        self._agent = agent
        self.trace_id: str | None = None
        """The trace's id in 32 hex digits, or None where nothing records this run."""

    def __enter__(self) -> Self:
        super().__enter__()
        if self._span.is_recording():
            self.trace_id = trace.format_trace_id(self._span.get_span_context().trace_id)
        return self

    def finish(
        self,
        usage: Usage,
        steps: int,
        *,
        tool_calls: int | None = None,
        cost: float | None = None,
        truncations: int | None = None,
        budget_fill: float | None = None,
        resumed: int | None = None,
    ) -> None:
        """Record what the run used and how many steps it took, also when it ends in an error."""
        self._set(
            {
                names.INPUT_TOKENS: usage.input_tokens,
                names.OUTPUT_TOKENS: usage.output_tokens,
                names.REASONING_TOKENS: usage.reasoning_tokens,
                names.REQUESTS: usage.requests,
                names.STEPS: steps,
                names.TOOL_CALLS: tool_calls,
                names.COST: cost,
                names.TRUNCATIONS: truncations,
                names.RUN_BUDGET_FILL: budget_fill,
                names.RESUMED: resumed,
            }
        )

    def cut(self, *, step: int, ceiling: int | None, used: int | None, then: str) -> None:
        """Note that a budget cut a generation, and what is done about it: `again`, `continue`, `fail`."""
        if self._span.is_recording():
            values: names.Values = {
                names.NUMBER: step,
                names.BUDGET_CEILING: ceiling,
                names.BUDGET_USED: used,
            }
            spelled = names.spelled(values, self._mode)
            self._span.add_event("agentdiff.truncation", {"agentdiff.then": then, **spelled})

    def _count(self, seconds: float) -> None:
        count_run(self._agent, self._mode, seconds=seconds, error=self.error)


class ToolSpan(SpanBlock):
    """The span of a tool call."""

    __slots__ = ("_captures", "_tool")

    def __init__(self, tool: str, call_id: str, arguments: Mapping[str, Json] | None) -> None:
        self._captures = names.captures_content()
        captured = None
        if arguments is not None and self._captures:
            captured = content.arguments_json(arguments)
        super().__init__(
            f"execute_tool {tool}",
            {
                names.OPERATION: "execute_tool",
                names.TOOL: tool,
                names.TOOL_TYPE: "function",
                names.TOOL_CALL_ID: call_id,
                names.TOOL_ARGUMENTS: captured,
            },
        )
        self._tool = tool

    def fail(self, error: BaseException) -> None:
        """Mark the call as failed. An error that leaves the block does so by itself.

        The whole error, message and traceback, is written only if content capture is on.
        """
        self.error = error_type(error)
        fail(self._span, error)
        if self.wants_content:
            self._span.record_exception(error)

    def approved(self, is_approved: bool) -> None:
        """Note what a person said to the call."""
        self._set({names.APPROVAL: "approved" if is_approved else "denied"})

    def waits(self) -> None:
        """Note that the run pauses until a person has said something to the call."""
        self._set({names.APPROVAL: "waiting"})

    def again(self, attempt: int) -> None:
        """Note that the model was told to make this call again; `attempt` is from 2."""
        self._set({names.TOOL_ATTEMPT: attempt})

    @property
    def wants_content(self) -> bool:
        """Whether `returned` would write what it is given."""
        return self._captures and self._span.is_recording()

    def returned(self, result: str) -> None:
        """What the model is told; written only if content capture is on."""
        if self._captures:
            self._set({names.TOOL_RESULT: content.clipped(result)})

    def _count(self, seconds: float) -> None:
        count_tool_call(self._tool, self._mode, seconds=seconds, error=self.error)


class PlanSpan(SpanBlock):
    """The span of a plan that runs."""

    __slots__ = ()

    def finish(
        self,
        *,
        steps: int,
        critical_path_ms: float,
        sum_ms: float,
        parallel_gain: float,
        failed: int,
    ) -> None:
        """Record how it ran."""
        self._set(
            {
                names.PLAN_STEPS: steps,
                names.CRITICAL_PATH_MS: round(critical_path_ms, 3),
                names.SUM_MS: round(sum_ms, 3),
                names.PARALLEL_GAIN: round(parallel_gain, 3),
                names.FAILED_STEPS: failed or None,
            }
        )
