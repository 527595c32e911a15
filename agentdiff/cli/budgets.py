"""`agentdiff budgets …`: what has been learned about lengths, and how good it is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentdiff.cli.complaints import warn
from agentdiff.cli.run import STORE
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.cli.budgets_picture import Learned
    from agentdiff.length import LengthPredictor, Store
    from agentdiff.length.replay import Played
    from agentdiff.messages import Json

app = typer.Typer(
    name="budgets", help="Look at the lengths that runs have taught.", no_args_is_help=True
)
StoreOption = Annotated[
    Path, typer.Option("--store", metavar="FILE", help="The store of the runs.")
]
QuantumOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Budgets are multiples of N tokens.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.callback()
def budgets() -> None:
    """Look at the lengths that runs have taught."""


@app.command()
def show(store: StoreOption = STORE, as_json: JsonOption = False) -> None:
    """Every kind of step with its lengths, its budget, and how well that fits."""
    from agentdiff.cli import budgets_picture

    with _existing(store) as opened:
        known = _known(opened)
    if as_json:
        print(json.dumps([one.as_object() for one in known], indent=2))
        return
    console = _console()
    for line in budgets_picture.overview(known, store):
        console.print(line)


@app.command()
def explain(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A step, or a part of its name: answer/desk.")
    ],
    store: StoreOption = STORE,
    quantum: QuantumOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Why the next budget of a step will be what it is."""
    from agentdiff.cli import budgets_picture
    from agentdiff.length import CanvasCost, LengthPredictor

    with _existing(store) as opened:
        one = _chosen(_known(opened), key)
        predictor = LengthPredictor(opened)
        context = one.outcomes[-1].context
        why = predictor.explain(context, CanvasCost(quantum))
        _report(predictor)
    if as_json:
        found = one.as_object() | {
            "target": why.budget.target,
            "ceiling": why.budget.ceiling,
            "source": why.budget.source,
            "median": why.median,
            "p97": why.p97,
            "price": why.price,
            "miss": why.miss,
            "levels": dict(why.levels),
            "experts": dict(why.experts),
        }
        print(json.dumps(found, indent=2))
        return
    console = _console()
    for line in budgets_picture.explanation(one, why, console.width):
        console.print(line)


