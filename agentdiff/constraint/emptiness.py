"""Proofs that no value fits a case: what is true of it, not what is written.

Objects count as open and formats as unasserted. What is not proved may be so all the same.
"""

from __future__ import annotations

from collections.abc import Callable

from agentdiff.constraint.checking import Holds, fits
from agentdiff.constraint.facts import Case, Claim, Goal, Objects


class Proofs:
    """Looks at one case; what must hold further down is asked of somebody else."""

    def __init__(self, no_value: Callable[[Goal, int], bool], holds: Holds) -> None:
        """Begin.

        Args:
            no_value: Whether it is proved that no value meets a goal, looking so many levels down.
            holds: Whether a value meets a goal.
        """
        self._no_value, self._holds = no_value, holds

    def is_empty(self, case: Case, depth: int) -> bool:
        """Whether it is proved that no value fits the case."""
        if case.values is not None:
            return all(fits(value, case, self._holds) is False for value in case.values.values())
        return all(self._lacks_type(case, name, depth) for name in case.types)

    def _lacks_type(self, case: Case, name: str, depth: int) -> bool:
        match name:
            case "number":
                low, high = case.numbers.lowest, case.numbers.highest
                if low is None or high is None:
                    return False
                is_open = low.is_open or high.is_open
                return low.value > high.value or (low.value == high.value and is_open)
            case "string":
                strings = case.strings
                return strings.highest is not None and strings.highest < strings.lowest
            case "array":
                arrays = case.arrays
                if arrays.most is not None and arrays.most < arrays.fewest:
                    return True
                needed = range(min(arrays.fewest, 20))
                return depth > 0 and any(self._no_value(arrays.item(i), depth - 1) for i in needed)
            case "object":
                objects = case.objects
                return objects.is_contradictory or (
                    depth > 0
                    and any(self.lacks_key(objects, name, depth) for name in objects.required)
                )
            case _:
                return False

    def lacks_key(self, objects: Objects, name: str, depth: int) -> bool:
        """Whether it is proved that no value of a key is allowed; patterns are not looked at."""
        claims: list[Claim] = []
        for layer in objects.layers:
            if name in layer.properties:
                claims.append(layer.properties[name])
            elif layer.rest is not None and not layer.patterns:
                claims.append(layer.rest)
        return self._no_value(tuple(dict.fromkeys(claims)), depth - 1)
