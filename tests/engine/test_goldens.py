"""Decoding against the traces of the reference loops: a compact selection, all of them with `-m slow`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine import golden_runs

COMPACT = {
    "llada": ("one_block_uneven_quota", "cfg_1_5", "fast_v1_dual_threshold_0.3"),
    "llada_moe": ("batch2_left_pad",),
    "dream": ("entropy_five_steps", "batch2_left_pad_maskgit", "fast_v1_prefix_entropy_quota"),
    "sdar": ("dynamic_prompt_shorter_than_block", "sequential_aligned_prompt_two_per_step"),
    "llada2": ("two_per_step_partial_thr_0.3", "eos_early_stop_True"),
    "llada21": ("no_post_steps", "aligned_prompt_thr_0.7_edit_0.5_post_16"),
    "a2d_qwen3": ("mdlm_batch2_ragged", "bd3lm_last_block_short", "bd3lm_right_shift"),
    "diffusion_gemma": ("no_random_early_stop", "seed_0", "batch2_left_pad_no_random"),
    "fast_dllm_v2": (
        "prompt_shorter_than_block_thr_0.4",
        "stop_token_thr_0.3",
        "batch_sample_stop",
    ),
}
"""Every rule and every kind of prompt once."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Matrices this small only wait for each other on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(family: str, names: tuple[str, ...] | None) -> None:
    for run in golden_runs.runs(family):
        if names is None or run["name"] in names:
            for outcome in golden_runs.compare(golden_runs.load(family, run), run):
                assert outcome.is_equal, outcome


@pytest.mark.parametrize("family", COMPACT)
def test_a_decode_writes_what_the_reference_writes_step_by_step(family: str) -> None:
    check(family, COMPACT[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", COMPACT)
def test_every_reference_run_is_reproduced(family: str) -> None:
    check(family, None)
