"""What a grammar's share of a step costs where the logits are: whole rows against parts of them.

Random logits of a block over a vocabulary of real size. Either whole rows of log-probabilities reach the grammar, or
they are reduced first to what it asks for (`engine/grammar_scores.py`). Both in turns in one process, medians; on a CPU
the time is that of one thread. Ends with 1 if the two propose different tokens.

    python -m tests.benchmarks.step_scores [--device cpu] [--batch 1] [--block 32]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from agentdiff.constraint import Matcher, Vocabulary, bench, compile_schema
from agentdiff.engine import DecodeParams, Threshold, grammar_scores
from agentdiff.engine.grammar_scores import Asked, reduce
from agentdiff.engine.sampling import to_host
from agentdiff.engine.sequence import Sequence

SCHEMAS = ("search", "order", "numbers", "either")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to bring the scores of a step to the grammars."""

    way: str
    temperature: float
    batch: int
    bytes_moved: int
    """For the whole batch."""
    scores_ms: float
    """From the logits to what the grammars read."""
    grammar_ms: float
    """In the grammars."""
    tokens: list[list[int]]


@contextmanager
def reducing(is_reduced: bool) -> Generator[None]:
    """Have scores reduced, or not, whatever the device; on one thread."""
    before, threads = grammar_scores.is_reduced_on, torch.get_num_threads()
    grammar_scores.is_reduced_on = lambda device: is_reduced
    torch.set_num_threads(1)
    try:
        yield
    finally:
        grammar_scores.is_reduced_on = before
        torch.set_num_threads(threads)


def sequences(vocabulary: Vocabulary, batch: int, block: int, temperature: float) -> list[Sequence]:
    """Sequences whose grammars have met what these scores lead to."""
    schemas = bench.sample_schemas()
    found: list[Sequence] = []
    for n in range(batch):
        grammar = compile_schema(schemas[SCHEMAS[n % len(SCHEMAS)]], vocabulary)
        sequence = Sequence(
            id=n,
            prompt=(),
            params=DecodeParams(target=96, ceiling=96, temperature=temperature, seed=n),
            policy=Threshold(0.9),
            eos_ids=frozenset(vocabulary.eos_ids),
            matcher=grammar.start(96),
        )
        sequence.open_block(block)
        found.append(sequence)
    return found


def measure(
    device: str,
    *,
    vocabulary: Vocabulary,
    batch: int = 1,
    block: int = 32,
    repeats: int = 9,
    temperature: float = 0.0,
) -> list[Row]:
    """Both ways in turns, on one thread; the first rounds only warm up."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(batch * block, len(vocabulary), device=device)
    many = sequences(vocabulary, batch, block, temperature)
    now: Callable[[], float] = time.thread_time if device == "cpu" else time.perf_counter
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    rows: dict[bool, Row] = {}
    for turn in range(repeats + 2):
        for is_reduced in times:
            with reducing(is_reduced):
                if device != "cpu":
                    torch.cuda.synchronize()
                started = now()
                log_probs = logits.log_softmax(-1)
                asked = [
                    Asked(sequence, np.arange(block), part)
                    for sequence, part in zip(many, log_probs.split(block), strict=True)
                ]
                reduced = reduce(asked)
                host = [tensor.numpy() for tensor in to_host(reduced.tensors)]
                scores = reduced.scores(host)
                brought = now()
                fills = [
                    _of(s).propose(one, {}, temperature=temperature, rng=s.rng)
                    for s, one in zip(many, scores, strict=True)
                ]
                ended = now()
            if turn > 1:
                times[is_reduced].append((brought - started, ended - brought))
            rows[is_reduced] = Row(
                way="by parts" if is_reduced else "whole rows",
                temperature=temperature,
                batch=batch,
                bytes_moved=sum(array.nbytes for array in host),
                scores_ms=0.0,
                grammar_ms=0.0,
                tokens=[fill.tokens.tolist() for fill in fills],
            )
    return [
        Row(
            way=row.way,
            temperature=row.temperature,
            batch=row.batch,
            bytes_moved=row.bytes_moved,
            scores_ms=1e3 * median(first for first, _ in times[is_reduced]),
            grammar_ms=1e3 * median(second for _, second in times[is_reduced]),
            tokens=row.tokens,
        )
        for is_reduced, row in rows.items()
    ]


def _of(sequence: Sequence) -> Matcher:
    assert sequence.matcher is not None
    return sequence.matcher


def differ(rows: list[Row]) -> bool:
    """Whether the two ways write different tokens; what is drawn differs anyway."""
    return rows[0].temperature == 0 and rows[0].tokens != rows[1].tokens


def table(rows: list[Row]) -> str:
    """A line for each way."""
    lines = [
        "| sequences | temperature | scores | MB to the host | logits to scores, ms | in the grammars, ms |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.batch} | {row.temperature} | {row.way} | {row.bytes_moved / 1e6:.2f} | {row.scores_ms:.2f} "
        f"| {row.grammar_ms:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Whole rows against parts of them.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--block", type=int, default=32)
    options = parser.parse_args()
    vocabulary, title = bench.bench_vocabulary()
    rows: list[Row] = []
    is_wrong = False
    for temperature in (0.0, 0.7):
        found = measure(
            options.device,
            vocabulary=vocabulary,
            batch=options.batch,
            block=options.block,
            temperature=temperature,
        )
        is_wrong |= differ(found)
        rows += found
    print(f"{title}, blocks of {options.block}, {options.device}\n\n{table(rows)}")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