@app.command()
def lint(
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="A Python module or file with typed functions.")
    ],
    as_json: JsonOption = False,
) -> None:
    """The fields of tools that let a call grow without limit, and how to bound them."""
    from agentdiff.agent import load_tools
    from agentdiff.cli import budgets_picture
    from agentdiff.length import schema_bounds, unbounded_fields

    found = [
        (
            tool.name,
            schema_bounds(tool.spec.parameters),
            unbounded_fields(tool.spec.parameters),
        )
        for tool in load_tools(module)
    ]
    if as_json:
        objects = [
            {
                "tool": name,
                "min_tokens": bounds.min_tokens,
                "max_tokens": bounds.max_tokens,
                "unbounded": {field.path: field.advice for field in fields},
            }
            for name, bounds, fields in found
        ]
        print(json.dumps(objects, indent=2))
        return
    console = _console()
    for line in budgets_picture.linted(found):
        console.print(line)


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write; JSON.")],
    store: StoreOption = STORE,
) -> None:
    """Write all that is known to FILE: counts and names, no text."""
    from agentdiff.length import LengthPredictor

    with _existing(store) as opened:
        predictor = LengthPredictor(opened)
        predictor.save(file)
        count = len(predictor.keys())
    print(f"{_steps(count)} written to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote.")],
    store: StoreOption = STORE,
    replace: Annotated[
        bool, typer.Option("--replace", help="Forget what is known instead of adding to it.")
    ] = False,
    adopt: Annotated[
        str | None,
        typer.Option(
            metavar="OLD=NEW", help="Start model NEW from what is known of OLD, lightly weighed."
        ),
    ] = None,
    factor: Annotated[
        float, typer.Option(metavar="X", help="Tokens of NEW's tokenizer for each of OLD's.")
    ] = 1.0,
) -> None:
    """Add what is in FILE to what is known; counts add up."""
    from agentdiff.length import LengthPredictor, open_store

    old, found, new = (adopt or "").partition("=")
    if adopt is not None and not (old and found and new):
        raise ConfigurationError(f"`--adopt` must be OLD=NEW, got {adopt!r}")
    with closing(open_store(store)) as opened:
        predictor = LengthPredictor(opened)
        if replace:
            predictor.load(file)
        else:
            predictor.merge(file)
        if adopt is not None and not predictor.adopt(new, of=old, factor=factor):
            raise ConfigurationError(f"nothing is known of a model {old!r}, or all of {new!r}")
        count = len(predictor.keys())
    print(f"{_steps(count)} known in {store}")


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Recorded steps, a JSON object a line; .gz too.")
    ],
    quantum: QuantumOption = 32,
    target: Annotated[
        float, typer.Option(metavar="SHARE", help="The wanted share of first attempts that fit.")
    ] = 0.97,
    seed: Annotated[int, typer.Option(metavar="N", help="Orders the episodes.")] = 7,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw predicted against actual into FILE.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same as a picture of pixels.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded steps: what would have been allocated, against what was needed."""
    from agentdiff.cli import budgets_picture, budgets_plot
    from agentdiff.cli.surfaces import Png, Svg
    from agentdiff.length.replay import measure, play

    if not 0.5 <= target < 1:
        raise ConfigurationError(f"`--target` must be in [0.5, 1), got {target!r}")
    rows = list(_rows(file))
    console = _console()
    played: list[Played]
    if as_json or not console.is_terminal:
        played = play(rows, quantum=quantum, target=target, seed=seed)
    else:
        with console.status(f"[dim]{len(rows):,} steps…[/]", spinner_style="cyan"):
            played = play(rows, quantum=quantum, target=target, seed=seed)
    report = measure(played)
    pictures = [(path, kind) for path, kind in ((svg, Svg), (png, Png)) if path is not None]
    for path, kind in pictures:
        surface = kind(*budgets_plot.SIZE)
        budgets_plot.draw(surface, played, quantum=quantum, report=report)
        _write(path, surface.encoded())
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for line in budgets_picture.replayed(
        played, report, quantum=quantum, target=target, width=console.width
    ):
        console.print(line)
    for path, _ in pictures:
        console.print(f"\n{path}", style="dim", markup=False)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def _existing(path: Path) -> Generator[Store]:
    """The store at `path`, which must be there: looking must not make an empty one."""
    from agentdiff.length import open_store

    if not path.exists():
        raise ConfigurationError(
            f"there is no store at {str(path)!r}; runs make one, or name another with `--store`"
        )
    with closing(open_store(path)) as opened:
        yield opened


def _known(store: Store) -> list[Learned]:
    """What is known of each step that has been seen lately, the most frequent first."""
    from agentdiff.cli.budgets_picture import Learned
    from agentdiff.length import LengthPredictor

    predictor = LengthPredictor(store)
    seen = predictor.keys()
    by_name: dict[tuple[Any, ...], list[Any]] = {}
    for outcome in store.outcomes():
        context = outcome.context
        name = (context.kind, context.agent, context.tool, context.model)
        by_name.setdefault(name, []).append(outcome)
    _report(predictor)
    found = [
        Learned(name=name, seen=seen.get(name, len(outcomes)), outcomes=tuple(outcomes))
        for name, outcomes in by_name.items()
    ]
    return sorted(found, key=lambda one: (-one.seen, one.label))


def _chosen(known: list[Learned], key: str) -> Learned:
    exact = [one for one in known if one.label == key]
    matching = exact or [one for one in known if key in one.label]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(one.label for one in (matching or known)[:8]) or "none"
    problem = "several steps have" if matching else "no step has"
    raise ConfigurationError(f"{problem} {key!r} in the name; there are: {names}")


def _report(predictor: LengthPredictor) -> None:
    for problem in predictor.problems:
        warn(problem)


def _rows(path: Path) -> Iterator[Mapping[str, Json]]:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ConfigurationError(f"{path}, line {number}: not a JSON object")
                yield row
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}: a line is not JSON ({error})") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigurationError(f"{str(path)!r} cannot be read: {reason}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _steps(count: int) -> str:
    return f"{count} kind{'' if count == 1 else 's'} of step"
