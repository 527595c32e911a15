"""What decoding costs on a device: `tests/gpu/run.sh`.

Prints three markdown tables: how far the logits of the golden families move in float32 and bfloat16; what it takes to
bring the scores of a step to the grammars, whole or by parts; and the speed of random models of real size, each against
the loop one would write first. Wall time, medians, both sides interleaved; compiled only with `--compile`. The weights
are random, so a policy that looks at confidence would say nothing: every block takes a fixed number of steps, on both
sides the same. *Same tokens* are those that the first loop writes too. Ends with 1 if a family is out of tolerance, or
if a grammar writes other tokens by parts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

import torch
from torch._dynamo.utils import counters

from agentdiff.constraint import bench, compile_schema
from agentdiff.engine import (
    Buckets,
    DecodeOutput,
    DecodeParams,
    Engine,
    LookAhead,
    Quota,
    Renoise,
    Speculation,
)
from agentdiff.engine.families.compiled import GRAPHS, compile_module
from tests.benchmarks import step_scores
from tests.gpu.models import GEMMA, LLADA2, SDAR, TINY_VOCABULARY, Made, make
from tests.gpu.parity import GOLDENS, Parity, parity

SCHEMA = {
    "type": "object",
    "properties": {
        "tool": {"enum": ["search", "book_table", "send_message"]},
        "query": {"type": "string", "maxLength": 60},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    },
    "required": ["tool", "query", "tags", "limit"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is decoded."""

    prompt_len: int
    reply_len: int
    block_len: int
    steps: int
    """For each block."""
    canvas_len: int
    canvas_steps: int
    ceiling: int
    """Tokens that a reply under the schema may take."""
    batches: tuple[int, ...]
    repeats: int


