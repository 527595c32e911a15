"""What the decode engine costs: `python tests/benchmarks/decode.py`.

CPU time of one thread on small random weights, both sides of a comparison interleaved in one process, medians. Beside
each speed stands what it changes: positions pushed, the share of tokens that are those of the exact decode, and the
share of all scored positions whose best token is the one that the whole canvas would have given at that step.

- caches of a bidirectional model against the plain loop of its reference: whole canvas, logits of every position; and
  against dlmserve's loop (`pip install --no-deps dlmserve` and its imports), where it is installed;
- short constrained replies of a block-causal model, sixteen in one batch against one after the other;
- passes that speculation saves a block-causal model which writes one token a step. The weights are random, so how often
  a guess holds says nothing of a trained model; that the tokens are the same does.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from agentdiff.constraint import Vocabulary, compile_schema
from agentdiff.engine import (
    DecodeOutput,
    DecodeParams,
    Engine,
    LookAhead,
    Quota,
    SelfVerify,
    Speculation,
    Threshold,
    load_family,
)
from agentdiff.engine.families.base import Family, FamilyTraits
from agentdiff.engine.families.stock import StockFamily

GOLDENS = Path(__file__).parent.parent / "goldens"
REPEATS = 3
REPLY, BLOCK = 128, 32
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
T = TypeVar("T")


def small_llada() -> StockFamily:
    """A random model in LLaDA's shape: the golden one is so small that calls cost more than arithmetic."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.08,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )
    traits = FamilyTraits(
        name="llada",
        vocab_size=1024,
        mask_id=1023,
        eos_ids=(1022,),
        block_len=BLOCK,
        context_len=1024,
        attention="bidirectional",
    )
    return StockFamily(LlamaForCausalLM(config), traits)


@torch.inference_mode()
def plain_loop(family: Family, prompt: Sequence[int], *, length: int, block: int) -> list[int]:
    """LLaDA's loop, one token a step: every step scores the whole canvas."""
    mask_id = family.traits.mask_id
    assert mask_id is not None
    canvas = torch.tensor([[*prompt, *[mask_id] * length]])
    positions = torch.arange(canvas.shape[1])[None]
    seen = torch.ones(1, 1, canvas.shape[1], canvas.shape[1], dtype=torch.bool)
    for start in range(len(prompt), len(prompt) + length, block):
        for _ in range(block):
            hidden, _ = family.run(canvas, positions=positions, mask=seen, past=())
            logits = family.head(hidden)
            tokens = logits.argmax(-1)
            sure = logits.softmax(-1).gather(-1, tokens[..., None])[..., 0]
            sure[:, start + block :] = -torch.inf
            sure[canvas != mask_id] = -torch.inf
            place = sure.argmax()
            canvas[0, place] = tokens[0, place]
    return canvas[0, len(prompt) :].tolist()


def peer_loop(family: StockFamily) -> Callable[[Sequence[int]], list[int]] | None:
    """dlmserve's denoising of a prompt on the same weights, one token a step; None where it is not installed."""
    try:
        from dlmserve.denoise_loop import denoise  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
        from dlmserve.sampler import SamplingParams  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        print(f"dlmserve is not compared: {error}")
        return None

    def model(ids: torch.Tensor, attention_mask: None) -> Any:
        seen = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
        return family.model(input_ids=ids, attention_mask=seen, use_cache=False)

    def run(prompt: Sequence[int]) -> list[int]:
        params = SamplingParams(num_denoising_steps=REPLY, gen_length=REPLY, block_length=BLOCK)
        mask_id = family.traits.mask_id
        canvas: torch.Tensor = denoise(model, torch.tensor([[*prompt]]), None, params, mask_id)
        return canvas[0, len(prompt) :].tolist()

    return run


