"""How long an output will be: budgets that are right from the first call and better with every one.

Plain Python; knows steps, counts and costs, and no text, model or backend.
"""

from agentdiff.length.bounds import Bounds, schema_bounds
from agentdiff.length.context import StepContext
from agentdiff.length.cost import (
    BigCanvasCost,
    BlockCost,
    CachedCanvasCost,
    CanvasCost,
    CapCost,
    CostModel,
    FullCanvasCost,
    cost_of,
)
from agentdiff.length.lint import Unbounded, unbounded_fields
from agentdiff.length.predictor import Explanation, LengthPredictor
from agentdiff.length.replay import replay
from agentdiff.length.store import Store, open_store

__all__ = [
    "BigCanvasCost",
    "BlockCost",
    "Bounds",
    "CachedCanvasCost",
    "CanvasCost",
    "CapCost",
    "CostModel",
    "Explanation",
    "FullCanvasCost",
    "LengthPredictor",
    "StepContext",
    "Store",
    "Unbounded",
    "cost_of",
    "open_store",
    "replay",
    "schema_bounds",
    "unbounded_fields",
]