FULL = Load(
    prompt_len=512,
    reply_len=128,
    block_len=32,
    steps=8,
    canvas_len=128,
    canvas_steps=16,
    ceiling=128,
    batches=(1, 8, 32),
    repeats=3,
)
TINY = Load(
    prompt_len=24,
    reply_len=16,
    block_len=8,
    steps=2,
    canvas_len=8,
    canvas_steps=2,
    ceiling=64,
    batches=(1, 2),
    repeats=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One way to decode, at one size of batch."""

    model: str
    batch: int
    way: str
    tokens: int
    seconds: float
    forwards: float
    """Of each sequence."""
    constraint_s: float | None = None
    """In the grammar, where there is one."""
    same: float | None = None
    """The share of tokens that are those of the loop it is compared with, where they should be."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.batch / self.forwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What came out of one batch."""

    replies: list[list[int]]
    forwards: float
    """Of each sequence."""
    constraint_s: float | None = None
    is_seeded: bool = False
    """Whether tokens were drawn, so that a batch is another one on either side."""


def timed(
    model: str, batch: int, jobs: dict[str, Callable[[], Decoded]], *, repeats: int
) -> Iterator[Speed]:
    """Every job once to warm up, then all of them in turns. The first one is what the others are compared with."""
    seconds: dict[str, list[float]] = {way: [] for way in jobs}
    results: dict[str, Decoded] = {}
    for turn in range(repeats + 1):
        for way, job in jobs.items():
            before = time.perf_counter()
            results[way] = job()  # ends on the host, so the device has nothing left to do
            if turn:
                seconds[way].append(time.perf_counter() - before)
    first = next(iter(results.values()))
    for way, result in results.items():
        is_like = result.constraint_s is None and not (result.is_seeded and batch > 1)
        yield Speed(
            model=model,
            batch=batch,
            way=way,
            tokens=sum(map(len, result.replies)),
            seconds=median(seconds[way]),
            forwards=result.forwards,
            constraint_s=result.constraint_s,
            same=share_of_same(result.replies, first.replies) if is_like else None,
        )


def share_of_same(some: list[list[int]], others: list[list[int]]) -> float:
    """The share of equal tokens, place by place."""
    pairs = [
        pair for one, two in zip(some, others, strict=True) for pair in zip(one, two, strict=False)
    ]
    return mean(one == two for one, two in pairs)


def prompts(made: Made, load: Load, batch: int) -> list[list[int]]:
    """Prompts that have nothing in common, so that nothing is reused."""
    top = len(made.vocabulary.tokens) - 2
    return [[(7 * n + 131 * row + 3) % top for n in range(load.prompt_len)] for row in range(batch)]


def engine_jobs(
    made: Made, load: Load, batch: int, params: DecodeParams, *, compiled_by: Sequence[str]
) -> dict[str, Callable[[], Decoded]]:
    """The engine, free and under a schema; with shapes rounded up, and compiled where that is asked for."""
    grammar = compile_schema(SCHEMA, made.vocabulary)
    many = prompts(made, load, batch)

    def decode(
        *, is_free: bool, buckets: Buckets | None = None, speculation: Speculation | None = None
    ) -> Decoded:
        engine = Engine(made.family, prefix_bytes=0, buckets=buckets)
        own = replace(params, ceiling=params.target if is_free else load.ceiling)
        own = replace(own, speculation=speculation)
        if not is_free:  # a reply that ends by itself
            own = replace(own, eos_ids=made.vocabulary.eos_ids, eos_stop="token")
        matchers = [None if is_free else grammar.start(own.ceiling) for _ in many]
        outputs: list[DecodeOutput] = engine.generate(many, own, matchers)
        spent = sum(output.stats.constraint_s for output in outputs)
        return Decoded(
            replies=[list(output.tokens) for output in outputs],
            forwards=mean(output.stats.forwards for output in outputs),
            constraint_s=None if is_free else spent,
            is_seeded=params.temperature > 0,
        )

    jobs = {
        "engine": lambda: decode(is_free=True),
        "engine, JSON schema": lambda: decode(is_free=False),
        "engine, rounded shapes": lambda: decode(is_free=True, buckets=Buckets()),
    }
    if params.temperature == 0:
        jobs["engine, looking ahead"] = lambda: decode(is_free=True, speculation=LookAhead())
    for backend in compiled_by:
        compiled = [compile_of(part, backend) for part in made.family.parts]

        def run_compiled(compiled: list[Form] = compiled) -> Decoded:
            with ExitStack() as stack:
                for one in compiled:
                    stack.enter_context(one())
                return decode(is_free=True, buckets=Buckets())

        jobs[f"engine, compiled by {backend}"] = run_compiled
    return jobs


Form = Callable[[], AbstractContextManager[None]]
"""A context in which a module is run in a compiled form."""


def compile_of(part: Any, backend: str) -> Form:
    """A module's compiled form, in force while a context lasts: so both can be timed in turns."""
    compile_module(part, backend)
    form, part._compiled_call_impl = part._compiled_call_impl, None

    @contextmanager
    def in_force() -> Generator[None]:
        part._compiled_call_impl = form
        try:
            yield
            if part._compiled_call_impl is None:
                raise RuntimeError(f"{backend} could not compile {type(part).__name__}")
        finally:
            part._compiled_call_impl = None

    return in_force


def mask_model(made: Made, load: Load, compiled_by: Sequence[str]) -> Iterator[Speed]:
    """A block-causal model: the engine against whole passes over everything so far."""
    params = DecodeParams(
        target=load.reply_len,
        ceiling=load.reply_len,
        policy=Quota(steps=load.steps),
        eos_ids=(),
        eos_stop="ceiling",
    )
    for batch in load.batches:
        jobs: dict[str, Callable[[], Decoded]] = {
            "plain loop, no cache": lambda batch=batch: plain_loop(made, load, batch),
            **engine_jobs(made, load, batch, params, compiled_by=compiled_by),
        }
        yield from timed(name_of(made), batch, jobs, repeats=load.repeats)


@torch.inference_mode()
def plain_loop(made: Made, load: Load, batch: int) -> Decoded:
    """The loop of the papers' listings: each step runs prompt, reply and block anew, and scores the block."""
    family, block = made.family, load.block_len
    mask_id, where = family.traits.mask_id, family.device
    canvas = torch.tensor(prompts(made, load, batch), device=where)
    share = block // load.steps
    forwards = 0
    for _ in range(load.reply_len // block):
        fresh = torch.full((batch, block), mask_id, device=where)
        canvas = torch.cat([canvas, fresh], 1)
        length = canvas.shape[1]
        positions = torch.arange(length, device=where)
        blocks = positions // block
        seen = (blocks[None, :] <= blocks[:, None]).expand(batch, 1, length, length)
        for _ in range(load.steps):
            hidden, _ = family.run(
                canvas, positions=positions.expand(batch, -1), mask=seen, past=()
            )
            logits = family.head(hidden[:, -block:])
            logits[..., mask_id] = -torch.inf
            sure, tokens = logits.softmax(-1).max(-1)
            active = canvas[:, -block:]
            sure[active != mask_id] = -torch.inf
            places = sure.topk(share, -1).indices
            active.scatter_(1, places, tokens.gather(1, places))
            forwards += 1
    return Decoded(replies=canvas[:, load.prompt_len :].tolist(), forwards=forwards)


def canvas_model(made: Made, load: Load, compiled_by: Sequence[str]) -> Iterator[Speed]:
    """DiffusionGemma: the engine against transformers' own loop."""
    params = DecodeParams(
        target=load.reply_len,
        ceiling=load.reply_len,
        policy=Renoise(steps=load.canvas_steps),
        temperature=1.0,
        eos_ids=(),
        eos_stop="ceiling",
    )
    for batch in load.batches:
        jobs: dict[str, Callable[[], Decoded]] = {
            "transformers' `generate`": lambda batch=batch: transformers_loop(made, load, batch),
            **engine_jobs(made, load, batch, params, compiled_by=compiled_by),
        }
        yield from timed(name_of(made), batch, jobs, repeats=load.repeats)


@torch.inference_mode()
def transformers_loop(made: Made, load: Load, batch: int) -> Decoded:
    """The loop that transformers has for this model, with the schedule that the engine's `Renoise` has."""
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as theirs

    schedule = Renoise(steps=load.canvas_steps)
    (end,) = made.family.traits.eos_ids
    config = theirs.DiffusionGemmaGenerationConfig(
        max_new_tokens=load.reply_len,
        max_denoising_steps=schedule.steps,
        sampler_config=theirs.EntropyBoundSamplerConfig(entropy_bound=schedule.bound),
        t_min=schedule.coldest,
        t_max=schedule.hottest,
        stability_threshold=schedule.stable_steps,
        confidence_threshold=schedule.sure,
        eos_token_id=end,
        pad_token_id=0,
        disable_compile=True,
    )
    torch.manual_seed(0)
    ids = torch.tensor(prompts(made, load, batch), device=made.family.device)
    output: Any = made.family.model.generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=config
    )
    rows = [row[load.prompt_len :] for row in output.sequences.tolist()]
    canvases = -(-load.reply_len // load.canvas_len)
    return Decoded(
        replies=[row[: row.index(end)] if end in row else row for row in rows],
        forwards=canvases * (schedule.steps + 1),  # a pass of the encoder for each canvas
        is_seeded=True,
    )


def scores_of_steps(load: Load, *, device: str, tiny: bool) -> Iterator[list[step_scores.Row]]:
    """Whole rows against parts of them, greedy and drawn, on one sequence and on a full batch."""
    vocabulary, _ = bench.bench_vocabulary(TINY_VOCABULARY if tiny else SDAR.vocab_size)
    for batch in (load.batches[0], load.batches[-1]):
        for temperature in (0.0, 0.7):
            yield step_scores.measure(
                device,
                vocabulary=vocabulary,
                batch=batch,
                block=load.block_len,
                repeats=3 * load.repeats,
                temperature=temperature,
            )


def name_of(made: Made) -> str:
    """The model and its size."""
    size = f"{made.billions:.1f} B" if made.billions >= 0.1 else f"{1e3 * made.billions:.1f} M"
    return f"{made.title} ({size}, random)"


def parity_table(rows: list[Parity]) -> str:
    """A line for each family and precision."""
    lines = [
        "| family | precision | mean difference of a logit | same likeliest token |",
        "|---|---|---|---|",
    ]
    for row in rows:
        verdict = "" if row.is_good else " **out of tolerance**"
        lines.append(
            f"| {row.family} | {row.dtype} | {row.difference:.1e}{verdict} | {row.agreement:.0%} |"
        )
    return "\n".join(lines)


def speed_table(rows: list[Speed]) -> str:
    """A line for each way to decode."""
    lines = [
        "| model | batch | decoded by | tokens/s | tokens/forward | same tokens | in the grammar |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = "" if row.constraint_s is None else f"{row.constraint_s / row.seconds:.0%}"
        same = "" if row.same is None else f"{row.same:.0%}"
        lines.append(
            f"| {row.model} | {row.batch} | {row.way} | {row.tokens_per_s:,.0f} "
            f"| {row.tokens_per_forward:.1f} | {same} | {share} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; 0 if every family is within tolerance."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", help="of the random models")
    parser.add_argument(
        "--tiny", action="store_true", help="golden sizes and a few tokens: does it run?"
    )
    parser.add_argument(
        "--compile",
        metavar="BACKEND",
        nargs="+",
        default=[],
        help="also by torch.compile: inductor, reduce-overhead (CUDA graphs); some minutes more each",
    )
    asked = parser.parse_args(arguments)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device here; try `--device cpu --tiny`", file=sys.stderr)
        return 2
    load = TINY if asked.tiny else FULL
    name = torch.cuda.get_device_name() if asked.device.startswith("cuda") else "CPU"
    began = time.perf_counter()
    torch.manual_seed(0)
    folders = sorted(path.parent.name for path in GOLDENS.glob("*/config.json"))
    checked = list(
        parity(
            ("sdar", "llada2", "diffusion_gemma") if asked.tiny else folders, device=asked.device
        )
    )
    print(f"torch {torch.__version__}, {name}, {asked.dtype}\n\n{parity_table(checked)}\n")
    scored = list(scores_of_steps(load, device=asked.device, tiny=asked.tiny))
    print(f"Scores of a step\n\n{step_scores.table([row for pair in scored for row in pair])}\n")
    speeds: list[Speed] = []
    for shape, length, measure in (
        (SDAR, load.block_len, mask_model),
        (LLADA2, load.block_len, mask_model),
        (GEMMA, load.canvas_len, canvas_model),
    ):
        made = make(
            shape, device=asked.device, dtype=asked.dtype, block_len=length, tiny=asked.tiny
        )
        speeds += measure(made, load, asked.compile)
        del made
        if asked.device.startswith("cuda"):
            torch.cuda.empty_cache()
        print(f"{shape.title}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(
        f"Prompt {load.prompt_len}, reply {load.reply_len}, blocks of {load.block_len} in {load.steps} steps, "
        f"canvases of {load.canvas_len} in {load.canvas_steps}.\n\n{speed_table(speeds)}"
    )
    if GRAPHS in asked.compile:
        skips = counters["inductor"]["cudagraph_skips"]
        print(f"\nForms that inductor made no CUDA graph of: {skips}.")
    is_good = all(row.is_good for row in checked) and not any(map(step_scores.differ, scored))
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
