"""The dial between speed and quality as one word: what it means for a family."""

from __future__ import annotations

from typing import Literal, NamedTuple

from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import Edit, InsertDelete, Revision
from agentdiff.engine.unmask import Threshold, UnmaskPolicy

Effort = Literal["speed", "balanced", "quality"]

_THRESHOLDS = {"speed": 0.8, "balanced": 0.9, "quality": 0.97}
_EDITING = {
    "speed": (Threshold(0.5), Edit(threshold=0.0)),
    "balanced": (Threshold(0.7), Edit(threshold=0.5)),
    "quality": (Threshold(0.95), Edit(threshold=0.9)),
}
"""LLaDA2.1: its speed mode, its quality mode, and the defaults of its code. The first is also what SGLang decodes
LLaDA2.2 by; what its authors would call quality is not published."""
_CANVAS = {
    "speed": Renoise(steps=24, bound=0.2),
    "balanced": Renoise(),
    "quality": Renoise(bound=0.05),
}


class Preset(NamedTuple):
    """What `DecodeParams` is to be given."""

    policy: UnmaskPolicy | Renoise
    revision: Revision | None


def preset(traits: FamilyTraits, effort: Effort) -> Preset:
    """The policy, and where the model was trained for it the editing, of an effort."""
    if traits.attention == "canvas":
        return Preset(_CANVAS[effort], None)
    if traits.edits:
        policy, edit = _EDITING[effort]
        if traits.delete_id is not None:
            return Preset(policy, InsertDelete(threshold=edit.threshold))
        return Preset(policy, edit)
    return Preset(Threshold(_THRESHOLDS[effort]), None)
