"""Sums and maxima over token sets, compiled.

Legend: L positions, V vocabulary, K token sets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.arithmetic import (
    PIECE,
    SMALLEST,
    Bits,
    FloatArray,
    Rows,
    compiled,
    gather,
    highest_of,
    sortable,
    sum_of,
    sum_of_all,
    sum_of_few,
)
from agentdiff.constraint.scores import LINE, MOST
from agentdiff.constraint.scratch import (
    Scratch,
    Table,
    at,
    best_of,
    groups_of,
    ids_of,
    links_of,
    name_of,
)
from agentdiff.constraint.sets import SetArrays
from agentdiff.constraint.step_scores import FLOOR
from agentdiff.constraint.vocabulary import IntArray

_MOST_QUICKLY = 0.9
"""Above this probability of all other tokens, what is left of 1 takes a sum in double precision."""


@compiled
def find_lines(bits: Bits, mask: int, lines: IntArray) -> None:
    """Write the maximum of every line of a row, as sortable integers: they are quick to compare."""
    for n in range(len(lines)):
        part = bits[n * LINE : min(n * LINE + LINE, len(bits))]
        highest = sortable(part[0], mask)
        for j in range(len(part)):
            highest = max(highest, sortable(part[j], mask))
        lines[n] = highest


@compiled
def _best_of_inverted(bits: Bits, mask: int, lines: IntArray, others: NDArray[np.int32]) -> int:
    """The likeliest id that is not among `others`, the first of several.

    Looks only into lines whose maximum may be it, at the best of them first.
    """
    top = np.argmax(lines)
    best = -1
    highest = np.int64(0)
    for n in range(-1, len(lines)):
        line = top if n < 0 else n
        if best >= 0 and (n == top or lines[line] < highest):
            continue
        low = line * LINE
        j = np.searchsorted(others, low)
        for token in range(low, min(low + LINE, len(bits))):
            if j < len(others) and others[j] == token:
                j += 1
                continue
            x = np.int64(sortable(bits[token], mask))
            if best < 0 or x > highest or (x == highest and token < best):
                highest = x
                best = token
    return best


@compiled
def add_needed(terms: SetArrays, k: int, stamp: NDArray[np.int32], needed: IntArray, n: int) -> int:
    """List a set behind n others that have to be weighed, after those that it is written by."""
    if terms.base[k] < 0:
        stamp[k] = 1
        needed[n] = k
        return n + 1
    for link in links_of(terms, k):
        if stamp[link] == 0:
            stamp[link] = 1
            needed[n] = link
            n += 1
    return n


@compiled
def weigh(
    table: Table,
    mask: int,
    terms: SetArrays,
    cool: float,
    scratch: Scratch,
    i: int,
    needed: IntArray,
) -> bool:
    """Write log-sums, best scores and where the best tokens are, of sets at a position.

    Many at once: a call takes longer than most sets. False for no number.
    """
    r = table.row_of[i]
    row, bits = table.rows[r], table.bits[r]
    is_known = True
    for k in needed:
        ids = ids_of(terms, k)
        token: Any = np.int64(-1)
        if terms.inverted[k]:
            token = np.int64(_best_of_inverted(bits, mask, scratch.lines, ids))
            best = at(row, token, 1.0)
            plain = _log_sum_of_inverted(row, mask, ids, 1.0, best, scratch)
            total = (
                plain if cool == 1.0 else _log_sum_of_inverted(row, mask, ids, cool, best, scratch)
            )
        elif len(ids) == 1:
            token = np.int64(name_of(table, ids[0]))
            best = at(row, ids[0], 1.0)
            plain = best
            total = best * cool
        elif len(ids) == 0:
            best = -np.inf
            plain = best
            total = best
        else:
            top = np.int64(0)
            best = 0.0
            plain = 0.0
            total = 0.0
            for low in range(0, len(ids), PIECE):
                part = ids[low : low + PIECE]
                found = scratch.gathered[: len(part)]
                gather(row, part, found)
                top_bits = highest_of(scratch.gathered_bits[: len(part)], mask)
                if low == 0 or sortable(top_bits, mask) > top:
                    top = np.int64(sortable(top_bits, mask))
                    scratch.gathered_bits[-1] = top_bits
                    higher = max(np.float64(scratch.gathered[-1]), FLOOR)
                    if low > 0:
                        plain *= math.exp(max(best - higher, SMALLEST))
                        total *= math.exp(max((best - higher) * cool, SMALLEST))
                    best = higher
                    token = np.int64(~(low // PIECE))
                plain += sum_of_few(found, 1.0, best)
                if cool != 1.0:
                    total += sum_of_few(found, cool, best)
            plain = best + math.log(plain)
            total = plain if cool == 1.0 else best * cool + math.log(total)
        scratch.plain[i, k] = plain
        scratch.total[i, k] = total
        scratch.best[i, k] = best * cool
        scratch.token[i, k] = token
        scratch.link[i, k] = k
        # A sum over what is no number is none either.
        is_known &= plain == plain and best == best
        if terms.base[k] >= 0:
            _add_base(table, mask, terms, scratch, i, k)
        if terms.grouped[k]:
            is_known &= add_groups(table, mask, terms, cool, scratch, i, k)
    return is_known


@compiled
def _add_base(table: Table, mask: int, terms: SetArrays, scratch: Scratch, i: int, k: int) -> None:
    """Join the set that a set is written by to what has been written of the rest."""
    base = terms.base[k]
    scratch.plain[i, k] = _both(scratch.plain[i, k], scratch.plain[i, base])
    scratch.total[i, k] = _both(scratch.total[i, k], scratch.total[i, base])
    ours, theirs = scratch.best[i, k], scratch.best[i, base]
    if ours == theirs:
        ours_token = likeliest(table, mask, terms, scratch, i, k)
        theirs_token = likeliest(table, mask, terms, scratch, i, base)
        scratch.token[i, k] = min(ours_token, theirs_token)
    elif theirs > ours:
        scratch.best[i, k] = theirs
        scratch.token[i, k] = scratch.token[i, base]
        scratch.link[i, k] = scratch.link[i, base]


@compiled
def _both(a: float, b: float) -> float:
    """Two log-sums together."""
    highest = max(a, b)
    return highest + math.log(math.exp(a - highest) + math.exp(b - highest))


@compiled
def likeliest(table: Table, mask: int, terms: SetArrays, scratch: Scratch, i: int, k: int) -> int:
    """The best token of a set that has been weighed at a position."""
    token: Any = np.int64(scratch.token[i, k])
    if token < 0:
        low = PIECE * ~token
        ids = ids_of(terms, scratch.link[i, k])[low : low + PIECE]
        row = table.rows[table.row_of[i]]
        token = np.int64(name_of(table, best_of(row, mask, ids, scratch)))
    return token


@compiled
def add_groups(
    table: Table, mask: int, terms: SetArrays, cool: float, scratch: Scratch, i: int, k: int
) -> bool:
    """Join the groups of a set to what `weigh` wrote of its ids; False for no number."""
    r = table.row_of[i]
    groups = groups_of(terms, k)
    plain = _joined(scratch.plain[i, k], table.total[r], groups)
    total = plain if cool == 1.0 else _joined(scratch.total[i, k], table.cooled[r], groups)
    scratch.plain[i, k] = plain
    scratch.total[i, k] = total
    token = np.int64(scratch.token[i, k])
    best = scratch.best[i, k] / cool
    for n in range(len(groups)):
        g = ~groups[n]
        other = table.best[r, g]
        if other > best:
            best, token = other, np.int64(table.token[r, g])
        elif other == best:
            if token < 0:
                token = np.int64(likeliest(table, mask, terms, scratch, i, k))
            token = min(token, np.int64(table.token[r, g]))
    scratch.token[i, k] = token
    scratch.best[i, k] = best * cool
    return plain == plain and best == best


@compiled
def _joined(whole: float, sums: FloatArray, groups: NDArray[np.int32]) -> float:
    """A log-sum and those of some groups together."""
    highest = whole
    for n in range(len(groups)):
        highest = max(highest, float(sums[~groups[n]]))
    total = math.exp(max(whole - highest, SMALLEST))
    for n in range(len(groups)):
        other = float(sums[~groups[n]])
        if other != other:
            return other
        total += math.exp(max(other - highest, SMALLEST))
    return highest + math.log(total)


@compiled
def _log_sum_of_inverted(
    row: Rows, mask: int, others: NDArray[np.int32], cool: float, best: float, scratch: Scratch
) -> float:
    """The log-sum of what is not among `others`, whose best score is known."""
    if cool == 1.0:
        rest = 0.0
        for low in range(0, len(others), PIECE):
            part = others[low : low + PIECE]
            found = scratch.gathered[: len(part)]
            gather(row, part, found)
            scratch.gathered_bits[-1] = highest_of(scratch.gathered_bits[: len(part)], mask)
            highest = max(np.float64(scratch.gathered[-1]), FLOOR)
            rest += math.exp(max(highest, SMALLEST)) * sum_of_few(found, 1.0, highest)
        if rest < _MOST_QUICKLY:
            return max(best, math.log1p(-rest))
        rest = sum_of(row, others, 1.0, 0.0)
        if rest < MOST:
            return max(best, math.log1p(-rest))
    # The members are the stretches between the others.
    total = 0.0
    low = 0
    for j in range(len(others) + 1):
        high = others[j] if j < len(others) else len(row)
        if high > low:
            total += sum_of_all(row[low:high], cool, best)
        low = high + 1
    return best * cool + math.log(max(1.0, total))
