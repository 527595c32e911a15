"""What one generation of a server has to keep to, and what it has cost so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentdiff.messages import Usage

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

    from agentdiff.generation import Request


@dataclass(slots=True, kw_only=True)
class Terms:
    """The terms of one stream; it counts into them."""

    request: Request
    """As it is sent: with its tools in words, where the server has no field for them."""
    spoken: Request | None = None
    """The request as it was made, where its tools had to be put into words."""
    schema: Validator | None
    began: float
    """By anyio's clock."""
    deadline: float
    """By anyio's clock; infinite where the request has none."""
    attempts: int = 0
    spent: Usage = field(default_factory=lambda: Usage(requests=0))
    """Of answers that came and do not count."""
    warnings: list[str] = field(default_factory=list[str])

    def count(self) -> None:
        """One more call."""
        self.attempts += 1
