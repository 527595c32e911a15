"""Plans: tool calls as data, some of whose arguments are results of other calls.

A reference stands in an argument as text: `$s1` is the result of step `s1`, `$s1.rows[0].id` a part of it. An argument
that is nothing but a reference takes the value itself; inside a longer text the value is written out. `$$` is a dollar.

Knows no tool and runs nothing: `plan_check` holds a plan against tools, `dataflow` runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentdiff.messages import Json

OnError = Literal["replan", "skip", "fail"]
"""What becomes of a plan when a step fails.

`replan`: what does not need the step goes on, then the rest is planned anew. `skip`: the steps that need it are left
out. `fail`: everything stops.
"""

_REF = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)((?:\.\w+|\[\d+\])*))")
_PART = re.compile(r"\.(\w+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of a step, or a part of it."""

    step: str
    path: tuple[str | int, ...] = ()
    """Keys and indices from the result down."""

    def __str__(self) -> str:
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"${self.step}{''.join(parts)}"


class PlanStep(BaseModel):
    """One tool call of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    id: str = Field(pattern=r"^[A-Za-z_]\w*$")
    tool: str
    arguments: dict[str, Json] = {}
    """May hold references, as text or as `Ref`."""
    after: tuple[str, ...] = ()
    """Steps that have to end first although nothing of them is used."""
    on_error: OnError = "replan"

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, arguments: object) -> object:
        return _spelled(arguments)

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The references in its arguments, in order."""
        return tuple(ref for _, ref, _ in refs_in(self.arguments))

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the steps that have to end before it begins."""
        return tuple(dict.fromkeys([*(ref.step for ref in self.refs), *self.after]))


class Plan(BaseModel):
    """Steps in an order in which a person would read them; they run as soon as what they need is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[PlanStep, ...] = Field(min_length=1)

    def step(self, id: str) -> PlanStep:
        """The step of this id; `KeyError` where there is none."""
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(id)

    def mermaid(self) -> str:
        """The plan as a Mermaid flow chart."""
        lines = ["flowchart LR"]
        lines += [f'    {step.id}["{step.id} · {step.tool}"]' for step in self.steps]
        lines += [f"    {need} --> {step.id}" for step in self.steps for need in step.needs]
        return "\n".join(lines)

    def __str__(self) -> str:
        """A picture for the terminal: a step stands right of all that it waits for."""
        depths = self._depths()
        deepest = max(depths.values())
        width = max(len(step.id) for step in self.steps)
        return "\n".join(
            f"{'  ' * depths[step.id]}●{'  ' * (deepest - depths[step.id])}  {_line(step, width)}"
            for step in self.steps
        )

    def _depths(self) -> dict[str, int]:
        """How many of its steps come before each, in a row; 0 for those of a circle."""
        needs = {step.id: step.needs for step in self.steps}
        depths: dict[str, int] = {}
        left = set(needs)
        while ready := {id for id in left if left.isdisjoint(needs[id])}:
            for id in ready:
                depths[id] = max(
                    (depths[need] + 1 for need in needs[id] if need in depths), default=0
                )
            left -= ready
        return depths | dict.fromkeys(left, 0)


def refs_in(
    value: Json, at: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Ref, bool]]:
    """(where it stands, the reference, whether it is all that stands there), in order."""
    if isinstance(value, str):
        for match in _REF.finditer(value):
            if match[1] is None:
                yield at, _parsed(match), match[0] == value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            yield from refs_in(item, (*at, key))
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Json]", value)):
            yield from refs_in(item, (*at, place))


def filled(value: Json, results: Mapping[str, Json]) -> Json:
    """`value` with every reference replaced by what it stands for.

    Raises:
        LookupError: A result has no such part; says which.
    """
    if isinstance(value, str):
        whole = _REF.fullmatch(value)
        if whole is not None and whole[1] is None:
            return part_of(_parsed(whole), results)
        return _REF.sub(
            lambda match: "$" if match[1] else _written(part_of(_parsed(match), results)), value
        )
    if isinstance(value, dict):
        return {key: filled(item, results) for key, item in cast("dict[str, Json]", value).items()}
    if isinstance(value, list):
        return [filled(item, results) for item in cast("list[Json]", value)]
    return value


def part_of(ref: Ref, results: Mapping[str, Json]) -> Json:
    """What a reference stands for.

    Raises:
        LookupError: The result has no such part.
    """
    value = results[ref.step]
    for place, part in enumerate(ref.path):
        try:
            value = _entry(value, part)
        except LookupError:
            whole = Ref(ref.step, ref.path[:place])
            raise LookupError(f"`{whole}` has no part {part!r} (wanted by `{ref}`)") from None
    return value


def _entry(value: Json, part: str | int) -> Json:
    if isinstance(value, dict):
        return cast("dict[str | int, Json]", value)[part]
    if isinstance(value, list) and isinstance(part, int):
        return cast("list[Json]", value)[part]
    raise LookupError(part)


def _parsed(match: re.Match[str]) -> Ref:
    parts = (name or int(index) for name, index in _PART.findall(match[3]))
    return Ref(match[2], tuple(parts))


def _spelled(value: object) -> object:
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in cast("list[object]", value)]
    return value


def _written(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(step: PlanStep, width: int) -> str:
    arguments = ", ".join(f"{name}={_shown(value)}" for name, value in step.arguments.items())
    waits = f"  ← {', '.join(step.needs)}" if step.needs else ""
    return f"{step.id:<{width}}  {step.tool}({arguments}){waits}"


def _shown(value: Json) -> str:
    if isinstance(value, str) and _REF.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
