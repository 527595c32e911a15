"""A condition on strings as a deterministic automaton over characters, made as it is walked.

A `Machine` has numbered states with moves, and for every state a bound on what is still missing. A
`RegexMachine` walks the partial derivatives of a term (Antimirov, "Partial derivatives of regular
expressions and finite automaton constructions", 1996): what is left to match is a list of terms, a
state is a set of such lists, and a count in a repetition is part of the list. So `[ab]*a[ab]{13}`
or `.{0,65535}` cost nothing until somebody looks. `OtherThan` is every string that is not listed.

Machines read the letters of an `Alphabet`: sets of characters that no condition tells apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from agentdiff.constraint.alphabet import Alphabet
from agentdiff.constraint.automaton import INFINITE
from agentdiff.constraint.terms import ANYTHING, EMPTY, Alt, Chars, Repeat, Seq, Term

Size = tuple[int, int]
"""(characters, bytes), compared in this order."""
NO_SIZE: Size = (INFINITE, INFINITE)
"""No string at all."""
Moves = list[int]
"""[letters of the alphabet] the next state, or -1 where there is none."""

_MAX_MEMBERS = 256
"""Lists of terms in one state; beyond these the ones that need the most are dropped."""


class Machine(Protocol):
    """A deterministic automaton over characters. State 0 is the start."""

    @property
    def is_exact(self) -> bool:
        """Whether `missing` is what the best way out really takes, not only a lower bound."""
        ...

    def moves(self, state: int) -> Moves:
        """Return what each letter does."""
        ...

    def accepts(self, state: int) -> bool:
        """Whether the string may end here."""
        ...

    def missing(self, state: int) -> Size:
        """Return a lower bound on what must still come; `NO_SIZE` where nothing helps."""
        ...

    def is_free(self, state: int) -> bool:
        """Whether whatever follows is accepted."""
        ...


_Cell = tuple[Term, int, int | None, int]
"""What is left to match: (term, fewest and most repetitions of a `Repeat`, the cell behind it)."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What may come first in a cell."""

    edges: tuple[tuple[tuple[int, ...], int], ...]
    """(letters, cell behind them)."""
    may_end: bool
    takes_everything: bool
    """Whether one of the ways on is `ANYTHING` and the end."""


