"""Who is asked: rules that object to a backend, and policies that prefer one.

The two compose because they do different things. Every rule looks at every candidate, and who is
left is chosen by the first policy that has an opinion. Both are asked again after each failure,
with the attempts made. A rule or policy of your own is an object with one method.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from agentdiff.backends.latency import Latencies
from agentdiff.backends.models import KNOWN, Price
from agentdiff.errors import AgentDiffError, ConfigurationError, OutputInvalid
from agentdiff.generation import Backend, Effort, Enforcement, Infills, Request, StepKind
from agentdiff.messages import Usage

STRENGTH: Final[tuple[Enforcement, ...]] = (
    "in_block",
    "pinned_canvas",
    "native",
    "validated",
    "repaired",
    "none",
)
"""Enforcement, strongest first."""
_BYTES_PER_TOKEN = 4
"""Of a prompt, where only its order of magnitude matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A backend that was asked and did not bring the answer."""

    backend: Backend
    why: AgentDiffError | str
    """The error, or `in doubt` where it answered with too little confidence."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteContext:
    """What is known when a backend is to be chosen."""

    request: Request
    candidates: tuple[Backend, ...]
    """In the order in which the router was given them. Policies see those without an objection."""
    attempts: tuple[Attempt, ...] = ()
    left_s: float | None = None
    """Seconds until the request's deadline; None where it has none."""
    latencies: Latencies = field(default_factory=Latencies)
    names: Mapping[int, str] = field(default_factory=dict[int, str])

    def name_of(self, backend: Backend) -> str:
        """What the router calls a backend: its name, numbered where two have the same."""
        return self.names.get(id(backend), backend.name)

    def named(self, wanted: Backend | str) -> Backend | None:
        """The candidate that is `wanted`, or is called so; None where there is none."""
        for backend in self.candidates:
            if backend is wanted or self.name_of(backend) == wanted:
                return backend
        return None

    @property
    def prompt_tokens(self) -> int:
        """About how long the prompt is: four bytes to a token."""
        request = self.request
        size = sum(len(message.content.encode(errors="replace")) for message in request.messages)
        return size // _BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why a backend should not be asked."""

    reason: str
    is_final: bool = True
    """Whether it holds even where no backend is without one; else it is only a bad sign."""
    wait_s: float | None = None
    """Seconds after which it will not hold any more, where that is known."""


class Rule(Protocol):
    """Objects to backends."""

    def objection(self, context: RouteContext, backend: Backend) -> Objection | None:
        """Why `backend` should not be asked; None where it may."""
        ...


class Policy(Protocol):
    """Prefers a backend."""

    @property
    def reason(self) -> str:
        """Why it chooses as it does, for traces: `by kind of step`."""
        ...

    def select(self, context: RouteContext) -> Backend | None:
        """One of the candidates; None for no opinion, and the next policy is asked."""
        ...


# --- Rules ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Capable:
    """Objects where a backend cannot do what is asked for. Every router has it."""

    enforcement: Enforcement = "none"
    """What a request with a schema needs at least."""

    def objection(self, context: RouteContext, backend: Backend) -> Objection | None:
        """See `Rule`."""
        request, can = context.request, backend.capabilities
        if request.tools and not can.tools:
            return Objection(reason="calls no tools")
        if can.max_tools is not None and len(request.tools) > can.max_tools:
            return Objection(reason=f"takes {can.max_tools} tools, not {len(request.tools)}")
        if request.schema is not None and _is_weaker(can.enforcement, self.enforcement):
            return Objection(reason=f"enforces {can.enforcement}, not {self.enforcement}")
        if can.context_tokens is not None and context.prompt_tokens > can.context_tokens:
            return Objection(
                reason=f"holds {can.context_tokens} tokens, not about {context.prompt_tokens}"
            )
        return None


