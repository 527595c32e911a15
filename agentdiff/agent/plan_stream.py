"""A plan that is still being written: its steps, each as soon as it is whole and holds.

Knows text, tools and steps; starts nothing. A step whose references lead to steps that are not written yet is held
back until they are. After the first step that cannot run nothing more is taken: what follows may build on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from agentdiff.agent.plan import Plan, PlanStep
from agentdiff.agent.plan_check import step_faults
from agentdiff.agent.tools import AnyTool

_OPENING = re.compile(r'\s*\{\s*"steps"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()


class PlanStream:
    """Reads the text of a plan in pieces."""

    def __init__(self, tools: Mapping[str, AnyTool], *, known: Mapping[str, str]) -> None:
        """Nothing is read.

        Args:
            tools: By name.
            known: Id -> tool of steps that have run before and may be referred to.
        """
        self._tools = tools
        self._known = known
        self._taken: dict[str, PlanStep] = {}
        self.restart()

    @property
    def taken(self) -> tuple[PlanStep, ...]:
        """The steps given so far, in the order in which they were."""
        return tuple(self._taken.values())

    def restart(self) -> None:
        """The text begins anew. Steps that were given stay given, and are not given again."""
        self._text = ""
        self._at = 0
        self._held: list[PlanStep] = []
        self._is_broken = False

    def read(self, text: str) -> Iterator[PlanStep]:
        """Read on; the steps that may begin now."""
        self._text += text
        if self._is_broken or "}" not in text:
            return
        for step in self._whole():
            self._held.append(step)
            while (ready := self._ready()) is not None:
                if not self._holds(ready):
                    self._is_broken = True
                    return
                if ready.id not in self._taken:
                    self._taken[ready.id] = ready
                    yield ready

    def strays(self, plan: Plan) -> Iterator[str]:
        """One line for each step that was given and is not in the whole plan as it was."""
        written = {step.id: step for step in plan.steps}
        for step in self._taken.values():
            if written.get(step.id) != step:
                yield f"step `{step.id}`: it has begun as a call of `{step.tool}` and stays as it is"

    def _whole(self) -> Iterator[PlanStep]:
        """The steps whose text is whole, each once."""
        if self._at == 0:
            opening = _OPENING.match(self._text)
            if opening is None:
                return
            self._at = opening.end()
        while not self._is_broken:
            between = _BETWEEN.match(self._text, self._at)
            begin = between.end() if between else self._at
            if not self._text.startswith("{", begin):
                return
            try:
                written, self._at = _DECODER.raw_decode(self._text, begin)
                step = PlanStep.model_validate(written)
            except json.JSONDecodeError:  # its end is not written yet
                return
            except ValidationError:
                self._is_broken = True
                return
            yield step

    def _ready(self) -> PlanStep | None:
        """The first of the held steps that refers only to steps which are there; it is held no more."""
        for place, step in enumerate(self._held):
            if all(need in self._taken or need in self._known for need in step.needs):
                return self._held.pop(place)
        return None

    def _holds(self, step: PlanStep) -> bool:
        if step.id in self._known:
            return False
        if step.id in self._taken:
            return self._taken[step.id] == step
        named = dict(self._known) | {taken.id: taken.tool for taken in self._taken.values()}
        return not any(step_faults(step, self._tools, named))
