"""What the doctor found, as tables. Prints nothing but a spinner while it looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from agentdiff.cli.picture import printable

if TYPE_CHECKING:
    from agentdiff.backends.probes import Finding, Verdict
    from agentdiff.cli.doctor import Check, State

_MARKS: Mapping[Verdict | State, tuple[str, str]] = {
    "holds": ("●", "green"),
    "more": ("●", "cyan"),
    "open": ("○", "dim"),
    "differs": ("✗", "bold red"),
    "good": ("●", "green"),
    "off": ("○", "dim"),
    "bad": ("✗", "bold red"),
}


def waiting(console: Console, *, quiet: bool) -> AbstractContextManager[Any]:
    """A spinner, where somebody looks."""
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        return nullcontext()
    return console.status("[dim]looking…[/]", spinner_style="cyan")


def examined(name: str, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """What a backend does, beside what is said of it."""
    yield Text(printable(name), style="bold")
    yield Text()
    table = Table.grid(padding=(0, 2))
    table.add_row("", "", Text("is said to", style="dim"), Text("what it does", style="dim"))
    for each in findings:
        mark, style = _MARKS[each.verdict]
        table.add_row(
            Text(mark, style=style),
            each.question,
            Text(printable(each.said), style="dim"),
            Text(printable(each.found), style=_found_style(each.verdict)),
        )
    yield table
    yield Text()
    yield _verdict(findings)


def looked_at(checks: Sequence[Check]) -> Iterator[RenderableType]:
    """What is on this machine."""
    table = Table.grid(padding=(0, 2))
    for check in checks:
        mark, style = _MARKS[check.state]
        found = Text(printable(check.found), style=_found_style(check.state))
        if check.advice:
            found.append(f"  {check.advice}", style="cyan")
        table.add_row(Text(mark, style=style), check.what, found)
    yield table
    bad = sum(check.state == "bad" for check in checks)
    yield Text()
    if bad:
        yield Text(f"{bad} of {len(checks)} need attention", style="bold red")
    else:
        yield Text("all is well", style="bold green")


def _verdict(findings: Sequence[Finding]) -> Text:
    differ = [each.question for each in findings if each.verdict == "differs"]
    more = [each.question for each in findings if each.verdict == "more"]
    if differ:
        return Text(f"differs from its profile in: {', '.join(differ)}", style="bold red")
    text = Text("does what its profile says", style="bold green")
    if more:
        text.append(f", and more: {', '.join(more)}", style="cyan")
    return text


def _found_style(state: Verdict | State) -> str:
    if state in ("differs", "bad"):
        return "red"
    return "dim" if state in ("off", "open") else ""
