"""What a run looks like, as styled text: blocks, calls, results, figures. Prints nothing itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from agentdiff.agent import CallRecord, StepRecord
    from agentdiff.generation import Backend, Enforcement
    from agentdiff.messages import Json

MASK = "░"
"""How backends write a position that is not decided yet."""
RESULT_LINES = 6
"""Lines of a result that are shown."""
VALUE_CHARS = 240
"""Characters of an argument, or of a line of a result, that are shown."""
_ENFORCED: Mapping[Enforcement, str] = {
    "in_block": "structure enforced inside the block",
    "pinned_canvas": "structure pinned in the canvas",
    "native": "structure enforced by the server, checked here",
    "validated": "structure checked here",
    "repaired": "structure repaired here",
    "none": "structure not enforced",
}


def printable(text: str) -> str:
    """`text` with line breaks but no control characters: a tool must not steer the terminal."""
    text = text.replace("\t", "    ")
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def introduction(backend: Backend) -> Text:
    """Who answers."""
    capabilities = backend.capabilities
    about = capabilities.model or _ENFORCED[capabilities.enforcement]
    return Text.assemble((printable(backend.name), "bold"), (f" · {printable(about)}", "dim"))


def block(committed: str, draft: str) -> Text:
    """A block that is being denoised: what is final, what may still change, what is masked."""
    text = Text(printable(committed))
    for char in printable(draft):
        text.append(char, style="cyan dim" if char == MASK else "dim")
    return text


def call(name: str, arguments: Mapping[str, Json]) -> Text:
    """A tool call as Python would write it."""
    text = Text.assemble((printable(name), "bold cyan"), ("(", "dim"))
    for number, (key, value) in enumerate(arguments.items()):
        text.append(f"{', ' if number else ''}{printable(key)}=", style="dim")
        written = printable(json.dumps(value, ensure_ascii=False, default=str))
        text.append(_shortened(written), style="green" if isinstance(value, str) else "magenta")
    return text.append(")", style="dim")


def result(record: CallRecord) -> list[Text]:
    """What a call returned, a line each."""
    if record.error is not None:
        return [Text(f"✗ {printable(' '.join(record.error.split()))}", style="red")]
    value = record.result
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    lines = printable(written).strip("\n").split("\n")
    shown = [Text(_shortened(line)) for line in lines[:RESULT_LINES]]
    if (more := len(lines) - RESULT_LINES) > 0:
        shown.append(Text(f"… {more} more line{'s' if more > 1 else ''}", style="dim"))
    return shown


def _shortened(line: str) -> str:
    return line if len(line) <= VALUE_CHARS else f"{line[:VALUE_CHARS]}…"


def figures(step: StepRecord) -> Text:
    """What a step cost: tokens of its budget, forwards, time, enforcement; all that is known."""
    used, forwards, total_s = step.usage.output_tokens, step.stats.forwards, step.stats.total_s
    facts: list[tuple[str, str]] = []
    if used is not None and step.budget is not None:
        is_over = used > step.budget.target
        facts.append((f"{used}/{step.budget.target} tokens", "yellow" if is_over else "dim"))
    elif used is not None:
        facts.append((f"{used} tokens", "dim"))
    if forwards is not None:
        facts.append((f"{forwards} forward{'' if forwards == 1 else 's'}", "dim"))
    if total_s is not None:
        facts.append((duration(total_s), "dim"))
    facts.append((step.enforcement, "dim"))
    return joined(facts)


def duration(seconds: float) -> str:
    """Milliseconds below a second, seconds above."""
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.001 else "<1 ms"


def joined(facts: Iterable[tuple[str, str]]) -> Text:
    """Facts with dots between them."""
    return Text(" · ", style="dim").join(Text(fact, style=style) for fact, style in facts)


def outcome(step: StepRecord) -> Text:
    """What a step without calls came to."""
    if step.reason == "refused":
        return Text("no tool fits", style="bold yellow")
    if step.kind in ("answer", "repair"):
        return Text(step.kind, style="bold cyan")
    return Text("no tool call", style="bold yellow")


def summary(steps: Sequence[StepRecord]) -> Text:
    """The whole run in one line."""
    tokens = [step.usage.output_tokens for step in steps]
    known = [
        (step.usage.output_tokens, step.stats.forwards)
        for step in steps
        if step.usage.output_tokens is not None and step.stats.forwards
    ]
    spent = [step.stats.total_s for step in steps]
    calls = [record for step in steps for record in step.calls]
    facts = [f"{len(steps)} step{'s' if len(steps) != 1 else ''}"]
    if tokens and all(count is not None for count in tokens):
        facts.append(f"{sum(count or 0 for count in tokens)} tokens")
    if forwards := sum(passes for _, passes in known):
        facts.append(f"{sum(count for count, _ in known) / forwards:.1f} tokens per forward")
    if spent and all(seconds is not None for seconds in spent):
        facts.append(f"{duration(sum(seconds or 0 for seconds in spent))} model")
    if calls:
        facts.append(f"{duration(sum(record.duration_s for record in calls))} tools")
    return joined((fact, "dim") for fact in facts)
