"""`agentdiff bench decode`: what speed costs, and what quality costs, on the embedded model, here and now."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live

from agentdiff.cli import decode_picture as picture
from agentdiff.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from agentdiff.backends.local import LocalBackend
    from agentdiff.embedded.bench import Case
    from agentdiff.embedded.sweep import Point, SetEngine, Setting


def decode(
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Every policy over its dial, not only the efforts.")
    ] = False,
    size: Annotated[
        int, typer.Option("--sample", metavar="N", min=1, help="Requests for each setting.")
    ] = 120,
    seed: Annotated[int, typer.Option(metavar="N", help="Chooses the requests.")] = 7,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the frontier into FILE.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Weigh speed against quality: the same requests decoded by every effort, or every policy."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported, below
        os.environ[name] = "1"
    try:
        from agentdiff.embedded.bench import machine
        from agentdiff.embedded.sweep import efforts, every_setting, load
    except ImportError as error:
        raise MissingExtra("`agentdiff bench decode`", extra="local") from error
    backend, engine = load()
    cases = chosen(size, seed)
    settings = (every_setting if sweep else efforts)(engine.family.traits)
    title = f"{backend.name} · {len(cases)} requests · one thread · {machine()}"
    points: list[Point] = []
    console = Console(highlight=False)
    if as_json:
        points += measured(backend, engine, settings, cases)
    else:
        console.print(f"[dim]{title}[/]\n")
        with Live(console=console, transient=True, auto_refresh=False) as live:
            for point in measured(backend, engine, settings, cases):
                points.append(point)
                live.update(
                    Group(picture.table(points), f"[dim]{len(points)} of {len(settings)} …[/]"),
                    refresh=True,
                )
    if svg is not None:
        _write(svg, picture.as_svg(points, title=title))
    if as_json:
        found = {"machine": machine(), "seed": seed, "requests": len(cases)}
        print(json.dumps({**found, "settings": as_objects(points)}, indent=2))
        return
    console.print(picture.table(points))
    console.print()
    for line in picture.plot(points, width=min(console.width, 100)):
        console.print(line)
    if svg is not None:
        console.print(f"\n[dim]{svg}[/]")


def chosen(size: int, seed: int) -> list[Case]:
    """The sample, drawn evenly from the evaluation sets."""
    import anyio

    from agentdiff.embedded.sweep import sample

    async def main() -> list[Case]:
        with tempfile.TemporaryDirectory() as root:
            return await sample(Path(root), size=size, seed=seed)

    return anyio.run(main)


def measured(
    backend: LocalBackend, engine: SetEngine, settings: Sequence[Setting], cases: Sequence[Case]
) -> Iterator[Point]:
    """A point for each setting, after a first pass that is not counted."""
    import gc

    import anyio

    from agentdiff.embedded.sweep import measure

    gc.freeze()  # as `agentdiff run` does: what is loaded is not looked through again and again
    anyio.run(measure, backend, engine, settings[0], cases)
    for setting in settings:
        yield anyio.run(measure, backend, engine, setting, cases)


def as_objects(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as in the table."""
    best = picture.frontier(points)
    return [
        {
            "setting": point.setting.name,
            "policy": repr(point.setting.policy),
            "revision": point.setting.revision and repr(point.setting.revision),
            "speculation": point.setting.speculation and repr(point.setting.speculation),
            "effort": point.setting.effort,
            "exact": point.exact,
            "tokens_per_forward": point.tokens_per_forward,
            "forwards": point.forwards,
            "positions": point.positions,
            "cpu_ms": point.cpu_ms,
            "on_frontier": point in best,
        }
        for point in points
    ]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror}") from error
