"""The contract between those who ask and those who answer.

A `Request` goes in; `Event`s come out: `Draft` replaces the drafts before it (the block is still being denoised),
`Commit` appends for good, `Finish` ends the stream. A backend implements `stream`; `generate` is a fold over it.
Autoregressive backends simply never send a `Draft`. What a backend does not know is None, never invented.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, assert_never, runtime_checkable

from agentdiff.errors import ConfigurationError, ProtocolError
from agentdiff.messages import Json, Message, ToolCall, ToolSpec, Usage

StepKind = Literal["plan", "route", "arguments", "answer", "repair"]
"""What a generation is for. `route` decides between a tool call, an answer and a refusal, arguments included."""

Effort = Literal["speed", "balanced", "quality"]

Enforcement = Literal["in_block", "pinned_canvas", "native", "validated", "repaired", "none"]
"""How the structure of an output was ensured, strongest first.

`in_block`: by construction, while the block was denoised. `pinned_canvas`: the skeleton was pinned. `native`: the
server claims it, and the output was validated here. `validated`: only validated here. `repaired`: a second call
mended it. `none`: nothing was asked for or nothing held.
"""

FinishReason = Literal["stop", "length", "tool_calls", "refused"]
"""`refused`: the model said that no tool fits. `length`: the budget's ceiling ended the output."""


