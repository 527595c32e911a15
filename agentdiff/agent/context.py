"""What tools, validators and instructions may know of the run that they work for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, get_origin

from typing_extensions import TypeVar

from agentdiff.messages import Message, Usage

DepsT = TypeVar("DepsT", default=None)
DepsT_co = TypeVar("DepsT_co", default=None, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(Generic[DepsT_co]):
    """The run, as a function sees it whose first parameter is a `RunContext`."""

    deps: DepsT_co
    """What `run(deps=…)` was given."""
    agent: str
    """The agent's name."""
    step: int
    """The number of the step, from 1."""
    messages: tuple[Message, ...]
    """The conversation until here, without the turn that is under way."""
    usage: Usage
    """What the run has spent until here."""
    call_id: str = ""
    """Of the tool call; the same again when a crashed run is resumed, so it may serve to recognise a
    call that is made twice. Empty outside tools."""
    attempt: int = 1
    """From 1; higher after calls of this tool that the model was asked to make again."""
    is_approved: bool = False
    """Whether a person has approved this call."""
    _left_s: Callable[[], float | None] = field(repr=False)

    def left_s(self) -> float | None:
        """Seconds that the run has left; None without a limit."""
        return self._left_s()


def is_context(hint: Any) -> bool:
    """Whether a type hint is `RunContext` or `RunContext[…]`."""
    return hint is RunContext or get_origin(hint) is RunContext
