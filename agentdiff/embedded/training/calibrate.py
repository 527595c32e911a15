"""How a bias towards refusing trades refusals against calls: `python -m agentdiff.embedded.training.calibrate FOLDER`.

Measured on examples of the training distribution with held-out phrases and values, not on the evaluation sets: of
requests that no tool fits the share that is refused, and of calls the share that is refused and that is exact.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio

from agentdiff.backends.local import LocalBackend
from agentdiff.embedded.bench import Score, judge, load_cases, use_threads
from agentdiff.embedded.training import examples
from agentdiff.embedded.training.evaluation_sets import row
from agentdiff.embedded.training.tokenizer import WEIGHTS

SOURCES = ("shipped", "catalog", "invented")


def held_out(source: str, kind: str, count: int, *, seed: int) -> list[dict[str, Any]]:
    """Rows of one kind (`call` or `none`) as the evaluation sets have them, each request once."""
    rng = Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        example = examples.sample(rng, split="held", source=source, kind=kind)
        if example.kind == kind:
            rows.setdefault(example.request, row(example, shipped=False))
    return list(rows.values())


def _not_run(tool: str, arguments: object) -> str:
    raise AssertionError(f"no case has a second step, but {tool} was called with {arguments}")


async def measure(folder: Path, sets: dict[str, Path]) -> dict[str, Score]:
    """Every set, one generation at a time, on one thread."""
    use_threads(1)
    backend = LocalBackend.load(str(folder), device="cpu")
    return {
        name: await judge(backend, name, load_cases(path, {}, _not_run))
        for name, path in sets.items()
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure biases towards refusing.")
    parser.add_argument("folder", type=Path, nargs="?", default=WEIGHTS)
    parser.add_argument("--biases", type=float, nargs="+", default=[0.0, 12.0, 16.0, 20.0])
    parser.add_argument("--count", type=int, default=200, help="examples of each source and kind")
    parser.add_argument("--seed", type=int, default=4242)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "weights"
        shutil.copytree(args.folder, folder)
        config = cast("dict[str, Any]", json.loads((folder / "config.json").read_text("utf-8")))
        (token,) = config["token_biases"]
        sets: dict[str, Path] = {}
        for kind in ("none", "call"):
            for source in SOURCES[:2] if kind == "none" else SOURCES:
                path = sets[f"{source} {kind}"] = Path(scratch) / f"{source}-{kind}.jsonl"
                rows = held_out(source, kind, args.count, seed=args.seed)
                path.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
        for bias in args.biases:
            config["token_biases"] = {token: bias}
            (folder / "config.json").write_text(json.dumps(config), "utf-8")
            for name, score in anyio.run(measure, folder, sets).items():
                refused, exact = score.refused / score.rows, score.exact / score.rows
                print(
                    f"bias {bias:g}  {name:14}  refused {refused:.1%}  exact {exact:.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
