"""The reference decode traces of `tests/goldens`: what each run asks of the engine, and what it has to give.

Reference loops differ in what they call a canvas, when they stop and which passes they count; this says how, so that
everything else must be equal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentdiff.engine import (
    DecodeOutput,
    DecodeParams,
    Edit,
    Engine,
    Factor,
    Quota,
    Renoise,
    Threshold,
    UnmaskPolicy,
    load_family,
)
from agentdiff.engine.families.base import CanvasFamily, Family
from agentdiff.engine.families.stock import StockFamily
from agentdiff.engine.renoise import NoiseSource
from agentdiff.engine.unmask import Score

GOLDENS = Path(__file__).parent.parent / "goldens"
Run = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run compared: where the canvases part, and how many passes each side took."""

    name: str
    first_difference: int | None
    """The first step whose canvas differs; None where all are equal."""
    steps: tuple[int, int]
    """Denoising steps: ours, the reference's."""
    forwards: tuple[int, int]
    """Passes: ours, the reference's less those it could have spared."""

    @property
    def is_equal(self) -> bool:
        return self.first_difference is None and self.forwards[0] == self.forwards[1]


def runs(family: str) -> list[Run]:
    """The runs that a clean implementation has to reproduce.

    Left out is what the goldens mark as a bug of the reference, and Fast-dLLM v2's inner block cache, an approximation
    that the engine does not offer. Seeded runs of DiffusionGemma are in: the engine draws as transformers does.
    """
    path = GOLDENS / family / "trace.json"
    made = json.loads(path.read_text("utf-8"))["runs"]
    return [
        run
        for run in made
        if (run["reproducible"] or run["loop"] == "diffusion_gemma.generate")
        and not run["params"].get("use_block_cache")
    ]


def load(family: str, run: Run) -> Family | CanvasFamily:
    """The model of a run: some families decode in two ways."""
    params = run["params"]
    options: dict[str, Any] = {"shift": "previous" if params.get("right_shift_logits") else None}
    if run["loop"] == "a2d.bd3lm":
        options |= {"attention": "block_causal", "block_len": params["block_size"]}
    if run["loop"].split(".")[0] in ("sdar", "llada2", "llada21"):
        options["block_len"] = params["block_length"]
    loaded = load_family(GOLDENS / family, device="cpu", **options)
    if run["loop"] == "a2d.bd3lm":  # it pads the prompt on the left to whole blocks
        assert isinstance(loaded, StockFamily)
        return loaded.with_traits(replace(loaded.traits, prompt_blocks="to_end"))
    return loaded


