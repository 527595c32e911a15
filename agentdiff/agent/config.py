"""What all runs of an agent share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from agentdiff.agent.limits import UsageLimits
from agentdiff.agent.output import Output, OutputT
from agentdiff.agent.tools import AnyTool
from agentdiff.generation import Backend, Sampling
from agentdiff.length import LengthPredictor


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Generic[OutputT]):
    """An agent, put together and checked."""

    agent: str
    """The agent's name."""
    backend: Backend
    tools: Mapping[str, AnyTool]
    """By name, in the order in which the model sees them."""
    output: Output[OutputT]
    limits: UsageLimits
    predictor: LengthPredictor
    sampling: Sampling
    max_output_repairs: int