class Overheard(StockFamily):
    """Keeps the logits of every step."""

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Family.head`."""
        logits = super().head(hidden)
        self.heard.append(logits.clone())
        return logits

    @property
    def heard(self) -> list[torch.Tensor]:
        """[n, V] of each call of `head`."""
        return self.__dict__.setdefault("_heard", [])


@torch.inference_mode()
def agreement(family: StockFamily, prompt: Sequence[int], params: DecodeParams) -> float:
    """Share of the scored positions where a cached decode and a pass over the whole canvas have the same best token.

    Both see the canvases of the cached decode, so that one early difference does not count again and again.
    """
    mask_id = family.traits.mask_id
    assert mask_id is not None
    overheard = Overheard(family.model, family.traits)
    (output,) = Engine(overheard).generate([prompt], replace(params, record=True))
    assert output.trace is not None
    canvases = [(*prompt, *[mask_id] * REPLY), *output.trace[:-1]]
    same = scored = 0
    for step, (canvas, logits) in enumerate(zip(canvases, overheard.heard, strict=True)):
        ids = torch.tensor([canvas])
        length = ids.shape[1]
        seen = torch.ones(1, 1, length, length, dtype=torch.bool)
        hidden, _ = family.run(ids, positions=torch.arange(length)[None], mask=seen, past=())
        start = len(prompt) + step // BLOCK * BLOCK
        places = start + (ids[0, start : start + BLOCK] == mask_id).nonzero()[:, 0]
        exact = family.head(hidden[0, places])
        for scores in (exact, logits):
            scores[:, mask_id] = -torch.inf
        same += int((exact.argmax(-1) == logits.argmax(-1)).sum())
        scored += len(places)
    return same / scored


def timed(jobs: dict[str, Callable[[], T]]) -> tuple[dict[str, float], dict[str, T]]:
    """CPU seconds of each job, the median of interleaved repeats after one that warms up, and what each returned."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    results: dict[str, T] = {}
    for turn in range(REPEATS + 1):
        for name, job in jobs.items():
            before = time.process_time()
            results[name] = job()
            if turn:
                seconds[name].append(time.process_time() - before)
    return {name: statistics.median(taken) for name, taken in seconds.items()}, results


def caches(prompt_len: int) -> None:
    """The caches of a bidirectional model at one length of prompt."""
    family = small_llada()
    prompt = [(7 * n + 3) % 1000 for n in range(prompt_len)]
    base = DecodeParams(
        target=REPLY, ceiling=REPLY, policy=Quota(), block_len=BLOCK, eos_ids=(), cache="none"
    )
    outputs: dict[str, DecodeOutput] = {}

    def decode(cache: Any) -> list[int]:
        outputs[cache] = Engine(family).generate([prompt], replace(base, cache=cache))[0]
        return list(outputs[cache].tokens)

    jobs: dict[str, Callable[[], list[int]]] = {
        "plain loop": lambda: plain_loop(family, prompt, length=REPLY, block=BLOCK),
        "none": lambda: decode("none"),
        "prefix": lambda: decode("prefix"),
        "dual": lambda: decode("dual"),
    }
    peer = peer_loop(family)
    if peer is not None:
        jobs["dlmserve"] = lambda: peer(prompt)
    seconds, tokens = timed(jobs)
    exact = tokens["plain loop"]
    print(f"\nprompt {prompt_len}, reply {REPLY}, blocks of {BLOCK}, {REPLY} steps")
    print(
        f"{'cache':<12}{'CPU s':>8}{'speed':>8}{'positions':>11}{'equal tokens':>14}{'same best':>11}"
    )
    for name in jobs:
        same = sum(one == other for one, other in zip(tokens[name], exact, strict=True)) / REPLY
        pushed = (
            (prompt_len + REPLY) * REPLY if name not in outputs else outputs[name].stats.positions
        )
        speed = seconds["plain loop"] / seconds[name]
        kept = agreement(family, prompt, replace(base, cache=name)) if name in outputs else 1.0  # pyright: ignore[reportArgumentType]
        print(
            f"{name:<12}{seconds[name]:>8.3f}{speed:>7.1f}x{pushed:>11,}{same:>14.0%}{kept:>11.0%}"
        )
    if peer is not None:
        is_same = tokens["dlmserve"] == tokens["none"]
        print(
            f"uncached against dlmserve {seconds['dlmserve'] / seconds['none']:.2f}x, tokens "
            f"{'identical' if is_same else 'DIFFERENT'}"
        )


def batching() -> None:
    """Sixteen constrained replies together and one after the other."""
    family = load_family(GOLDENS / "sdar", device="cpu")
    size = family.traits.vocab_size
    vocabulary = Vocabulary(
        [bytes([n]) if n < 256 else None for n in range(size)], family.traits.eos_ids
    )
    grammar = compile_schema(SCHEMA, vocabulary)
    prompts = [[(11 * n + 5 * row) % 256 for n in range(24 + row)] for row in range(16)]
    params = DecodeParams(target=32, ceiling=48, policy=Threshold(0.9))

    def batched() -> list[DecodeOutput]:
        matchers = [grammar.start(48) for _ in prompts]
        return Engine(family, prefix_bytes=0).generate(prompts, params, matchers)

    def alone() -> list[DecodeOutput]:
        engine = Engine(family, prefix_bytes=0)
        return [engine.generate([p], params, [grammar.start(48)])[0] for p in prompts]

    seconds, outputs = timed({"batched": batched, "one by one": alone})
    written = sum(len(output.tokens) for output in outputs["batched"])
    is_same = [o.tokens for o in outputs["batched"]] == [o.tokens for o in outputs["one by one"]]
    matcher_s = sum(output.stats.constraint_s for output in outputs["batched"])
    print("\n16 constrained replies")
    for name, taken in seconds.items():
        print(f"{name:<12}{taken:>8.3f} s{written / taken:>8.0f} tokens/s")
    print(
        f"throughput {seconds['one by one'] / seconds['batched']:.1f}x, tokens "
        f"{'identical' if is_same else 'DIFFERENT'}, {matcher_s:.3f} s of the batch in the grammar"
    )


def speculation() -> None:
    """One token a step, with and without guesses; and a model that checks its own drafts from left to right."""
    prompt = [(11 * n + 5) % 256 for n in range(32)]
    base = DecodeParams(target=64, ceiling=64, policy=Quota(), eos_ids=())
    print("\nspeculation, one token a step, prompt 32, reply 64")
    print(f"{'blocks of':<11}{'by':<16}{'CPU s':>8}{'passes':>8}{'positions':>11}{'tokens':>12}")
    for block in (4, 16):
        family = load_family(GOLDENS / "sdar", device="cpu", block_len=block)

        def decode(rule: Speculation | None, family: Any = family) -> DecodeOutput:
            engine = Engine(family, prefix_bytes=0)
            return engine.generate([prompt], replace(base, speculation=rule))[0]

        jobs: dict[str, Callable[[], DecodeOutput]] = {
            "plain": lambda: decode(None),
            "look ahead 1": lambda: decode(LookAhead(steps=1)),
            "look ahead 3": lambda: decode(LookAhead(steps=3)),
            "self-verify": lambda: decode(SelfVerify(expected=0)),
        }
        seconds, outputs = timed(jobs)
        for name, output in outputs.items():
            is_same = output.tokens == outputs["plain"].tokens
            verdict = (
                "identical" if is_same else "its own" if name == "self-verify" else "DIFFERENT"
            )
            print(
                f"{block:<11}{name:<16}{seconds[name]:>8.3f}{output.stats.forwards:>8}"
                f"{output.stats.positions:>11,}{verdict:>12}"
            )


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    for prompt_len in (128, 512):
        caches(prompt_len)
    batching()
    speculation()


if __name__ == "__main__":
    main()
