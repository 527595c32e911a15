"""Sets of token ids, by number.

A set is written as its members; as another set and its further members, where it is large and holds
that one; or, where it is a large part of the vocabulary, as the ids that are not in it. The same set
has the same number everywhere in a grammar. Sets that depend on the vocabulary alone are held once
for all grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.vocabulary import IntArray, Vocabulary

_LARGE = 8192
"""A set with more tokens than this may be written as what is not in it."""


_SHARES = 1024
"""A set of at least so many tokens may be written as another one and some more."""
_LOOKS = 12
"""How many sets are tried for that."""


class Column:
    """An array that grows at its end; what was taken from it earlier stays valid."""

    def __init__(self, dtype: Any) -> None:
        self._array = np.zeros(64, dtype)
        self.size = 0

    def extend(self, values: NDArray[Any] | list[int]) -> int:
        """Append values; return where they begin."""
        start = self.size
        self.size += len(values)
        if self.size > len(self._array):
            larger = np.zeros(max(self.size, len(self._array) * 5 // 4), self._array.dtype)
            larger[:start] = self._array[:start]
            self._array = larger
        self._array[start : self.size] = values
        return start

    @property
    def values(self) -> NDArray[Any]:
        """All values so far."""
        return self._array[: self.size]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._array.nbytes


@dataclass(slots=True)
class SharedSets:
    """The sets of a vocabulary that many grammars use."""

    ids: Column = field(default_factory=lambda: Column(np.int32))
    known: dict[Hashable, tuple[int, int, bool]] = field(
        default_factory=dict[Hashable, tuple[int, int, bool]]
    )
    """Name → (where its ids begin, how many are written, whether they are those not in it)."""
    lock: RLock = field(default_factory=RLock)


class SetArrays(NamedTuple):
    """All sets of a grammar as arrays; K sets."""

    start: IntArray
    """[K] where the written ids of a set begin: in `own` from 0 on, in `shared` from ~start on."""
    written: IntArray
    """[K] how many ids are written."""
    inverted: NDArray[np.bool_]
    """[K] whether the written ids are those that are not in the set."""
    base: NDArray[np.int32]
    """[K] the set whose members it has besides those that are written; -1 for none."""
    own: NDArray[np.int32]
    shared: NDArray[np.int32]
    grouped: IntArray
    """[K] groups behind the written ids (`parts.PartSets`); 0 where ids are token ids."""


class TokenSets:
    """The token sets of one grammar. Grows under its grammar's lock."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._shared = vocabulary.derive("token sets", SharedSets)
        self._own = Column(np.int32)
        self._start, self._written = Column(np.int64), Column(np.int64)
        self._inverted, self._base = Column(np.bool_), Column(np.int32)
        self._large: list[int] = []
        """Sets that others may be written by, the largest first."""
        self._numbers: dict[Hashable, int] = {}
        self._masks: dict[int, NDArray[np.bool_]] = {}
        self.sizes: list[int] = []
        """[sets] how many tokens each holds."""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of what is not shared, about."""
        return (
            self._own.nbytes + 150 * len(self.sizes) + sum(m.nbytes for m in self._masks.values())
        )

    def number(self, tokens: IntArray) -> int:
        """Return the number of a set of ids, sorted."""
        key = blake2b(tokens.tobytes(), digest_size=16).digest()
        known = self._numbers.get(key)
        if known is None:
            written, inverted = self._write(tokens)
            base = -1
            if len(tokens) >= _SHARES and not inverted:
                base, written = self._by_another(tokens, written)
            start = self._own.extend(written)
            known = self._numbers[key] = self._append(start, len(written), inverted, base)
            self.sizes[known] = len(tokens)
            if len(tokens) >= _SHARES and not inverted:
                self._large = sorted([*self._large, known], key=lambda k: -self.sizes[k])
        return known

    def shared_number(self, name: Hashable, build: Callable[[], IntArray]) -> int:
        """Return the number of a set that the vocabulary alone decides; built once, sorted."""
        known = self._numbers.get(name)
        if known is None:
            shared = self._shared
            with shared.lock:
                entry = shared.known.get(name)
                if entry is None:
                    written, inverted = self._write(build())
                    start = ~shared.ids.extend(written)
                    entry = shared.known[name] = start, len(written), inverted
            known = self._numbers[name] = self._append(*entry)
        return known

    def is_inverted(self, number: int) -> bool:
        """Whether a set is written as what is not in it."""
        return bool(self._inverted.values[number])

    def written(self, number: int) -> NDArray[np.int32]:
        """The members of a set, or those not in it when it is inverted; sorted."""
        return (
            np.sort(self.in_order(number)) if self._base.values[number] >= 0 else self._ids(number)
        )

    def in_order(self, number: int) -> NDArray[np.int32]:
        """The same in the order in which they are held: a set that it is written by, then the rest."""
        found = [self._ids(number)]
        while (number := int(self._base.values[number])) >= 0:
            found.append(self._ids(number))
        return found[0] if len(found) == 1 else np.concatenate(found[::-1])

    def members(self, number: int) -> IntArray:
        """The ids of a set, sorted."""
        if self.is_inverted(number):
            return np.flatnonzero(self.mask(number))
        return self.written(number).astype(np.int64)

    def mask(self, number: int) -> NDArray[np.bool_]:
        """Whether each id is in a set: [V]. Kept: for large sets."""
        known = self._masks.get(number)
        if known is None:
            inverted = self.is_inverted(number)
            known = np.full(len(self._vocabulary), inverted, np.bool_)
            known[self.written(number)] = not inverted
            self._masks[number] = known
        return known

    def arrays(self) -> SetArrays:
        """Everything as arrays."""
        return SetArrays(
            self._start.values,
            self._written.values,
            self._inverted.values,
            self._base.values,
            self._own.values,
            self._shared.ids.values,
            np.zeros(self._start.size, np.int64),
        )

    def _write(self, tokens: IntArray) -> tuple[NDArray[np.int32], bool]:
        """(ids to write, whether they are those not in the set)."""
        width = len(self._vocabulary)
        if len(tokens) <= max(_LARGE, width // 2):
            return tokens.astype(np.int32), False
        others = np.ones(width, np.bool_)
        others[tokens] = False
        return np.flatnonzero(others).astype(np.int32), True

    def _by_another(
        self, tokens: IntArray, written: NDArray[np.int32]
    ) -> tuple[int, NDArray[np.int32]]:
        """(the largest set that is in this one, or -1; the ids to write then)."""
        smaller = [k for k in self._large if self.sizes[k] < len(tokens)][:_LOOKS]
        is_in = np.zeros(len(self._vocabulary), np.bool_)
        is_in[tokens] = True
        for base in smaller:
            ids = self.in_order(base)
            if 2 * len(ids) < len(tokens):
                break
            if is_in[ids].all():
                is_in[ids] = False
                return base, np.flatnonzero(is_in).astype(np.int32)
        return -1, written

    def _ids(self, number: int) -> NDArray[np.int32]:
        """What is written of a set itself."""
        start = int(self._start.values[number])
        ids = self._own.values if start >= 0 else self._shared.ids.values
        start = start if start >= 0 else ~start
        return ids[start : start + int(self._written.values[number])]

    def _append(self, start: int, written: int, inverted: bool, base: int = -1) -> int:
        self._start.extend([start])
        self._written.extend([written])
        self._inverted.extend([inverted])
        self._base.extend([base])
        self.sizes.append(len(self._vocabulary) - written if inverted else written)
        return len(self.sizes) - 1
