"""The places that a prefix of bytes can have reached: (node, stack) pairs, by number.

A stack is the place to return to, or EMPTY; so equal stacks are one number. What is kept of a place
is some numbers in arrays: a counted string has thousands of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from agentdiff.constraint.automaton import END, INFINITE, Node, Point, Stretch

EMPTY = -1
"""The stack of the outermost frame."""

Item = tuple[Node, int]
"""(node, stack)."""


class Places:
    """The places of one automaton."""

    def __init__(self, price: Callable[[Node], int]) -> None:
        """Begin with none.

        Args:
            price: Tokens from a node to the end of its frame, or INFINITE.
        """
        self._price = price
        self._keepers: list[Node | Stretch] = []
        """[places] the node, or what it is a point of."""
        self._at = array("i")
        """[places] which point."""
        self._stack = array("i")
        """[places]"""
        self._cost = array("i")
        """[places] tokens to the end of the text; -1 until somebody asks."""
        self.states = array("i")
        """[places] the state that the place alone closes to; -1 while there is none."""
        self._nodes: dict[Item, int] = {}
        self._points: dict[tuple[Stretch, int], array[int]] = {}
        """(stretch, stack) → number of each of its points, -1 for none."""
        self._slots = 0
        """Numbers in those arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes held, about, with the nodes that were made for them."""
        arrays = 24 * len(self._keepers) + 4 * self._slots
        return arrays + 500 * len(self._nodes) + 250 * len(self._points)

    def number(self, node: Node, stack: int) -> int:
        """Return the number of a place, a new one for a new place."""
        if not isinstance(node, Point):
            number = self._nodes.get((node, stack))
            if number is None:
                number = self._nodes[node, stack] = self._add(node, 0, stack)
            return number
        at = node.at
        points = self._points.get((node.stretch, stack))
        if points is None:
            points = self._points[node.stretch, stack] = array("i")
        missing = at + 1 - len(points)
        if missing > 0:
            points.extend(array("i", [-1]) * missing)
            self._slots += missing
        number = points[at]
        if number < 0:
            number = points[at] = self._add(node.stretch, at, stack)
        return number

    def item(self, number: int) -> Item:
        """Return the place of a number."""
        keeper = self._keepers[number]
        if isinstance(keeper, Stretch):
            keeper = keeper.point(self._at[number])
        return keeper, self._stack[number]

    def cost(self, number: int) -> int:
        """Tokens from a place to the end of the text, or INFINITE."""
        cost = self._cost[number]
        if cost < 0:
            node, stack = self.item(number)
            behind = 0 if stack == EMPTY else self.cost(stack)
            cost = self._cost[number] = min(self._price(node) + behind, INFINITE)
        return cost

    def is_end(self, number: int) -> bool:
        """Whether a place is the end of the text, if it is closed."""
        return self._keepers[number] is END

    def _add(self, keeper: Node | Stretch, at: int, stack: int) -> int:
        self._keepers.append(keeper)
        self._at.append(at)
        self._stack.append(stack)
        self._cost.append(-1)
        self.states.append(-1)
        return len(self._keepers) - 1
