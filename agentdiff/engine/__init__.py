"""The decode engine: token ids in, token ids out.

It knows tensors, blocks, caches and (through `constraint`) grammars. It knows no text, no messages, no HTTP, no spans,
so it stands alone: `load` a checkpoint folder, `add` prompts, `step` until they are done.

Shapes everywhere: B batch, L block, S cached prefix, V vocabulary, H heads, D head dim.
"""

from agentdiff.engine.engine import Engine, Update
from agentdiff.engine.families.base import CanvasFamily, Family, FamilyTraits, Prefix
from agentdiff.engine.load import load_family
from agentdiff.engine.params import DecodeOutput, DecodeParams, DecodeStats
from agentdiff.engine.unmask import (
    EarlyCommit,
    EntropyBound,
    Factor,
    Quota,
    Threshold,
    UnmaskPolicy,
    View,
)

__all__ = [
    "CanvasFamily",
    "DecodeOutput",
    "DecodeParams",
    "DecodeStats",
    "EarlyCommit",
    "Engine",
    "EntropyBound",
    "Factor",
    "Family",
    "FamilyTraits",
    "Prefix",
    "Quota",
    "Threshold",
    "UnmaskPolicy",
    "Update",
    "View",
    "load_family",
]
