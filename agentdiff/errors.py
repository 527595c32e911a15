"""Everything that agentdiff raises, in one tree.

AgentDiffError
├── ConfigurationError            what was asked for cannot be done as written; nothing has run
│   ├── MissingExtra              an optional package is not installed; says which `pip install` line
│   ├── SchemaError               a JSON Schema (or pattern) cannot be enforced; names keyword and path
│   └── BudgetTooSmall            the budget is below the shortest valid output; carries `needed`
├── BackendError                  the one who answers failed; `retryable` says whether again may help
│   ├── RateLimited               429; `retry_after_s` when the server said so         (retryable)
│   ├── Unavailable               connection refused or lost, 5xx                      (retryable)
│   ├── TimedOut                  no answer in time                                    (retryable)
│   ├── ProtocolError             an answer that is not what the protocol says         (retryable)
│   └── Rejected                  the server understood and refused (4xx)
│       ├── AuthenticationFailed  401, 403
│       └── ContextTooLong        the prompt does not fit the model
├── TraceError                    a trace file cannot be written or read
├── StoreError                    a sqlite store cannot be opened, read or written
├── ToolError                     a tool could not be called; goes back to the model as data
│   ├── UnknownTool
│   ├── InvalidArguments
│   ├── ModelRetry                raised by a tool or an output validator: tell the model to do it again
│   ├── ApprovalRequired          raised by a tool: a person has to say yes before this call
│   └── ToolFailed                raised by a tool on purpose: tell the model, do not retry
└── RunError                      a run ended without an output; carries `messages`, `usage`, `steps`
    ├── RunPaused                 calls wait for a person; carries `state`, from which the run goes on
    ├── OutOfScope                the model said that no tool fits
    ├── PlanInvalid               a plan cannot run; carries every fault
    ├── PlanFailed                steps of a plan failed; carries the results of the others
    ├── OutputInvalid             the output does not satisfy its schema and could not be repaired
    ├── BudgetExceeded            the output did not fit the budget's ceiling
    └── LimitExceeded             a limit of the run was reached

Whatever ends a run carries what there was until then: `messages`, `usage`, `steps`.
A message names the thing, shows the value and says what to do. Errors carry facts as attributes; they never log,
and they never contain prompts, outputs or secrets beyond the value that is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentdiff.agent.state import RunState
    from agentdiff.messages import ToolCall


class AgentDiffError(Exception):
    """The root of everything that agentdiff raises.

    An error that ends a run, whatever its kind, carries what there was: the run loop fills in `messages`, `usage` and
    `steps`.
    """

    retryable: ClassVar[bool] = False
    """Whether the same request may succeed if it is sent again."""
    messages: tuple[object, ...] = ()
    """The conversation so far (`agentdiff.messages.Message`)."""
    usage: object | None = None
    """Tokens spent so far (`agentdiff.messages.Usage`)."""
    steps: tuple[object, ...] = ()
    """Steps finished so far (`agentdiff.agent.StepRecord`)."""


class ConfigurationError(AgentDiffError):
    """What was asked for cannot be done as written; nothing has run."""


class MissingExtra(ConfigurationError):
    """An optional package is needed and not installed."""

    def __init__(self, what: str, *, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs the `{extra}` extra: pip install 'agentdiff[{extra}]'")


class SchemaError(ConfigurationError):
    """A JSON Schema, or a pattern in it, cannot be enforced."""

    def __init__(self, message: str, *, path: str = "", keyword: str | None = None) -> None:
        self.path = path
        """JSON pointer to the schema that is at fault; `""` is the root."""
        self.keyword = keyword
        """The keyword at fault, or None when the schema as a whole is."""
        super().__init__(f"{message} (at `#{path}`)")


class BudgetTooSmall(ConfigurationError):
    """The budget is below the shortest valid output; refused before any forward pass."""

    def __init__(self, *, budget: int, needed: int) -> None:
        self.budget = budget
        self.needed = needed
        super().__init__(
            f"a budget of {budget} tokens cannot hold any valid output; it needs at least {needed}"
        )


class BackendError(AgentDiffError):
    """The one who answers failed."""

    def __init__(
        self,
        message: str,
        *,
        backend: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.backend = backend
        self.status = status
        """HTTP status, where there was one."""
        self.retry_after_s = retry_after_s
        """Seconds the server asked to wait, where it did; infinite where it asked not to be asked again."""
        self.partial = ""
        """What had been answered when it failed, for whoever has use for it; never part of the message."""
        super().__init__(f"{backend}: {message}" if backend else message)


class RateLimited(BackendError):
    """The server asked to slow down (429)."""

    retryable = True


class Unavailable(BackendError):
    """The server could not be reached, or failed (5xx)."""

    retryable = True


class TimedOut(BackendError):
    """No answer within the time allowed."""

    retryable = True


class ProtocolError(BackendError):
    """The answer is not what the protocol says it should be."""

    retryable = True


class Rejected(BackendError):
    """The server understood the request and refused it (4xx)."""


class AuthenticationFailed(Rejected):
    """The key is missing or wrong (401, 403)."""


class ContextTooLong(Rejected):
    """The prompt does not fit the model's context."""


