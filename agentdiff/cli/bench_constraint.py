"""`agentdiff bench constraint`: what the constraint costs and what it saves, here and now."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.constraint import Vocabulary
    from agentdiff.constraint.bench import Figures

_BLOCK = 32
_PEERS_BUDGET = 256
"""Tokens after which a text of a peer counts as not closed."""
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_MILLISECONDS = {
    "compile": "compile_s",
    "compile + first step": "cold_s",
    "first step, grammar at hand": "warm_s",
    "steps of a first text": "fresh_step_s",
    "steps": "step_s",
}
"""Row of the table → field of `Figures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures:
    """What a peer takes on the same schemas."""

    name: str
    refused: int
    closed: int
    """Texts that were complete within the budget."""
    compile_s: tuple[float, ...]
    block_s: tuple[float, ...]
    """A block's worth of masks, from left to right."""
    mask_s: tuple[float, ...]


def constraint(
    schemas: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines with `name` and `schema`; else our own few."),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(metavar="PYTHON", help="An interpreter that has llguidance or xgrammar."),
    ] = sys.executable,
    tasks: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Requests put to the embedded model; 0 for none."),
    ] = 40,
    tokens: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Size of a made-up vocabulary; 0 for a real one."),
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Measure compiling, steps and memory, and forward passes with and without the constraint."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported, below
        os.environ[name] = "1"
    from agentdiff.constraint.bench import bench_vocabulary, measure_costs, sample_schemas
    from agentdiff.embedded.bench import machine

    chosen = read_schemas(schemas) if schemas else sample_schemas()
    vocabulary, title = bench_vocabulary(tokens or None)
    figures = measure_costs(chosen, vocabulary, block=_BLOCK)
    others = peers_figures(peers, chosen, vocabulary)
    passes = forwards(tasks) if tasks else None
    if as_json:
        found: dict[str, Any] = {
            "machine": machine(),
            "vocabulary": title,
            "block": _BLOCK,
            **as_object(figures),
            "peers": [peer_as_object(peer) for peer in others],
            "forwards": passes,
        }
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[dim]{title} · block {_BLOCK} · CPU time, one thread · {machine()}[/]\n")
    table(figures, others)
    if passes is not None:
        console.print(
            f"\nembedded model, {passes['requests']} requests, same threshold: "
            f"{passes['constrained']} forward passes with the constraint, "
            f"{passes['unconstrained']} without it"
        )
        console.print(
            f"valid replies: {passes['valid_constrained']} with it, "
            f"{passes['valid_unconstrained']} without; the constraint takes "
            f"{passes['share']:.0%} of the time of a decode"
        )


def read_schemas(path: Path) -> dict[str, Any]:
    """The schemas of a file of JSON lines.

    Raises:
        ConfigurationError: The file cannot be read, or holds something else.
    """
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        return {str(row["name"]): row["schema"] for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"`--schemas` must be JSON lines with `name` and `schema`, {path}: {error}"
        ) from None


def peers_figures(
    python: str, schemas: Mapping[str, Any], vocabulary: Vocabulary
) -> list[PeerFigures]:
    """What llguidance and xgrammar take, as far as that interpreter has them."""
    pieces = [token or b"<|%d|>" % i for i, token in enumerate(vocabulary.tokens)]
    task = {
        "tokens": [base64.b64encode(token).decode() for token in pieces],
        "eos": vocabulary.eos_ids[0],
        "schemas": [json.dumps(schema) for schema in schemas.values()],
        "block": _BLOCK,
        "budget": _PEERS_BUDGET,
    }
    script = Path(__file__).with_name("constraint_peers.py")
    try:
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(
            f"`--peers` {python!r} cannot run the comparison: {error}"
        ) from None
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        PeerFigures(
            name=row["name"],
            refused=row["refused"],
            closed=row["closed"],
            compile_s=tuple(row["compile_s"]),
            block_s=tuple(row["block_s"]),
            mask_s=tuple(row["mask_s"]),
        )
        for row in rows
    ]


def forwards(count: int) -> dict[str, Any] | None:
    """Forward passes of the embedded model with and without the grammar; None where it is absent."""
    from agentdiff.embedded.forwards import compare

    return compare(count)


def as_object(figures: Figures) -> dict[str, Any]:
    """The figures as in the table, in milliseconds and megabytes."""
    from agentdiff.constraint.bench import quantile

    def spread(values: Sequence[float], scale: float) -> dict[str, float]:
        return {f"p{100 * q:.0f}": scale * quantile(values, q) for q in _QUANTILES}

    return {
        "schemas": len(figures.compile_s),
        "refused": figures.refused,
        "texts": figures.texts,
        "valid": figures.valid,
        "over_budget": figures.over_budget,
        "ms": {row: spread(getattr(figures, name), 1e3) for row, name in _MILLISECONDS.items()},
        "mb": spread(figures.grammar_bytes, 1e-6),
    }


def peer_as_object(peer: PeerFigures) -> dict[str, Any]:
    """A peer's figures as in the table."""
    from agentdiff.constraint.bench import quantile

    return {
        "name": peer.name,
        "refused": peer.refused,
        "closed": peer.closed,
        "ms": {
            row: {f"p{100 * q:.0f}": 1e3 * quantile(values, q) for q in _QUANTILES}
            for row, values in (
                ("compile + first mask", peer.compile_s),
                (f"{_BLOCK} masks from left to right", peer.block_s),
            )
        },
    }


def table(figures: Figures, peers: Sequence[PeerFigures]) -> None:
    """Print the figures, and below them those of the peers."""
    found = as_object(figures)
    drawn = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    drawn.add_column("")
    for q in _QUANTILES:
        drawn.add_column("max" if q == 1 else f"p{100 * q:.0f}", justify="right")
    for row, spread in found["ms"].items():
        drawn.add_row(f"{row}, ms", *(f"{value:.2f}" for value in spread.values()))
    drawn.add_row("memory of a grammar, MB", *(f"{v:.2f}" for v in found["mb"].values()))
    for peer in peers:
        for row, spread in peer_as_object(peer)["ms"].items():
            drawn.add_row(f"[dim]{peer.name}:[/] {row}, ms", *(f"{v:.2f}" for v in spread.values()))
    console = Console(highlight=False)
    console.print(drawn)
    console.print(
        f"\n{found['schemas']} schemas ({len(found['refused'])} refused), texts of random logits: "
        f"{found['valid']} of {found['texts']} valid, {found['over_budget']} over budget"
    )
    for peer in peers:
        console.print(
            f"{peer.name}: {peer.closed} of {len(peer.compile_s)} closed within {_PEERS_BUDGET} "
            f"tokens ({peer.refused} refused)"
        )
    if not peers:
        console.print("[dim]llguidance and xgrammar are not installed there; see `--peers`[/]")
