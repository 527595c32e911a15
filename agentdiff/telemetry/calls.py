"""The span around what is asked of a backend beside a chat: a decision, an infilling, an edit.

Only calls of their own have one: a decision that is written as a chat completion has the `chat` span
of that inside, which bears the tokens, so that none is counted twice.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from opentelemetry.trace import SpanKind

from agentdiff.generation import Decision, Result
from agentdiff.messages import Usage
from agentdiff.telemetry import names
from agentdiff.telemetry.metrics import count_call
from agentdiff.telemetry.spans import SpanBlock

Asked = Literal["decide", "infill", "edit"]
_OPERATIONS: dict[Asked, str] = {
    "decide": "decide",
    "infill": "text_completion",
    "edit": "text_completion",
}


class CallSpan(SpanBlock):
    """A block in which a backend is asked; the span is the current one there."""

    __slots__ = ("_labels", "_usage")
    kind: ClassVar[SpanKind] = SpanKind.CLIENT

    def __init__(self, asked: Asked, *, backend: str) -> None:
        labels = {**names.generation_of(backend), names.OPERATION: _OPERATIONS[asked]}
        super().__init__(f"{asked} {names.model_of(backend)}", labels)
        self._labels = labels
        self._usage: Usage | None = None

    def finish(self, answer: Result | Decision) -> None:
        """Record what the answer cost."""
        usage, stats = answer.usage, answer.stats
        self._usage = usage
        self._set(
            {
                names.RESPONSE_MODEL: answer.model or None,
                names.INPUT_TOKENS: usage.input_tokens,
                names.OUTPUT_TOKENS: usage.output_tokens,
                names.REASONING_TOKENS: usage.reasoning_tokens,
                names.FORWARDS: stats.forwards,
                names.CONFIDENCE: stats.confidence,
                names.ATTEMPTS: stats.attempts,
                names.ENFORCEMENT: answer.enforcement,
            }
        )

    def _count(self, seconds: float) -> None:
        count_call(self._labels, self._usage, self._mode, seconds=seconds, error=self.error)
