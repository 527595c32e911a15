"""The constraint on many real schemas: every text of noise is valid and within its budget.

Reads schemas from gzip or plain JSON lines (`group`, `name`, `schema`), as many of each group as
asked for, and writes texts of each from random logits, with 3 seeds, on a tight budget (the minimum
+ 4 tokens) and on a loose one: the same number of texts with keys in the schema's order and, with
`--free`, with keys in any. Then it times compiling and steps. With `--peers PYTHON`, an interpreter
that has llguidance or xgrammar installed, those are measured on the same schemas. `--part 2/8` takes
every eighth schema, for machines with little time.

    python tests/benchmarks/constraint.py SCHEMAS.jsonl.gz [--schemas 300] [--free] [--part K/N]
        [--peers PYTHON] [--json]
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
from agentdiff.constraint.schema import KeyOrder
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
    parser.add_argument("--free", action="store_true", help="with keys in any order, too")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th schema from K on")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    vocabulary, title = bench.bench_vocabulary()
    schemas = read(options.path, vocabulary, options.schemas, options.seed)
    part, parts = map(int, options.part.split("/"))
    schemas = dict(list(schemas.items())[part - 1 :: parts])
    orders: tuple[KeyOrder, ...] = ("schema", "free") if options.free else ("schema",)
    fuzz = {
        order: bench.measure_validity(schemas, vocabulary, seeds=options.seeds, key_order=order)
        for order in orders
    }
    costs = bench.measure_costs(schemas, vocabulary)
    peers = peers_figures(options.peers, schemas, vocabulary) if options.peers else []
    if options.json:
        print(
            json.dumps(
                {
                    "vocabulary": title,
                    "schemas": len(schemas),
                    "fuzz": {
                        order: {
                            "texts": figures.texts,
                            "valid": figures.valid,
                            "over_budget": figures.over_budget,
                            "wrong": figures.wrong,
                        }
                        for order, figures in fuzz.items()
                    },
                    "costs": as_object(costs),
                    "peers": [asdict(peer) for peer in peers],
                }
            )
        )
    else:
        print(f"{title} · {len(schemas)} schemas")
        for order, figures in fuzz.items():
            print(
                f"key_order={order!r}: {figures.valid} of {figures.texts} texts valid, "
                f"{figures.over_budget} over budget"
            )
            for name, text in figures.wrong[:20]:
                print(f"  {name}: {text[:160]!r}")
        table(costs, peers)
    return int(any(f.valid < f.texts or f.over_budget > 0 for f in fuzz.values()))


if __name__ == "__main__":
    sys.exit(main())