def settings(run: Run, *, vocab_size: int) -> DecodeParams:
    """What the run's loop does, in the engine's words."""
    p = run["params"]
    length = p.get("gen_length") or p["max_new_tokens"]
    base = DecodeParams(target=length, ceiling=length, eos_ids=(), eos_stop="ceiling", record=True)
    match run["loop"]:
        case (
            "llada.generate"
            | "fast_dllm_v1.generate"
            | "fast_dllm_v1.factor"
            | ("fast_dllm_v1.generate_with_prefix_cache" | "fast_dllm_v1.generate_with_dual_cache")
        ):
            block = p["block_length"]
            return replace(
                base,
                policy=_fast(p, Quota(steps=p["steps"] // (length // block))),
                block_len=block,
                cache=p.get("cache"),
                guidance=p.get("cfg_scale", 0.0),
            )
        case "dream.diffusion_generate":
            scores: dict[str, Score] = {"maskgit_plus": "confidence", "topk_margin": "margin"}
            score = scores.get(p["alg"], "entropy")
            policy = Quota(steps=p["steps"], schedule="linear", eps=p["eps"], score=score)
            return replace(base, policy=policy, block_len=length)
        case "fast_dllm_v1.dream":
            steps = p["steps"] // (length // p["block_length"])
            entropy = Quota(steps=steps, schedule="linear", eps=p["eps"], score="entropy")
            return replace(
                base,
                policy=_fast(p, entropy),
                block_len=p["block_length"],
                cache=p["cache"],
            )
        case "a2d.mdlm" | "a2d.bd3lm":
            blocks = -(-length // p["block_size"])
            steps = p.get("steps_per_block") or p["steps"] // blocks
            return replace(
                base,
                policy=Quota(steps=steps, schedule="linear_rounded"),
                block_len=p["block_size"],
                guidance=p.get("cfg_scale", 0.0),
                eos_ids=(p["eos_id"],) if "eos_id" in p else (),
                eos_stop="block" if "eos_id" in p else "ceiling",
            )
        case "sdar.block_diffusion_generate":
            quota = Quota(steps=p["denoising_steps"])
            policy: UnmaskPolicy = {
                "sequential": replace(quota, score="position"),
                "low_confidence_static": quota,
            }.get(p["remasking_strategy"], Threshold(p["confidence_threshold"], quota))
            return replace(
                base, policy=policy, eos_ids=tuple(p["stop_ids"] or ()), eos_stop="block"
            )
        case "llada2.generate":
            policy = Threshold(p["threshold"], Quota(steps=p["steps"]))
            stop = "token" if p["eos_early_stop"] else "block"
            return replace(base, policy=policy, eos_ids=(p["eos_id"],), eos_stop=stop)
        case "llada21.generate":
            least = Quota(steps=-(-p["block_length"] // p.get("num_to_transfer", 1)))
            return replace(
                base,
                policy=Threshold(p["threshold"], least),
                revision=Edit(threshold=p["editing_threshold"], post_steps=p["max_post_steps"]),
                eos_ids=(p["eos_id"],),
                eos_stop="token" if p["eos_early_stop"] else "ceiling",
            )
        case "fast_dllm_v2.generate" | "fast_dllm_v2.batch_sample":
            return replace(
                base,
                policy=Threshold(p["threshold"]),
                block_len=p["small_block_size"],
                eos_ids=(p["stop_token"],),
                eos_stop="token" if run["loop"].endswith("generate") else "block",
            )
        case "diffusion_gemma.generate":
            is_seeded = not run["reproducible"]
            return replace(
                base,
                policy=Renoise(
                    steps=p["max_denoising_steps"],
                    bound=p["sampler_config"]["entropy_bound"],
                    hottest=p["t_max"],
                    coldest=p["t_min"],
                    stable_steps=p["stability_threshold"],
                    sure=p["confidence_threshold"],
                    noise=None if is_seeded else _numbered_noise(p["canvas_length"], vocab_size),
                ),
                temperature=float(is_seeded),
                seed=p["torch_seed"],
                eos_ids=tuple(p["eos_token_id"]),
                eos_stop="token",
            )
        case loop:
            raise AssertionError(f"no such loop: {loop}")


def _numbered_noise(length: int, vocab_size: int) -> NoiseSource:
    """The random canvases of the runs without randomness."""
    return lambda number: [(7 * place + 31 * number + 3) % vocab_size for place in range(length)]


def _fast(p: dict[str, Any], quota: Quota) -> UnmaskPolicy:
    if p.get("factor") is not None:
        return Factor(p["factor"])
    return quota if p.get("threshold") is None else Threshold(p["threshold"])


def compare(family: Family | CanvasFamily, run: Run) -> list[Outcome]:
    """Decode the prompts of a run together; one outcome for each."""
    made = prompts(run)
    each = [
        replace(
            settings(run, vocab_size=family.traits.vocab_size), **_length(family, run, len(prompt))
        )
        for prompt in made
    ]
    outputs = Engine(family).generate(made, each)
    return [_outcome(run, row, family.traits.mask_id, output) for row, output in enumerate(outputs)]


def prompts(run: Run) -> list[list[int]]:
    """The prompts without their padding."""
    masks = run.get("attention_mask") or [[1] * len(ids) for ids in run["prompt_ids"]]
    return [
        [token for token, keep in zip(ids, mask, strict=False) if keep]
        for ids, mask in zip(run["prompt_ids"], masks, strict=True)
    ]


def _length(family: Family | CanvasFamily, run: Run, prompt_len: int) -> dict[str, int]:
    """How long the reply gets where a loop counts whole blocks, with the prompt's tail among them."""
    p, block = run["params"], family.traits.block_len
    match run["loop"]:
        case "sdar.block_diffusion_generate" | "llada2.generate" | "llada21.generate":
            length = -(-(prompt_len + p["gen_length"]) // block) * block - prompt_len
        case "fast_dllm_v2.generate" | "fast_dllm_v2.batch_sample":
            length = (prompt_len // block + p["max_new_tokens"] // block) * block - prompt_len
        case _:
            return {}
    return {"target": length, "ceiling": length}


def _outcome(run: Run, row: int, mask_id: int | None, output: DecodeOutput) -> Outcome:
    assert output.trace is not None
    if mask_id is None:
        return _canvas_outcome(run, row, output)
    prompt = prompts(run)[row]
    steps = [step for step in run["steps"] if not _is_spared(run, step, row)]
    reference = [_reply(run, row, step["canvas"][row], prompt, mask_id) for step in steps]
    ours = [_reply(run, row, canvas, prompt, mask_id) for canvas in output.trace]
    pairs = zip(ours, reference, strict=False)
    first = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    if first is None and len(ours) != len(reference):
        first = min(len(ours), len(reference))
    forwards = run["forward_passes"] - len(run["steps"]) + len(steps)
    detail = run.get("forward_passes_detail", {})
    forwards -= detail.get("commit", 0) > 0  # the last block need not be stored
    if run["loop"] in ("llada2.generate", "llada21.generate"):  # no cache there: whole windows
        forwards = output.stats.forwards - output.stats.steps + len(steps)
    if run["loop"] == "fast_dllm_v2.batch_sample" and len(run["prompt_ids"]) > 1:
        forwards = output.stats.forwards  # rows wait for each other there
    if not run.get("steps_recorded", True):  # only what came out is known
        written = run["final_ids"][row][len(prompt) :]
        first = None if written[: len(output.tokens)] == list(output.tokens) else 0
    return Outcome(
        name=f"{run['name']}[{row}]" if len(run["prompt_ids"]) > 1 else run["name"],
        first_difference=first,
        steps=(output.stats.steps, len(reference)),
        forwards=(output.stats.forwards, forwards),
    )


def _canvas_outcome(run: Run, row: int, output: DecodeOutput) -> Outcome:
    """The likeliest tokens of each step; passes of the decoder, the encoder's are one for each canvas."""
    assert output.trace is not None
    length = run["params"]["canvas_length"]
    reference = [step["argmax"][row] for step in run["steps"]]
    pairs = zip((list(canvas[-length:]) for canvas in output.trace), reference, strict=False)
    first = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    if first is None and len(output.trace) != len(reference):
        first = min(len(output.trace), len(reference))
    return Outcome(
        name=f"{run['name']}[{row}]" if len(run["prompt_ids"]) > 1 else run["name"],
        first_difference=first,
        steps=(output.stats.steps, len(reference)),
        forwards=(output.stats.steps, run["decoder_forward_passes"]),
    )


def _is_spared(run: Run, step: Run, row: int) -> bool:
    """Whether a step is one that only the reference spends.

    Fast-dLLM runs a cached pass over a block that its refresh has completed; in batches rows wait for each other.
    """
    if step["changed"][row]:
        return False
    if run["loop"] == "fast_dllm_v2.batch_sample":
        return True
    return run["loop"].startswith("fast_dllm_v1.generate") and step.get("kind") != "full"


def _reply(run: Run, row: int, canvas: Any, prompt: list[int], mask_id: int) -> list[int]:
    """The reply in a canvas, without padding and the masks at its end."""
    mask = (run.get("attention_mask") or [[]] * (row + 1))[row]
    kept = canvas
    if len(mask) == len(canvas):
        kept = [token for token, keep in zip(canvas, mask, strict=True) if keep]
    start = next(n for n in range(len(kept)) if list(kept[n : n + len(prompt)]) == prompt)
    reply = list(kept[start + len(prompt) :])
    while reply and reply[-1] == mask_id:
        reply.pop()
    return reply
