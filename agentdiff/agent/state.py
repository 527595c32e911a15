"""What a run has done so far, as a value: enough to go on from there, in any process.

A run is its generations and the records of its tool calls; all else follows from them. A run that
goes on takes these instead of making them anew, and lives on from the first that is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from agentdiff.agent.config import Mode
from agentdiff.agent.events import CallRecord
from agentdiff.agent.generating import Generation
from agentdiff.agent.plan import Plan
from agentdiff.errors import ConfigurationError
from agentdiff.messages import Message, ToolCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run that can go on. It holds the conversation, and no `deps`: give these again."""

    format: Literal["agentdiff-run-1"] = "agentdiff-run-1"
    agent: str
    """The name of the agent."""
    prompt: str
    before: tuple[Message, ...]
    """The conversation before the prompt, instructions included."""
    mode: Mode = "react"
    plan: Plan | None = None
    """That was given."""
    generations: tuple[Generation, ...] = ()
    """Those that are done, in order."""
    calls: Mapping[str, CallRecord] = field(default_factory=dict[str, CallRecord])
    """Those that are done, by `<number of the generation>.<place in its turn>`."""
    pending: tuple[ToolCall, ...] = ()
    """Calls that wait for a person."""

    def to_json(self) -> str:
        """The state as JSON; `from_json` gives an equal one."""
        return adapter(RunState).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> RunState:
        """Read what `to_json` wrote.

        Raises:
            ConfigurationError: It is something else.
        """
        try:
            return adapter(RunState).validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the text"
            raise ConfigurationError(f"not the state of a run ({place}: {first['msg']})") from error


@functools.cache
def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Reads and writes a dataclass of ours; built when it is first needed."""
    return TypeAdapter(kind)


def place_of(generation: int, call: int | str) -> str:
    """The key of a call: the number of the generation that asked for it, and its place."""
    return f"{generation}.{call}"