class RegexMachine:
    """The strings that a term matches as a whole, or with `bars` those that it does not match.

    Safe to share between threads.
    """

    def __init__(self, term: Term, alphabet: Alphabet, *, bars: bool) -> None:
        """Begin with the start state alone.

        Args:
            term: What to match; without anchors.
            alphabet: The letters; its sets hold the classes of the term.
            bars: Whether the strings that match are the ones that are refused. Classes are taken
                widely then, as they are taken narrowly otherwise.
        """
        self._bars, self._alphabet = bars, alphabet
        self._lock = RLock()
        self._least: dict[Term, Size] = {}
        self._cells: list[_Cell] = [(EMPTY, 0, 0, 0)]  # cell 0: nothing is left
        self._cell_ids: dict[_Cell, int] = {}
        self._cell_sizes: list[Size] = [(0, 0)]
        self._aheads: dict[int, _Ahead] = {}
        self._everything = 1
        self._cell_of((ANYTHING, 0, None, 0))  # cell 1
        self._members: list[frozenset[int]] = []
        """[states] the cells that a prefix can have led to."""
        self._state_ids: dict[frozenset[int], int] = {}
        self._sizes: list[Size] = []
        self._moves: dict[int, Moves] = {}
        self._state({self._cell(term, 0)})

    @property
    def is_exact(self) -> bool:
        """Whether `missing` is what the best way out really takes."""
        return not self._bars

    def moves(self, state: int) -> Moves:
        """Return what each letter does."""
        known = self._moves.get(state)
        if known is None:
            with self._lock:
                known = self._moves[state] = self._find_moves(state)
        return known

    def accepts(self, state: int) -> bool:
        """Whether the string may end here."""
        return any(self._ahead(cell).may_end for cell in self._members[state]) != self._bars

    def missing(self, state: int) -> Size:
        """Return what must still come."""
        return self._sizes[state]

    def is_free(self, state: int) -> bool:
        """Whether whatever follows is accepted."""
        members = self._members[state]
        return not members if self._bars else self._everything in members

    # -- states: sets of cells ----------------------------------------------------------------

    def _state(self, cells: set[int]) -> int:
        cells = {c for c in cells if self._cell_sizes[c] < NO_SIZE}
        if any(self._ahead(c).takes_everything for c in cells):
            cells = {self._everything}
        elif len(cells) > _MAX_MEMBERS and not self._bars:
            cells = set(sorted(cells, key=lambda c: (self._cell_sizes[c], c))[:_MAX_MEMBERS])
        members = frozenset(cells)
        state = self._state_ids.get(members)
        if state is None:
            if self._bars:
                size = NO_SIZE if self._everything in members else (0, 0)
            else:
                size = min((self._cell_sizes[c] for c in members), default=NO_SIZE)
            state = len(self._members)
            self._members.append(members)
            self._sizes.append(size)
            self._state_ids[members] = state
        return state

    def _find_moves(self, state: int) -> Moves:
        targets: list[set[int]] = [set() for _ in self._alphabet.letters]
        for cell in self._members[state]:
            for letters, target in self._ahead(cell).edges:
                for letter in letters:
                    targets[letter].add(target)
        # With `bars`, a letter that no cell takes leads to the state without cells.
        return [self._state(cells) if cells or self._bars else -1 for cells in targets]

    # -- cells: what is left to match ---------------------------------------------------------

    def _cell(self, term: Term, behind: int) -> int:
        """The cell of a term and what is behind it."""
        if isinstance(term, Repeat):
            return self._repeat(term, term.fewest, term.most, behind)
        return self._cell_of((term, 0, 0, behind))

    def _repeat(self, term: Repeat, fewest: int, most: int | None, behind: int) -> int:
        if most == 0:
            return behind
        if self._size(term.item)[0] == 0:
            fewest = 0
        if (
            (fewest, most, behind) == (0, None, 0)
            and isinstance(term.item, Chars)
            and self._letters(term.item) == self._alphabet.everything
        ):
            return self._everything
        return self._cell_of((term, fewest, most, behind))

    def _cell_of(self, key: _Cell) -> int:
        cell = self._cell_ids.get(key)
        if cell is None:
            term, fewest, _, behind = key
            size = (
                _times(self._size(term.item), fewest)
                if isinstance(term, Repeat)
                else self._size(term)
            )
            cell = self._cell_ids[key] = len(self._cells)
            self._cells.append(key)
            self._cell_sizes.append(_plus(size, self._cell_sizes[behind]))
        return cell

    def _letters(self, term: Chars) -> tuple[int, ...]:
        return self._alphabet.of(term.these.may if self._bars else term.these.must)

    def _size(self, term: Term) -> Size:
        """The size of the shortest string that a term matches."""
        if isinstance(term, Chars):  # by far the most, and not worth remembering
            costs = [self._alphabet.costs[letter] for letter in self._letters(term)]
            return (1, min(costs)) if costs else NO_SIZE
        known = self._least.get(term)
        if known is None:
            match term:
                case Seq(items):
                    known = (0, 0)
                    for item in items:
                        known = _plus(known, self._size(item))
                case Alt(ways):
                    known = min(map(self._size, ways), default=NO_SIZE)
                case Repeat(item, fewest):
                    known = _times(self._size(item), fewest)
                case _:
                    raise AssertionError("a term of a machine has no assertions")
            self._least[term] = known
        return known

    def _ahead(self, cell: int) -> _Ahead:
        known = self._aheads.get(cell)
        if known is None:
            with self._lock:
                known = self._aheads[cell] = self._look_ahead(cell)
        return known

    def _look_ahead(self, cell: int) -> _Ahead:
        edges: list[tuple[tuple[int, ...], int]] = []
        may_end = takes_everything = False
        most_left: dict[tuple[Term, int], int] = {}
        seen = {cell}
        work = [cell]

        def visit(following: int) -> None:
            if following not in seen and self._cell_sizes[following] < NO_SIZE:
                seen.add(following)
                work.append(following)

        while work:
            here = work.pop()
            term, fewest, most, behind = self._cells[here]
            may_end |= here == 0 or here == self._everything
            takes_everything |= here == self._everything
            match term:
                case Chars():
                    edges.append((self._letters(term), behind))
                case Seq(items):
                    if here:
                        for item in reversed(items):
                            behind = self._cell(item, behind)
                        visit(behind)
                case Alt(ways):
                    for way in ways:
                        visit(self._cell(way, behind))
                case Repeat(item):
                    if most is not None and not fewest:
                        # Where the item can be empty, fewer further ones bring nothing new.
                        if most_left.get((term, behind), 0) >= most:
                            continue
                        most_left[term, behind] = most
                    if not fewest:
                        visit(behind)
                    rest = None if most is None else most - 1
                    again = self._repeat(term, max(0, fewest - 1), rest, behind)
                    visit(self._cell(item, again))
                case _:
                    raise AssertionError("a term of a machine has no assertions")
        return _Ahead(tuple(edges), may_end, takes_everything)


