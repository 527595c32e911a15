"""What is expected of each kind of step before anything has been seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import cast

from agentdiff.generation import StepKind
from agentdiff.length.histogram import Distribution


@cache
def shipped_prior() -> Mapping[StepKind, Distribution]:
    """One distribution over the bins for each kind, made by `make_prior` from recorded steps."""
    text = files("agentdiff.length").joinpath("prior.json").read_text(encoding="utf-8")
    return cast("Mapping[StepKind, Distribution]", json.loads(text))
