"""The decode engine: token ids in, token ids out.

It knows tensors, blocks, caches and (through `constraint`) grammars. It knows no text, no messages, no HTTP, no spans,
so it stands alone: load a checkpoint, `add` prompts, `step` until they are done.

Shapes everywhere: B batch, T new positions, L block, S cached positions, V vocabulary, H heads, D head dim, E width.
"""

from agentdiff.engine.block_ends import BlockEnds
from agentdiff.engine.buckets import Buckets
from agentdiff.engine.engine import Engine
from agentdiff.engine.families.base import CanvasFamily, Family, FamilyTraits
from agentdiff.engine.load import load_family
from agentdiff.engine.outcome import Update
from agentdiff.engine.params import DecodeOutput, DecodeParams, DecodeStats
from agentdiff.engine.prefix_cache import PrefixStats
from agentdiff.engine.presets import Effort, Preset, preset
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import Edit, InsertDelete, Revision, Revoke
from agentdiff.engine.speculate import LookAhead, SelfVerify, Speculation
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
    "BlockEnds",
    "Buckets",
    "CanvasFamily",
    "DecodeOutput",
    "DecodeParams",
    "DecodeStats",
    "EarlyCommit",
    "Edit",
    "Effort",
    "Engine",
    "EntropyBound",
    "Factor",
    "Family",
    "FamilyTraits",
    "InsertDelete",
    "LookAhead",
    "PrefixStats",
    "Preset",
    "Quota",
    "Renoise",
    "Revision",
    "Revoke",
    "SelfVerify",
    "Speculation",
    "Threshold",
    "UnmaskPolicy",
    "Update",
    "View",
    "load_family",
    "preset",
]
