"""Drawing tokens, compiled; `draws.py` says what is drawn.

Legend: L positions, V vocabulary, K token sets, E edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.arithmetic import SMALLEST, FloatArray, Rows, compiled, exp
from agentdiff.constraint.draws import CUTS
from agentdiff.constraint.scratch import Table, at, groups_of, ids_of, links_of, name_of
from agentdiff.constraint.sets import SetArrays


@compiled
def draw_of_set(
    table: Table, r: int, terms: SetArrays, k: int, cool: float, whole: float, number: float
) -> tuple[int, float]:
    """Draw (a token of a set, its plain score) with probability proportional to exp(score).

    Of a group, what was drawn from it. whole: the log-sum of the set's scores.
    """
    row, groups = table.rows[r], groups_of(terms, k)
    total = 0.0
    column = -1
    for link in links_of(terms, k):
        ids, is_inverted = ids_of(terms, link), terms.inverted[link]
        j = 0
        for n in range(len(row) if is_inverted else len(ids)):
            if is_inverted and j < len(ids) and ids[j] == n:
                j += 1
                continue
            column = n if is_inverted else ids[n]
            total += exp(max(at(row, column, cool) - whole, SMALLEST))
            if total > number:
                return name_of(table, column), at(row, column, 1.0)
    for n in range(len(groups)):
        g = ~groups[n]
        total += exp(max(table.cooled[r, g] - whole, SMALLEST))
        if total > number or n + 1 == len(groups):
            return table.drawn[r, g], table.drawn_score[r, g]
    return name_of(table, column), at(row, column, 1.0)


@compiled
def draw_of_edge(ways: FloatArray, highest: float, number: float) -> int:
    """Draw an index of some ways with probability proportional to exp(way)."""
    point = np.inf
    chosen = -1
    for _ in range(2):
        total = 0.0
        for e in range(len(ways)):
            total += exp(max(ways[e] - highest, SMALLEST))
            chosen = e
            if total > point:
                return chosen
        point = number * total
    return chosen


@compiled
def draw_of_nucleus(
    row: Rows,
    cool: float,
    top_p: float,
    number: float,
    sets: SetArrays,
    set_of: NDArray[np.int32],
    ahead: FloatArray,
    whole: float,
) -> tuple[int, int, float]:
    """(edge, token, its plain score) drawn from the likeliest tokens of all edges of a state.

    set_of, ahead: [E] the set of each edge, and the sums behind it · whole: the sum over all.
    """
    tokens = np.empty(len(row) + 1, np.int32)
    edges = np.empty(len(row) + 1, np.int32)
    shares = np.empty(len(row) + 1)
    count = 0
    for cut in CUTS:
        count = 0
        total = 0.0
        for e in range(len(set_of)):
            least = whole + cut - ahead[e]
            for link in links_of(sets, set_of[e]):
                ids, is_inverted = ids_of(sets, link), sets.inverted[link]
                j = 0
                for n in range(len(row) if is_inverted else len(ids)):
                    token = n
                    if not is_inverted:
                        token = ids[n]
                    elif j < len(ids) and ids[j] == n:
                        j += 1
                        continue
                    score = at(row, token, cool)
                    if score >= least:
                        tokens[count], edges[count] = token, e
                        shares[count] = exp(max(score + ahead[e] - whole, SMALLEST))
                        total += shares[count]
                        count += 1
        if total >= top_p:
            break
    order = np.argsort(-shares[:count], kind="mergesort")
    total = 0.0
    kept = 0
    while kept < count and total < top_p:
        total += shares[order[kept]]
        kept += 1
    point = number * total
    total = 0.0
    k = 0
    for k in range(kept):
        total += shares[order[k]]
        if total > point:
            break
    k = int(order[k])
    return int(edges[k]), int(tokens[k]), at(row, int(tokens[k]), 1.0)
