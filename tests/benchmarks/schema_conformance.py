"""How many real schemas are taken with all their valid instances, and whether an invalid one is.

    python -m tests.benchmarks.schema_conformance [--suite] [--list]

Prints, for closed and for open objects, with keys in the schema's order and in any, the share of
schemas that pass (taken, with every valid instance and no invalid one) by group, the false
accepts, why schemas are refused, and how long
compiling takes. Needs the sample of MaskBench; see `tests/constraint/conformance.py`.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

from tests.constraint.conformance import (
    Outcome,
    outcome_of,
    sample_path,
    sample_rows,
    suite_rows,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Real schemas: how many pass, false accepts, times."
    )
    parser.add_argument("--suite", action="store_true", help="the official test suite instead")
    parser.add_argument("--list", action="store_true", help="name every schema that does not pass")
    arguments = parser.parse_args()
    path = sample_path()
    if not arguments.suite and path is None:
        raise SystemExit("no sample of MaskBench here; see tests/constraint/conformance.py")
    for open_objects, key_order in product((False, True), ("schema", "free")):
        print(f"\nopen_objects={open_objects}, key_order={key_order!r}")
        if arguments.suite or path is None:
            rows: Iterable[dict[str, Any]] = (
                {"group": f"{row['draft']} {part}", "name": row["description"], **row}
                for part in ("required", "optional")
                for row in suite_rows(part)
            )
        else:
            rows = sample_rows(path)
        options = {"open_objects": open_objects, "key_order": key_order}
        report(rows, options, names=arguments.list)


def report(rows: Iterable[dict[str, Any]], options: dict[str, Any], *, names: bool) -> None:
    groups: defaultdict[str, list[Outcome]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for row in rows:
        outcome = outcome_of(row["schema"], row["tests"], **options)
        groups[row["group"]].append(outcome)
        if outcome.refused is not None and not outcome.is_unsatisfiable:
            reasons[f"refused: {outcome.refused.keyword}"] += 1
        elif outcome.missed:
            reasons["a valid instance is not taken"] += 1
        if names and not outcome.passes:
            print(f"  {row['group']}/{row['name']}: {outcome.refused or 'not all are taken'}")
    everything = [outcome for outcomes in groups.values() for outcome in outcomes]
    for name, outcomes in [*groups.items(), ("all", everything)]:
        passed = sum(outcome.passes for outcome in outcomes)
        empty = sum(outcome.is_unsatisfiable for outcome in outcomes)
        share = f"{100 * passed / len(outcomes):5.1f} %"
        note = f"  ({empty} of them satisfied by nothing, and refused)" if empty else ""
        print(f"{name:22} {passed:5} of {len(outcomes):5} {share}{note}")
    print("false accepts:", sum(len(outcome.widened) for outcome in everything))
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    times = sorted(1000 * outcome.seconds for outcome in everything)
    p50, p90, p99 = (times[int(share * (len(times) - 1))] for share in (0.5, 0.9, 0.99))
    print(f"compile, ms: p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.1f}, max {times[-1]:.0f}")


if __name__ == "__main__":
    main()
