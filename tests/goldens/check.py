"""Golden folders against the engine: `python tests/goldens/check.py DIR`.

DIR is a folder of family folders, or one of them (see README.md there). For each: every forward case, cached blocks
among them, and every recorded decode, step by step. Prints one line for each family, ends with 1 if one is out of
tolerance.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from agentdiff.engine import Engine
from agentdiff.errors import AgentDiffError
from tests.engine import golden_runs
from tests.goldens.forward import forward_differences

TOLERANCE = 1e-4


@dataclass(kw_only=True)
class Report:
    """What became of one family folder."""

    name: str
    family: str = "?"
    cases: int = 0
    difference: float = 0.0
    """The largest difference of a logit over all cases."""
    tolerance: float = TOLERANCE
    traces: int = 0
    equal: int = 0
    ours: int = 0
    """Forward passes of all traces."""
    theirs: int = 0
    faults: list[str] = field(default_factory=list[str])

    @property
    def is_good(self) -> bool:
        return not self.faults

    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        return (
            self.name,
            self.family,
            str(self.cases),
            f"{self.difference:.1e}",
            f"{self.equal}/{self.traces}" if self.traces else "-",
            f"{self.ours} ({self.theirs})" if self.traces else "-",
            "ok" if self.is_good else "FAILED",
        )


def check_folder(folder: Path) -> Report:
    """Run everything that a family folder holds."""
    report = Report(name=folder.name)
    try:
        _check_forward(folder, report)
        if (folder / "trace.json").is_file():
            _check_traces(folder, report)
    except Exception as error:  # the other folders are still worth a look
        report.faults.append(f"{type(error).__name__}: {error}")
    return report


def _check_forward(folder: Path, report: Report) -> None:
    family = Engine.load(folder, device="cpu").family
    report.family = family.traits.name
    meta = folder / "meta.json"
    if meta.is_file():
        report.tolerance = json.loads(meta.read_text("utf-8"))["tolerance"]["logits"]
    for case, difference in forward_differences(folder, family):
        report.cases += 1
        report.difference = max(report.difference, difference)
        if not difference <= report.tolerance:
            report.faults.append(f"{case}: logits differ by {difference:.2g}")
    if not report.cases:
        report.faults.append("no forward case that is known")


def _check_traces(folder: Path, report: Report) -> None:
    name = str(folder.resolve())
    for run in golden_runs.runs(name):
        try:
            outcomes = golden_runs.compare(golden_runs.load(name, run), run)
        except (AssertionError, AgentDiffError) as error:
            report.traces += 1
            report.faults.append(f"{run['name']}: {error}")
            continue
        for outcome in outcomes:
            report.traces += 1
            report.equal += outcome.first_difference is None
            report.ours += outcome.forwards[0]
            report.theirs += outcome.forwards[1]
            if outcome.first_difference is not None:
                report.faults.append(f"{outcome.name}: step {outcome.first_difference} differs")
            elif outcome.forwards[0] != outcome.forwards[1]:
                ours, theirs = outcome.forwards
                report.faults.append(f"{outcome.name}: {ours} forwards, the reference {theirs}")


def main(folder: Path) -> int:
    """Check the family folders of a folder; 0 if all are within tolerance."""
    torch.set_num_threads(1)  # matrices this small only wait for each other
    warnings.simplefilter("ignore", UserWarning)
    found = sorted(path.parent for path in folder.glob("*/config.json")) or [folder]
    reports = [check_folder(each) for each in found]
    head = ("folder", "family", "cases", "max difference", "traces equal", "forwards", "")
    rows = [head, *(report.row() for report in reports)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    for report in reports:
        for fault in report.faults:
            print(f"{report.name}: {fault}")
    return int(any(not report.is_good for report in reports))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python tests/goldens/check.py DIR")
    sys.exit(main(Path(sys.argv[1])))