def _plus(a: Size, b: Size) -> Size:
    return NO_SIZE if NO_SIZE in (a, b) else (a[0] + b[0], a[1] + b[1])


def _times(size: Size, count: int) -> Size:
    if count == 0:
        return 0, 0
    return NO_SIZE if size == NO_SIZE else (size[0] * count, size[1] * count)


class OtherThan:
    """Every string but the listed ones; leaves their trie where it differs."""

    is_exact = False

    def __init__(self, excluded: Collection[str], alphabet: Alphabet) -> None:
        """Begin with the start state alone. The alphabet has each excluded character as a letter.

        Strings with characters that cannot be written are never met anyway.
        """
        self._excluded = sorted(
            word for word in set(excluded) if all(alphabet.letter(c) >= 0 for c in word)
        )
        self._alphabet = alphabet
        self._nodes: list[tuple[int, int, int]] = [(0, len(self._excluded), 0), (0, 0, 0)]
        """[states] (low, high, depth): the first `depth` characters are those of the excluded
        strings low..high-1. State 1 is outside the trie."""
        self._moves: dict[int, Moves] = {}
        self._lock = RLock()

    def moves(self, state: int) -> Moves:
        """Return what each letter does."""
        known = self._moves.get(state)
        if known is None:
            with self._lock:
                known = self._moves.setdefault(state, self._find_moves(state))
        return known

    def accepts(self, state: int) -> bool:
        """Whether the string may end here."""
        low, high, depth = self._nodes[state]
        return low == high or len(self._excluded[low]) > depth

    def missing(self, state: int) -> Size:
        """Return a lower bound on what must still come."""
        return (0, 0) if self.accepts(state) else (1, 1)

    def is_free(self, state: int) -> bool:
        """Whether whatever follows is accepted."""
        low, high, _ = self._nodes[state]
        return low == high

    def _find_moves(self, state: int) -> Moves:
        low, high, depth = self._nodes[state]
        moves = [1] * len(self._alphabet.letters)
        i = low + (low < high and len(self._excluded[low]) == depth)
        while i < high:
            c, j = self._excluded[i][depth], i + 1
            while j < high and self._excluded[j][depth] == c:
                j += 1
            moves[self._alphabet.letter(c)] = len(self._nodes)
            self._nodes.append((i, j, depth + 1))
            i = j
        return moves