_NO_CEILING = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many tokens a generation may write."""

    target: int
    """Tokens we expect; the canvas is laid out for these."""
    ceiling: int
    """Tokens after which decoding ends; a constrained output is closed within them."""
    source: str = "given"
    """Where the numbers come from, for people: `given`, `prior`, `history:arguments/add_note`, …"""

    @classmethod
    def off(cls) -> Budget:
        """No budget: requests are sent without one, and the backend's own default holds."""
        return cls(target=1, ceiling=_NO_CEILING, source="off")

    @property
    def is_off(self) -> bool:
        """Whether this is `Budget.off()`."""
        return self.ceiling == _NO_CEILING

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.ceiling:
            raise ConfigurationError(
                f"`Budget` needs 0 < target <= ceiling, got target={self.target!r}, ceiling={self.ceiling!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. None means the backend's default."""

    effort: Effort = "balanced"
    """Steps, thresholds and editing on a local model; reasoning effort on a hosted one."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ConfigurationError(
                f"`temperature` must be a number from 0 on, got {self.temperature!r}"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigurationError(f"`top_p` must be in (0, 1], got {self.top_p!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation to be made."""

    messages: tuple[Message, ...]
    kind: StepKind = "answer"
    tools: tuple[ToolSpec, ...] = ()
    """Tools the reply may call. With `schema`, the reply is either a call or an output of that schema."""
    tool_choice: Literal["auto", "required", "none"] = "auto"
    schema: Mapping[str, Json] | None = None
    """JSON Schema that the text must satisfy; None for free text."""
    budget: Budget | None = None
    """None lets the backend use its own default ceiling."""
    sampling: Sampling = field(default_factory=Sampling)
    deadline_s: float | None = None
    """Seconds for the whole generation, retries included."""
    may_retry: bool = True
    """Whether the backend may send it again by itself; whoever has another backend to turn to says no."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ConfigurationError("`messages` is empty; a request needs at least one message")
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise ConfigurationError(f"`deadline_s` must be positive, got {self.deadline_s!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a generation cost. A value unknown to the backend is None."""

    forwards: int | None = None
    """Forward passes of the model (NFE), the prefill included."""
    positions: int | None = None
    """Token positions pushed through the model."""
    blocks: int | None = None
    forced_tokens: int | None = None
    """Tokens that the grammar left no choice about; committed without asking the model."""
    constraint_s: float | None = None
    """Seconds spent in the constraint engine."""
    decode_s: float | None = None
    """Seconds from the first forward pass to the last commit."""
    first_commit_s: float | None = None
    """Seconds from the request to the first committed text."""
    total_s: float | None = None
    cache: str | None = None
    """Cache mode of the engine: `none`, `block`, `prefix`, `dual`."""
    extensions: int | None = None
    """Blocks added beyond the budget's target."""
    confidence: float | None = None
    """The lowest probability at which a token was committed, in 0..1."""
    attempts: int = 1
    """Calls made for this result, retries included."""

    def tokens_per_forward(self, output_tokens: int | None) -> float | None:
        """Output tokens for each forward pass, prefill included; None where either is unknown."""
        if output_tokens is None or not self.forwards:
            return None
        return output_tokens / self.forwards


@dataclass(frozen=True, slots=True)
class Draft:
    """Text of the current block so far; replaces the draft before it. `░` stands where nothing is decided."""

    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Text that is final; appends, and ends the current draft."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a stream."""

    reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    text: str | None = None
    """The answer in words, where it differs from the committed text (a reply written as a JSON action)."""
    usage: Usage = field(default_factory=Usage)
    stats: Stats = field(default_factory=Stats)
    enforcement: Enforcement = "none"
    budget: Budget | None = None
    """The budget that was in force."""
    model: str = ""
    """The model that answered, by its own name."""
    warnings: tuple[str, ...] = ()
    """What was asked for and not done as asked."""


Event = Draft | Commit | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished generation."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    reason: FinishReason
    usage: Usage
    stats: Stats
    enforcement: Enforcement
    budget: Budget | None
    model: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend really does."""

    enforcement: Enforcement = "none"
    """The strongest enforcement it can give to a schema."""
    tools: bool = True
    drafts: bool = False
    """Whether it sends `Draft` events."""
    seed: bool = False
    """Whether the same seed gives the same output."""
    extends: bool = False
    """Whether it can go on past the target up to the ceiling within one generation."""
    continues: bool = False
    """Whether it goes on with the text of an assistant message that ends the conversation."""
    is_double: bool = False
    """Whether it only stands in for a backend in tests: no model, no network."""
    model: str = ""
    """The model that will answer and a word on it, for people; empty where it is not known before the first reply."""
    context_tokens: int | None = None
    max_tools: int | None = None
    tokenizer: str = ""
    """Names the token unit of budgets, so that lengths learned on one model are not used for another."""
    quantum: int = 1
    """Budgets are rounded up to multiples of this many tokens (the block length of a block-diffusion model)."""


@runtime_checkable
class Backend(Protocol):
    """The one who answers."""

    @property
    def name(self) -> str:
        """A short name for traces and errors: `embedded`, `mercury:mercury-2`."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this backend really does."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Open the stream of events of one generation.

        The iterator yields any number of `Draft` and `Commit` and then exactly one `Finish`. Leaving the context early
        cancels the work and frees what it held. Raises `BackendError` or `ConfigurationError`.
        """
        ...

    async def aclose(self) -> None:
        """Free connections, threads and memory. Calling it twice is safe."""
        ...


ONLY_DOUBLES = "AGENTDIFF_ONLY_DOUBLES"
"""The environment variable that, set to `1`, forbids every backend that is not a double."""


def check_allowed(backend: Backend) -> None:
    """Pass unless real backends are forbidden and this is one; `ConfigurationError` then."""
    if os.environ.get(ONLY_DOUBLES) == "1" and not backend.capabilities.is_double:
        raise ConfigurationError(
            f"backend `{backend.name}` is real, and `{ONLY_DOUBLES}=1` allows only doubles;"
            " use `Scripted`, `FunctionBackend` or `TestBackend`, or `agent.override(backend=…)`"
        )


@contextmanager
def only_doubles() -> Generator[None]:
    """Forbid real backends in this block, in every task and thread of this process."""
    before = os.environ.get(ONLY_DOUBLES)
    os.environ[ONLY_DOUBLES] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ONLY_DOUBLES]
        else:
            os.environ[ONLY_DOUBLES] = before


async def generate(backend: Backend, request: Request) -> Result:
    """Run one generation to its end."""
    check_allowed(backend)
    async with backend.stream(request) as events:
        return await collect(events)


async def collect(events: AsyncIterator[Event]) -> Result:
    """Fold a stream of events into a result. Drafts leave no trace."""
    committed: list[str] = []
    async for event in events:
        match event:
            case Draft():
                continue
            case Commit(text):
                committed.append(text)
            case Finish():
                return finish(event, "".join(committed))
            case _:
                assert_never(event)
    raise ProtocolError("the stream ended without `Finish`")


def finish(event: Finish, committed: str) -> Result:
    """The result of a stream that ended with `event` after committing `committed`."""
    return Result(
        text=committed if event.text is None else event.text,
        tool_calls=event.tool_calls,
        reason=event.reason,
        usage=event.usage,
        stats=event.stats,
        enforcement=event.enforcement,
        budget=event.budget,
        model=event.model,
        warnings=event.warnings,
    )


@runtime_checkable
class Infills(Protocol):
    """A backend that can write what stands between two texts, as an editor wants it."""

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """Write what belongs between `prefix` and `suffix`.

        Raises:
            BackendError: The backend failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A choice to be made about a conversation. Nothing is written; one of the options comes back."""

    messages: tuple[Message, ...]
    """What the question is about."""
    instructions: str
    """The question itself."""
    options: Mapping[str, str]
    """Option → what it means; an empty string says that the option speaks for itself."""
    deadline_s: float | None = None
    """Seconds for the answer, retries included."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ConfigurationError("`messages` is empty; a question is about something")
        if len(self.options) < 2:
            raise ConfigurationError(
                f"`options` must hold at least two to choose from, got {len(self.options)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a `Question`."""

    choice: str
    """One of its options."""
    probabilities: Mapping[str, float] | None = None
    """Option → probability, where the backend gives them; they add up to 1."""
    confidence: float | None = None
    """How sure the backend is of `choice`, in 0..1, by its own measure."""
    usage: Usage = field(default_factory=Usage)
    stats: Stats = field(default_factory=Stats)
    enforcement: Enforcement = "none"
    """How it was ensured that `choice` is one of the options: `native` where they were scored, not written."""
    model: str = ""
    warnings: tuple[str, ...] = ()


@runtime_checkable
class Decides(Protocol):
    """A backend with a way of its own to choose: an endpoint, or one masked forward pass."""

    async def decide(self, question: Question) -> Decision:
        """Choose one of the options.

        Raises:
            BackendError: The backend failed.
        """
        ...