@dataclass(frozen=True, slots=True)
class Between:
    """Objects to whoever cannot write between two texts. A router has it where that is asked for."""

    def objection(self, context: RouteContext, backend: Backend) -> Objection | None:
        """See `Rule`."""
        if isinstance(backend, Infills):
            return None
        return Objection(reason="does not write between two texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class InTime:
    """Objects where calls of this kind have lately taken longer than the deadline leaves.

    A bad sign only: where every backend is too slow, one is asked all the same.
    """

    share: float = 0.9
    """The share of calls that must have made it."""

    def objection(self, context: RouteContext, backend: Backend) -> Objection | None:
        """See `Rule`."""
        if context.left_s is None:
            return None
        name = context.name_of(backend)
        taken = context.latencies.total_s(name, context.request.kind, share=self.share)
        if taken is None or taken <= context.left_s:
            return None
        reason = f"takes {taken:.2f} s, and {context.left_s:.2f} s are left"
        return Objection(reason=reason, is_final=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCeiling:
    """Objects where a call would cost more than it may: the prompt, and all of its budget's ceiling.

    A backend whose price is not known costs nothing here; give it one in `prices`.
    """

    usd: float
    """US dollars for one call."""
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """By the backend's name; others are looked up in `agentdiff.backends.models.KNOWN`."""
    output_tokens: int = 512
    """Expected where a request has no budget."""

    def objection(self, context: RouteContext, backend: Backend) -> Objection | None:
        """See `Rule`."""
        price = self.prices.get(context.name_of(backend)) or _listed(backend)
        if price is None:
            return None
        budget = context.request.budget
        output = self.output_tokens if budget is None or budget.is_off else budget.ceiling
        cost = price.of(Usage(input_tokens=context.prompt_tokens, output_tokens=output))
        if cost is None or cost <= self.usd:
            return None
        return Objection(reason=f"may cost ${cost:.6f}, more than ${self.usd:g}")


# --- Policies ---


@dataclass(frozen=True, slots=True)
class ByKind:
    """Each kind of step to its backend: short typed steps to the diffusion model, say."""

    backends: Mapping[StepKind, Backend | str]
    """Kind of step → a backend, or its name. A kind that is not there is left to the next policy."""

    @property
    def reason(self) -> str:
        """See `Policy`."""
        return "by kind of step"

    def select(self, context: RouteContext) -> Backend | None:
        """See `Policy`."""
        wanted = self.backends.get(context.request.kind)
        return None if wanted is None else context.named(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLength:
    """Short outputs to one backend, long ones to another, by the budget's target."""

    short: Backend | str
    long: Backend | str
    over: int
    """A target above this many tokens is long. Without a budget there is no opinion."""

    @property
    def reason(self) -> str:
        """See `Policy`."""
        return f"by length, long above {self.over} tokens"

    def select(self, context: RouteContext) -> Backend | None:
        """See `Policy`."""
        budget = context.request.budget
        if budget is None or budget.is_off:
            return None
        return context.named(self.long if budget.target > self.over else self.short)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """Hard calls to a stronger backend: those that the caller marks, and those that went wrong.

    The mark is `Sampling(effort=…)`. Wrong is an output that was invalid, or in doubt (see `Router`'s
    `doubt_below`).
    """

    to: Backend | str
    efforts: Collection[Effort] = ("quality",)

    @property
    def reason(self) -> str:
        """See `Policy`."""
        return "escalated"

    def select(self, context: RouteContext) -> Backend | None:
        """See `Policy`."""
        is_marked = context.request.sampling.effort in self.efforts
        went_wrong = any(isinstance(each.why, str | OutputInvalid) for each in context.attempts)
        return context.named(self.to) if is_marked or went_wrong else None


class Weighted:
    """A share of the calls to each backend, at random: a canary, say."""

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        kinds: Iterable[StepKind] | None = None,
        seed: int | None = None,
    ) -> None:
        """Nothing is drawn yet.

        Args:
            weights: By name; those that are absent get nothing, unless nobody else is left.
            kinds: Kinds of step that it has an opinion on; None for all.
            seed: The same seed and the same calls give the same choices.

        Raises:
            ConfigurationError: A weight is negative, or none is positive.
        """
        if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
            raise ConfigurationError(f"`weights` must be positive, got {dict(weights)!r}")
        self._weights = dict(weights)
        self._kinds = None if kinds is None else frozenset(kinds)
        self._random = random.Random(seed)

    @property
    def reason(self) -> str:
        """See `Policy`."""
        shares = ", ".join(f"{name} {weight:g}" for name, weight in self._weights.items())
        return f"by weight ({shares})"

    def select(self, context: RouteContext) -> Backend | None:
        """See `Policy`."""
        if self._kinds is not None and context.request.kind not in self._kinds:
            return None
        weights = [self._weights.get(context.name_of(b), 0.0) for b in context.candidates]
        if not any(weights):
            return None
        return self._random.choices(context.candidates, weights)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """Whoever has lately been fastest with this kind of step; one that is not known yet comes first."""

    to_first_text: bool = False
    """Look at the time to the first text instead of to the end."""

    @property
    def reason(self) -> str:
        """See `Policy`."""
        return "the fastest to the first text" if self.to_first_text else "the fastest"

    def select(self, context: RouteContext) -> Backend | None:
        """See `Policy`."""
        known = context.latencies
        measure = known.first_s if self.to_first_text else known.total_s

        def seconds(backend: Backend) -> float:
            return measure(context.name_of(backend), context.request.kind) or 0.0

        return min(context.candidates, key=seconds, default=None)


@dataclass(frozen=True, slots=True)
class InOrder:
    """The first that is left, in the order given; what holds where no policy has an opinion."""

    @property
    def reason(self) -> str:
        """See `Policy`."""
        return "the first in order"

    def select(self, context: RouteContext) -> Backend | None:
        """See `Policy`."""
        return next(iter(context.candidates), None)


def _is_weaker(one: Enforcement, other: Enforcement) -> bool:
    return STRENGTH.index(one) > STRENGTH.index(other)


def _listed(backend: Backend) -> Price | None:
    card = KNOWN.get(backend.name.partition(":")[2])
    return None if card is None else card.price
