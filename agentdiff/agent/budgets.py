"""Which budget a generation gets: the predictor's, or the nearest one that somebody gave.

    run(budget=…)  before  StepSettings(budget=…)  before  Agent(budget=…)  before  @tool(budget=…)

`"auto"` at a level asks the predictor and ends the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentdiff.errors import ConfigurationError
from agentdiff.generation import Backend, Budget, Sampling, StepKind

OneBudget: TypeAlias = Literal["auto"] | int | Budget
"""`"auto"`: as predicted; a number of tokens: as many and no more; `Budget.off()`: none is sent."""
BudgetChoice: TypeAlias = OneBudget | Mapping[str, OneBudget]
"""One budget for all generations, or some by the name of a tool or the kind of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """How the steps of one kind are made; what is None is as for the other steps."""

    backend: Backend | None = None
    sampling: Sampling | None = None
    budget: OneBudget | None = None


def given(
    levels: Iterable[BudgetChoice | None],
    *,
    kind: StepKind,
    tool: str | None,
    of_tools: Iterable[Budget | None],
) -> Budget | None:
    """The budget that was given for a generation; None leaves it to the predictor.

    Args:
        levels: What was given, nearest first; None where nothing was.
        kind: Of the step.
        tool: Whose arguments are written, where that is decided.
        of_tools: The budget of each tool that may be called. If each has one, the largest holds.
    """
    for level in levels:
        choice = _named(level, kind, tool)
        if choice is not None:
            return None if choice == "auto" else _budget(choice)
    budgets = list(of_tools)
    known = [budget for budget in budgets if budget is not None]
    if not known or len(known) < len(budgets):
        return None
    return Budget(
        target=max(budget.target for budget in known),
        ceiling=max(budget.ceiling for budget in known),
    )


def check(choice: BudgetChoice | None) -> None:
    """Pass when it can be read.

    Raises:
        ConfigurationError: It is not a budget.
    """
    for each in choice.values() if isinstance(choice, Mapping) else [choice]:
        if each is not None and each != "auto":
            _budget(each)


def _named(level: BudgetChoice | None, kind: StepKind, tool: str | None) -> OneBudget | None:
    if not isinstance(level, Mapping):
        return level
    if tool is not None and tool in level:
        return level[tool]
    return level.get(kind)


def _budget(choice: object) -> Budget:
    if isinstance(choice, Budget):
        return choice
    if isinstance(choice, int) and not isinstance(choice, bool) and choice > 0:
        return Budget(target=choice, ceiling=choice)
    raise ConfigurationError(
        f"`budget` must be 'auto', a number of tokens, a `Budget` or a mapping of these, got {choice!r}"
    )
