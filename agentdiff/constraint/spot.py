"""Where the compiler stands in the instance."""

from __future__ import annotations

from dataclasses import dataclass

from agentdiff.constraint.grounding import Grounding


@dataclass(frozen=True, slots=True)
class Spot:
    """Where the compiler stands in the instance."""

    grounding: Grounding
    """What binds strings from here down."""
    level: int = 0
    """How deep the value is nested, where that matters to how it is written."""
    depth: int = 0
    """How deep the schema is nested here."""
