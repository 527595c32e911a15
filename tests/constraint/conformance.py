"""Schemas with instances: does the compiler take the valid ones, and never an invalid one?

The JSON-Schema-Test-Suite is vendored in `suite/`. A sample of MaskBench is not: it is looked for in
`AGENTDIFF_SCHEMA_SAMPLE` or, beside the repository, in `../shared/data/schemas`.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentdiff.constraint.automaton import DEAD
from agentdiff.constraint.schema import compile_to_nodes
from agentdiff.constraint.states import Automaton
from agentdiff.errors import SchemaError

SUITE = Path(__file__).parent / "suite"
DIALECTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@dataclass
class Outcome:
    """What became of one schema."""

    refused: SchemaError | None = None
    missed: list[Any] = field(default_factory=list)
    """Valid instances that are not taken."""
    widened: list[Any] = field(default_factory=list)
    """Invalid instances that are taken."""
    seconds: float = 0.0
    """Processor time to compile."""

    has_valid: bool = False
    """Whether there are valid instances."""

    @property
    def is_unsatisfiable(self) -> bool:
        """Whether it is refused because nothing satisfies it, and indeed no instance does."""
        return self.refused is not None and "nothing" in str(self.refused) and not self.has_valid

    @property
    def passes(self) -> bool:
        """Taken, with all valid instances and no invalid one; or refused since nothing satisfies it."""
        if self.refused is not None:
            return self.is_unsatisfiable
        return not self.missed and not self.widened


def outcome_of(schema: Any, tests: list[dict[str, Any]], **options: Any) -> Outcome:
    """Compile a schema and try its instances, written as `json.dumps` writes them."""
    has_valid = any(test["valid"] for test in tests)
    started = time.process_time()
    try:
        start = compile_to_nodes(schema, **options)
    except SchemaError as error:
        return Outcome(error, seconds=time.process_time() - started, has_valid=has_valid)
    outcome = Outcome(seconds=time.process_time() - started, has_valid=has_valid)
    automaton = Automaton(start, lambda node: 0)
    for test in tests:
        text = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
        state = automaton.step(automaton.start, text)
        is_taken = state != DEAD and automaton.may_end(state)
        if is_taken is not test["valid"]:
            (outcome.widened if is_taken else outcome.missed).append(test["data"])
    return outcome


def suite_rows(part: str) -> Iterator[dict[str, Any]]:
    """The rows of the vendored test suite: draft, file, description, schema, tests.

    `part` is `required` or `optional`. Schemas without a `$schema` get that of their draft.
    """
    for row in _rows(SUITE / f"{part}.jsonl.gz"):
        if isinstance(row["schema"], dict) and "$schema" not in row["schema"]:
            row["schema"] = {"$schema": DIALECTS[row["draft"]], **row["schema"]}
        yield row


def sample_path() -> Path | None:
    """Where the sample of MaskBench is, or None."""
    named = os.environ.get("AGENTDIFF_SCHEMA_SAMPLE")
    folders = [Path(named)] if named else []
    folders.append(Path(__file__).resolve().parents[3] / "shared" / "data" / "schemas")
    for folder in folders:
        path = folder if folder.is_file() else folder / "maskbench.jsonl.gz"
        if path.is_file():
            return path
    return None


def sample_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of the sample: group, name, schema, tests."""
    yield from _rows(path)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
