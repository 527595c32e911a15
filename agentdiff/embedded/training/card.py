"""The measured part of the model card: `python -m agentdiff.embedded.training.card docs/embedded.md` writes it anew.

Everything between the two marks comes from `metrics.json` and `training.json`, which `release` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agentdiff.embedded.training.tokenizer import WEIGHTS

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def table(metrics: dict[str, Any]) -> str:
    """The evaluation sets as a Markdown table."""
    lines = [
        "| set | rows | bar | exact | tokens per forward | right tool | refused | CPU per call |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in metrics["sets"]:
        bar = "" if row["bar"] is None else f"{100 * row['bar']:.0f} %"
        cells = [
            row["set"],
            row["rows"],
            bar,
            f"{100 * row['exact']:.1f} %",
            f"{row['tokens_per_forward']:.1f}",
            f"{100 * row['right_tool']:.1f} %",
            f"{100 * row['refused']:.1f} %",
            f"{row['cpu_ms']:.0f} ms",
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def measured(folder: Path = WEIGHTS) -> str:
    """The text between the marks."""
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    training = json.loads((folder / "training.json").read_text("utf-8"))
    missed = [r["set"] for r in metrics["sets"] if r["bar"] is not None and r["exact"] < r["bar"]]
    verdict = "Every bar that was set before training is reached."
    if missed:
        verdict = f"The bars that were set before training are missed for: {'; '.join(missed)}."
    return f"""{table(metrics)}

{verdict} Measured on one thread of {metrics["machine"]}.

Trained for {training["steps"]:,} steps ({training["examples"]:,} examples, {training["tokens"] / 1e6:.1f} M tokens,
{training["cpu_s"] / 3600:.1f} core-hours) on {training["machine"]}; last loss {training["curve"][-1]["loss"]:.2f}."""


if __name__ == "__main__":
    page = Path(sys.argv[1])
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{measured()}\n{END}{after}", "utf-8")
