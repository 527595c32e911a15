"""Measure a checkpoint, and ship it only if it beats what is shipped.

`python -m agentdiff.embedded.training.release RUN/last.pt`

Writes the weights, `metrics.json` (every evaluation set through the real backend) and `training.json` (how they came
about). New weights replace old ones only when no set gets worse and the mean gets better.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import anyio
import torch

from agentdiff.backends.local import LocalBackend
from agentdiff.embedded.bench import Score, bench, machine, use_threads
from agentdiff.embedded.training import corpus
from agentdiff.embedded.training.export import export
from agentdiff.embedded.training.tokenizer import WEIGHTS

LEXICON = "lexicon"
"""The tensor that is no parameter: word vectors that were learned elsewhere."""


def as_row(score: Score) -> dict[str, Any]:
    """A score as it stands in `metrics.json`."""
    return {
        "set": score.title,
        "rows": score.rows,
        "bar": score.bar,
        "exact": round(score.accuracy, 4),
        "right_tool": round(score.right_tool / max(1, score.rows), 4),
        "refused": round(score.refused / max(1, score.rows), 4),
        "tokens_per_forward": round(score.tokens_per_forward, 2),
        "cpu_ms": round(score.cpu_ms, 1),
    }


def is_better(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> bool:
    """Whether no set of `old` is worse in `new`, and the mean is higher."""
    exact = {row["set"]: row["exact"] for row in new}
    common = [row for row in old if row["set"] in exact]
    if not common:
        return True
    gains = [exact[row["set"]] - row["exact"] for row in common]
    return min(gains) >= 0 and sum(gains) > 0


def corpus_hash() -> str:
    """A digest of everything the examples are made from: the written corpus and the generator."""
    digest = hashlib.sha256()
    generator = ("asking", "corpus", "examples", "inventing", "refusing", "replies", "values")
    modules = [Path(__file__).with_name(f"{name}.py") for name in generator]
    for path in sorted([*corpus.FOLDER.iterdir(), *modules]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


async def measure(folder: Path) -> list[dict[str, Any]]:
    """Every evaluation set, one generation at a time, on one thread."""
    use_threads(1)
    backend = LocalBackend.load(str(folder), device="cpu")
    with tempfile.TemporaryDirectory() as root:
        return [as_row(score) for score in await bench(backend, Path(root))]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Measure a checkpoint and ship it if it is better."
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=WEIGHTS)
    parser.add_argument("--block-len", type=int, default=16)
    parser.add_argument("--force", action="store_true", help="ship it whatever the figures say")
    args = parser.parse_args()
    state: dict[str, Any] = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    with tempfile.TemporaryDirectory() as scratch:
        candidate = Path(scratch) / "weights"
        export(args.checkpoint, candidate, tokenizer=args.tokenizer, block_len=args.block_len)
        rows = anyio.run(measure, candidate)
        for row in rows:
            print(json.dumps(row))
        shipped = WEIGHTS / "metrics.json"
        if shipped.is_file() and not args.force:
            before = json.loads(shipped.read_text("utf-8"))["sets"]
            if not is_better(rows, before):
                print("not shipped: a set got worse, or none got better")
                raise SystemExit(1)
        for old in WEIGHTS.glob("*.safetensors"):
            old.unlink()
        for path in candidate.iterdir():
            shutil.copyfile(path, WEIGHTS / path.name)
    curve = [
        json.loads(line)
        for line in (args.checkpoint.parent / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    record = {
        "seed": 0,
        "steps": state["step"],
        "examples": curve[-1]["examples"],
        "tokens": state["tokens"],
        "cpu_s": round(state["cpu_s"]),
        "shape": state["shape"],
        "parameters": sum(t.numel() for name, t in state["model"].items() if name != LEXICON),
        "lexicon": list(state["model"][LEXICON].shape) if LEXICON in state["model"] else None,
        "torch": torch.__version__,
        "machine": machine(),
        "corpus_sha256": corpus_hash(),
        "curve": [
            {"step": step, "loss": loss}
            for step, loss in sorted({row["step"]: row["loss"] for row in curve}.items())
            if step % 200 == 0
        ],
    }
    metrics = {"machine": machine(), "threads": 1, "sets": rows}
    (WEIGHTS / "training.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (WEIGHTS / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", "utf-8")
    print("shipped")


if __name__ == "__main__":
    main()
