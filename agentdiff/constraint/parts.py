"""A row of scores cut down to what a grammar asks of it.

Most token sets of a grammar are a few tokens, or large and made of the same pieces: what stands
inside strings. So each set is put together from single tokens, the *columns*, and from *groups* of
tokens, of which only the sum and the best one matter. That is some thousand numbers for a position
instead of the whole vocabulary: what has to leave a GPU in a step.

The groups of plain strings belong to the vocabulary and are the same for all its grammars; others
(patterns) belong to one grammar. Both columns and groups are only ever added to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.sets import Column, SetArrays, TokenSets
from agentdiff.constraint.strings import AT_CHARACTER, string_tokens
from agentdiff.constraint.vocabulary import IntArray, Vocabulary

Symbols = NDArray[np.int32]
"""How a set is put together: its columns, by token, then ~g for each of its groups."""

_T = TypeVar("_T")

_FEW = 512
"""A set of no more tokens is written by its columns."""
_LEAST = 32
"""Smaller groups are not worth it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Derives:
    """Keeps what others make of it (index tensors, say) for as long as it lives."""

    _derived: dict[Hashable, Any] = field(
        default_factory=dict[Hashable, Any], init=False, repr=False
    )

    def derive(self, key: Hashable, build: Callable[[], _T]) -> _T:
        """Return what was built under this key, once."""
        if key not in self._derived:
            self._derived[key] = build()
        return self._derived[key]


@dataclass(frozen=True, slots=True, eq=False)
class Groups(_Derives):
    """Sorted token ids of some groups, which may overlap."""

    ids: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts(_Derives):
    """What a grammar asks of a row of scores at one moment; later growth leaves it alone."""

    shared: Groups
    """Groups of the vocabulary: one object for all its grammars."""
    own: Groups
    """Further groups; numbered behind the shared ones."""
    columns: IntArray
    """[C] token of each column."""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and groups there are."""
        return len(self.columns), len(self.shared) + len(self.own)


class PartSets:
    """The token sets of one grammar by their parts. Grows under its grammar's lock."""

    def __init__(self, vocabulary: Vocabulary, sets: TokenSets, lock: RLock) -> None:
        self._vocabulary, self._sets, self._lock = vocabulary, sets, lock
        self._own: list[IntArray] = []
        self._column_of: dict[int, int] = {}
        self._columns = Column(np.int64)
        self._symbols = Column(np.int32)
        self._start, self._written, self._grouped = (Column(np.int64) for _ in range(3))
        self._parts: Parts | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        columns = (self._columns, self._symbols, self._start, self._written, self._grouped)
        own = sum(ids.nbytes for ids in self._own)
        return own + sum(column.nbytes for column in columns) + 100 * len(self._column_of)

    def parts(self) -> Parts:
        """Return what the sets that are known by now are put together from."""
        with self._lock:
            shared = self._plain.groups
            for number in range(self._start.size, len(self._sets)):
                self._add(number)
            known, size = self._parts, (self._columns.size, len(shared) + len(self._own))
            if known is None or known.size != size:
                own = known.own if known else Groups(())
                if len(own) != len(self._own):
                    own = Groups(tuple(self._own))
                columns = self._columns.values
                known = self._parts = Parts(shared=shared, own=own, columns=columns)
            return known

    def symbols(self, number: int) -> Symbols:
        """Return how a set is put together."""
        start = int(self._start.values[number])
        count = int(self._written.values[number]) + int(self._grouped.values[number])
        return self._symbols.values[start : start + count]

    def arrays(self) -> SetArrays:
        """Everything as arrays, the columns in place of ids."""
        return SetArrays(
            self._start.values,
            self._written.values,
            np.zeros(self._start.size, np.bool_),
            np.full(self._start.size, -1, np.int32),
            self._symbols.values,
            np.zeros(0, np.int32),
            self._grouped.values,
        )

    @property
    def _plain(self) -> _Plain:
        vocabulary = self._vocabulary
        return vocabulary.derive("plain groups", lambda: _plain_groups(vocabulary))

    def _add(self, number: int) -> None:
        ids = self._sets.members(number)
        groups: list[int] = []
        if len(ids) > _FEW:
            ids, groups = self._take_groups(ids)
        columns = [self._column(token) for token in ids.tolist()]
        self._start.extend([self._symbols.extend([*columns, *(~g for g in groups)])])
        self._written.extend([len(columns)])
        self._grouped.extend([len(groups)])

    def _take_groups(self, ids: IntArray) -> tuple[IntArray, list[int]]:
        """(tokens that are left, groups that hold all others)."""
        plain = self._plain
        counts = np.bincount(plain.group_of[ids], minlength=len(plain.sizes) + 1)[:-1]
        is_whole = np.append(counts == plain.sizes, False)
        groups: list[int] = np.flatnonzero(is_whole).tolist()
        ids = ids[~is_whole[plain.group_of[ids]]]
        behind = len(plain.sizes)
        if len(ids) > _FEW and self._own:
            is_left = np.zeros(len(plain.group_of), np.bool_)
            is_left[ids] = True
            for g in sorted(range(len(self._own)), key=lambda g: -len(self._own[g])):
                if is_left[self._own[g]].all():
                    is_left[self._own[g]] = False
                    groups.append(behind + g)
            ids = np.flatnonzero(is_left)
        if len(ids) > _FEW:
            groups.append(behind + len(self._own))
            self._own.append(ids)
            ids = ids[:0]
        return ids, groups

    def _column(self, token: int) -> int:
        column = self._column_of.get(token)
        if column is None:
            column = self._column_of[token] = self._columns.extend([token])
        return column


class _Plain(NamedTuple):
    """The groups of plain strings."""

    groups: Groups
    sizes: IntArray
    group_of: IntArray
    """[V] the group of each token; one behind the last for those in none."""


def _plain_groups(vocabulary: Vocabulary) -> _Plain:
    """The groups of tokens that stay inside a plain string.

    Tokens of a group complete equally many characters and end in the same state, so no count of
    characters tells them apart.
    """
    ids = tuple(
        vocabulary.with_twins(tokens.astype(np.int64))
        for _, _, tokens in string_tokens(vocabulary, AT_CHARACTER).inside
        if len(tokens) >= _LEAST
    )
    group_of = np.full(len(vocabulary), len(ids), np.int64)
    for g, tokens in enumerate(ids):
        group_of[tokens] = g
    return _Plain(Groups(ids), np.array([len(tokens) for tokens in ids], np.int64), group_of)
