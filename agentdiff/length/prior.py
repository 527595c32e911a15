"""What is expected of each kind of step before anything has been seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import cast

from agentdiff.generation import StepKind
from agentdiff.length.histogram import Distribution

Prior = Mapping[str, Distribution]
"""A distribution over the bins by kind, and for some models by kind of model (`of_model`)."""


def of_model(kind: StepKind, model: str) -> str:
    """The name of a kind's prior for one model."""
    return f"{kind} of {model}"


@cache
def shipped_prior() -> Prior:
    """What is shipped, made by `make_prior` from recorded steps."""
    text = files("agentdiff.length").joinpath("prior.json").read_text(encoding="utf-8")
    return cast("Prior", json.loads(text))