class TraceError(AgentDiffError):
    """A trace file cannot be written or read."""


class StoreError(AgentDiffError):
    """A sqlite store cannot be opened, read or written."""


class ToolError(AgentDiffError):
    """A tool could not be called. The run goes on: the model is told."""


class UnknownTool(ToolError):
    """The model asked for a tool that does not exist."""

    def __init__(self, name: str, *, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        there_is = f"the tools are {', '.join(self.known)}" if self.known else "this agent has none"
        super().__init__(f"there is no tool {name!r}; {there_is}")


class InvalidArguments(ToolError):
    """The arguments do not satisfy the tool's schema."""


class ModelRetry(ToolError):
    """Raised by a tool or an output validator: the model is told the message and should do it again.

    Each one counts against the retries of the tool or the repairs of the output.
    """


class ApprovalRequired(ToolError):
    """Raised by a tool that has done nothing yet: a person has to approve this call first."""


class ToolFailed(ToolError):
    """Raised by a tool on purpose: the model is told the message and may try something else."""


class RunError(AgentDiffError):
    """A run ended without an output."""


class RunPaused(RunError):
    """Calls wait for the approval of a person; the calls beside them are done and kept."""

    def __init__(self, message: str, *, state: RunState, pending: tuple[ToolCall, ...]) -> None:
        self.state = state
        """The run until here: `agent.resume(state, approvals=…)` goes on."""
        self.pending = pending
        """The calls that wait."""
        super().__init__(message)


class OutOfScope(RunError):
    """The model said that no tool fits the request."""


class PlanInvalid(RunError):
    """A plan cannot run: nothing of it has."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("the plan cannot run: " + "; ".join(faults))
        self.faults = faults
        """One line for each fault."""


class PlanFailed(RunError):
    """Steps of a plan failed and it could not be planned anew; what is done is in `results`."""

    def __init__(self, message: str, *, results: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.results = results
        """Id of the step -> result, of the steps that are done."""


class OutputInvalid(RunError):
    """The output does not satisfy its schema and could not be repaired."""

    text: str = ""
    """The output, for a repair; never part of the message. Empty where it is not known."""
    faults: tuple[str, ...] = ()
    """What is wrong with it, each with its place, for a repair; the message shows the first."""


class BudgetExceeded(RunError):
    """The output did not fit the ceiling of its budget."""

    def __init__(
        self,
        message: str,
        *,
        predicted: int | None = None,
        allocated: int | None = None,
        used: int | None = None,
    ) -> None:
        self.predicted = predicted
        """Tokens that were expected before the first attempt."""
        self.allocated = allocated
        """Tokens that the last attempt might write."""
        self.used = used
        """Tokens that it wrote, where the backend said so."""
        super().__init__(message)


class LimitExceeded(RunError):
    """A limit of the run was reached."""

    def __init__(self, what: str, *, limit: float, raise_with: str = "limits=") -> None:
        self.what = what
        self.limit = limit
        super().__init__(
            f"the run reached its limit of {limit:g} {what}; raise it with `{raise_with}`"
        )
