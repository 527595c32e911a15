"""The constraint on many real schemas: every text of noise is valid and within its budget.

Reads schemas from gzip or plain JSON lines (`group`, `name`, `schema`), as many of each group as
asked for, and writes texts of each from random logits, with 3 seeds, on a tight budget (the minimum
+ 4 tokens) and on a loose one. Then it times compiling and steps. With `--peers PYTHON`, an
interpreter that has llguidance or xgrammar installed, those are measured on the same schemas.

    python tests/benchmarks/constraint.py SCHEMAS.jsonl.gz [--schemas 300] [--peers PYTHON] [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentdiff.cli.bench_constraint import as_object, peers_figures, table
from agentdiff.constraint import bench
from agentdiff.constraint.matcher import compile_schema
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import SchemaError


def read(path: Path, vocabulary: Vocabulary, count: int, seed: int) -> dict[str, Any]:
    """Schemas that compile, drawn at random, the same number from each group while it has some."""
    groups: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            row = json.loads(line)
            groups[row["group"]].append((f"{row['group']}/{row['name']}", row["schema"]))
    rng = random.Random(seed)
    for rows in groups.values():
        rng.shuffle(rows)
    chosen: dict[str, Any] = {}
    while len(chosen) < count and any(groups.values()):
        for rows in groups.values():
            while rows:
                name, schema = rows.pop()
                try:
                    compile_schema(schema, vocabulary)
                except SchemaError:
                    continue
                chosen[name] = schema
                break
            if len(chosen) == count:
                break
    return chosen


def main() -> int:
    """Measure, print, and fail when a text is not valid or too long."""
    parser = argparse.ArgumentParser(description="The constraint on many real schemas.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7, help="which schemas are drawn")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    vocabulary, title = bench.bench_vocabulary()
    schemas = read(options.path, vocabulary, options.schemas, options.seed)
    fuzz = bench.measure_validity(schemas, vocabulary, seeds=options.seeds)
    costs = bench.measure_costs(schemas, vocabulary)
    peers = peers_figures(options.peers, schemas, vocabulary) if options.peers else []
    if options.json:
        print(
            json.dumps(
                {
                    "vocabulary": title,
                    "schemas": len(schemas),
                    "texts": fuzz.texts,
                    "valid": fuzz.valid,
                    "over_budget": fuzz.over_budget,
                    "wrong": fuzz.wrong,
                    "costs": as_object(costs),
                    "peers": [asdict(peer) for peer in peers],
                }
            )
        )
    else:
        print(f"{title} · {len(schemas)} schemas")
        print(f"{fuzz.valid} of {fuzz.texts} texts valid, {fuzz.over_budget} over budget")
        for name, text in fuzz.wrong[:20]:
            print(f"  {name}: {text[:160]!r}")
        table(costs, peers)
    return int(fuzz.valid < fuzz.texts or fuzz.over_budget > 0)


if __name__ == "__main__":
    sys.exit(main())
