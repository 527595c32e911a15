"""Every family against golden numbers of its reference code (see `tests/goldens/README.md`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from agentdiff.engine import load_family
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.table import FAMILIES
from tests.goldens.forward import forward_differences

GOLDENS = Path(__file__).parent.parent / "goldens"
FOLDERS = sorted(path.parent.name for path in GOLDENS.glob("*/config.json"))
TOLERANCE = 1e-4

load = cache(load_family)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Matrices this small only wait for each other on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_logits_are_those_of_the_reference(name: str) -> None:
    family = load(GOLDENS / name, device="cpu")
    assert isinstance(family.traits, FamilyTraits)
    found = dict(forward_differences(GOLDENS / name, family))
    assert found
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("name", ["llada", "llada2", "fast_dllm_v2", "diffusion_gemma"])
def test_eager_attention_gives_the_same_logits(name: str) -> None:
    """It adds its mask to the scores, where a boolean one would be wrong without a sound."""
    family = load_family(GOLDENS / name, device="cpu", attn_implementation="eager")
    found = dict(forward_differences(GOLDENS / name, family))
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("name", FOLDERS)
def test_the_traits_are_those_that_the_goldens_name(name: str) -> None:
    traits = load(GOLDENS / name, device="cpu").traits
    meta = json.loads((GOLDENS / name / "meta.json").read_text())
    ids = meta["token_ids"]
    assert traits.vocab_size == meta["shape"]["vocab_size"]
    assert traits.mask_id == ids.get("mask_token_id")
    if ids:
        assert traits.eos_ids == (ids["eos_token_id"],)
        assert traits.pad_id == ids.get("pad_token_id")
    kinds = {
        "a2d_qwen3": ("bidirectional", "none"),
        "bd3lm": ("block_causal", "none"),
        "diffusion_gemma": ("canvas", "none"),
        "dream": ("bidirectional", "previous"),
        "fast_dllm_v2": ("block_causal", "within_block"),
        "llada": ("bidirectional", "none"),
        "llada2": ("block_causal", "none"),
        "llada21": ("block_causal", "none"),
        "llada_moe": ("bidirectional", "none"),
        "sdar": ("block_causal", "none"),
    }
    assert (traits.attention, traits.shift) == kinds[name]


def test_every_verified_row_of_the_table_has_goldens() -> None:
    compared = {load(GOLDENS / name, device="cpu").traits.name for name in FOLDERS}
    assert compared == {spec.name for spec in FAMILIES if spec.verified} - {"router"}


def test_the_table_leaves_no_doubt() -> None:
    types = [each for spec in FAMILIES for each in spec.model_types]
    assert len(types) == len(set(types))
    claimed = [each for spec in FAMILIES if not spec.source for each in spec.architectures]
    assert len(claimed) == len(set(claimed))
    assert len({spec.name for spec in FAMILIES}) == len(FAMILIES)
