"""Write `prior.json`: what is expected of each kind of step before anything has been seen.

    python -m agentdiff.length.make_prior steps.jsonl.gz router.jsonl

reads recorded agent steps, one JSON object a line (`src`, `kind`, `model`, `out`, `min` and, on
split-off names, `derived`), and makes one histogram of the excess over the schema's minimum for
each kind. Every source weighs the same. A model of `OWN` has histograms of its own; what the
embedded model writes comes from `python -m tests.benchmarks.length router`.

No recorded source has our merged `route` step (which tool, with its arguments, or the answer), so
its histogram is made of the calls' arguments and the answers.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agentdiff.generation import StepKind
from agentdiff.length.context import KINDS
from agentdiff.length.histogram import BINS, bin_of
from agentdiff.length.prior import of_model
from agentdiff.messages import Json

MADE_OF: Mapping[StepKind, tuple[str, ...]] = {
    "plan": ("plan",),
    "route": ("tool_args", "answer"),
    "arguments": ("tool_args",),
    "answer": ("answer",),
    "repair": ("repair",),
}
"""The recorded kinds that each of our kinds is made of."""
OWN = ("agentdiff-router:2048",)
"""Models whose replies are too unlike others' to start from them, by tokenizer."""
SOURCE_WEIGHT = 100.0
UNSEEN = 0.02
SMOOTHING = (0.1, 0.2, 0.4, 0.2, 0.1)


def make_prior(rows: Iterable[Mapping[str, Json]]) -> dict[str, list[float]]:
    """One distribution over the bins for each kind, and for each kind of an own model.

    The bins count the end-of-text token.
    """
    seen: dict[str, dict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    own: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        if not row.get("derived"):
            place = bin_of(max(0, row["out"] + 1 - (row.get("min") or 0)))
            if row.get("model") in OWN:
                own[of_model(row["kind"], row["model"])][place] += 1
            else:
                seen[row["kind"]][row["src"]][place] += 1
    general = {kind: _distribution([seen[part] for part in MADE_OF[kind]]) for kind in KINDS}
    return general | {name: _distribution([{"": counts}]) for name, counts in own.items()}


def _distribution(parts: Sequence[Mapping[str, Counter[int]]]) -> list[float]:
    weights = [UNSEEN] * BINS
    for sources in parts:
        for counts in sources.values():
            for place, count in counts.items():
                weights[place] += SOURCE_WEIGHT * count / counts.total()
    reach = len(SMOOTHING) // 2
    padded = [0.0] * reach + weights + [0.0] * reach
    smooth = [
        sum(share * padded[place + step] for step, share in enumerate(SMOOTHING))
        for place in range(BINS)
    ]
    return [round(weight / sum(smooth), 6) for weight in smooth]


def main(paths: Sequence[str]) -> None:
    """Read the steps at `paths` and write `prior.json` beside this file."""
    rows: list[Mapping[str, Json]] = []
    for path in paths:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as lines:
            rows += [json.loads(line) for line in lines]
    target = Path(__file__).with_name("prior.json")
    written = [
        f"{json.dumps(name)}: {json.dumps(weights)}" for name, weights in make_prior(rows).items()
    ]
    target.write_text("{\n" + ",\n".join(written) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
