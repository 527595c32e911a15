"""The passes of one step over the explored lattice, compiled: sums back to front, the witness, its confidence.

`explore.py` has the pass before them, which says what is explored. All sums are in log space.

Legend: L positions, V vocabulary, K token sets, N nodes. A node is a state at a position; nodes of a
position lie side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.arithmetic import SMALLEST, FloatArray, compiled, exp, sum_of
from agentdiff.constraint.automaton import DONE
from agentdiff.constraint.drawing import draw_of_edge, draw_of_nucleus, draw_of_set
from agentdiff.constraint.explore import Nodes
from agentdiff.constraint.lattice import IMPOSSIBLE, NEVER
from agentdiff.constraint.scratch import (
    Scratch,
    Table,
    at,
    best_of,
    holds,
    ids_of,
    is_written,
    name_of,
)
from agentdiff.constraint.sets import SetArrays
from agentdiff.constraint.sums import likeliest
from agentdiff.constraint.tokens import EOS_SET, Graph
from agentdiff.constraint.vocabulary import IntArray


@compiled
def look_back(
    weights: FloatArray, length: int, scratch: Scratch, nodes: Nodes, has_best: bool
) -> float:
    """Write the sums and the best over all ways from each node to the end; return the first sum.

    weights: [L, K] log-sums of the sets · length: positions that were explored.
    """
    first = scratch.first
    for n in range(first[length], first[length + 1]):
        nodes.total[n] = 0.0
        nodes.best[n] = 0.0
    for i in range(length - 1, -1, -1):
        for n in range(first[i], first[i + 1]):
            begin, stop = nodes.first_link[n], nodes.first_link[n + 1]
            highest = 2 * NEVER
            best = 2 * NEVER
            for m in range(begin, stop):
                v, k = nodes.link_target[m], nodes.link_set[m]
                highest = max(highest, nodes.total[v] + weights[i, k])
                if has_best:
                    best = max(best, nodes.best[v] + scratch.best[i, k])
            total = 0.0
            for m in range(begin, stop):
                v, k = nodes.link_target[m], nodes.link_set[m]
                d = nodes.total[v] + weights[i, k] - highest
                if d == 0.0:
                    total += 1.0
                elif d > -50.0:
                    total += exp(d)
            if total > 1.0:
                highest += math.log(total)
            nodes.total[n] = max(highest, 2 * NEVER)
            nodes.best[n] = max(best, 2 * NEVER)
    return nodes.total[0]


@compiled
def look_ahead(weights: FloatArray, length: int, scratch: Scratch, nodes: Nodes) -> None:
    """Write the forward sums of the nodes that were kept anew, under other weights."""
    first = scratch.first
    for i in range(length):
        low, high = first[i + 1], first[i + 2]
        highest = np.full(high - low, 2 * NEVER)
        sums = np.zeros(high - low)
        for is_sum in range(2):
            for n in range(first[i], first[i + 1]):
                for m in range(nodes.first_link[n], nodes.first_link[n + 1]):
                    z = nodes.link_target[m] - low
                    way = nodes.forward[n] + weights[i, nodes.link_set[m]]
                    if is_sum == 0:
                        highest[z] = max(highest[z], way)
                    else:
                        sums[z] += exp(max(way - highest[z], SMALLEST))
        for n in range(low, high):
            nodes.forward[n] = max(highest[n - low] + math.log(sums[n - low]), 2 * NEVER)


@compiled
def walk(
    table: Table,
    mask: int,
    cool: float,
    pins: IntArray,
    terms: SetArrays,
    length: int,
    top_p: float,
    numbers: FloatArray,
    scratch: Scratch,
    nodes: Nodes,
    tokens: IntArray,
    path: IntArray,
) -> None:
    """Write the best tokens and states from left to right; a sample where there are `numbers` [L, 2].

    length: positions that were explored; behind them is nothing but EOS.
    """
    is_sample = len(numbers) > 0
    weights = scratch.total if is_sample else scratch.best
    behind = nodes.total if is_sample else nodes.best
    here = 0
    path[0] = nodes.state[0]
    for i in range(length):
        low, high = nodes.first_link[here], nodes.first_link[here + 1]
        ahead = np.empty(high - low)
        ways = np.empty(high - low)
        for m in range(low, high):
            ahead[m - low] = behind[nodes.link_target[m]]
            ways[m - low] = weights[i, nodes.link_set[m]] + ahead[m - low]
        chosen = np.int64(np.argmax(ways))
        highest = ways[chosen]
        if is_sample and pins[i] < 0 and top_p < 1.0:
            whole = highest + math.log(np.exp(ways - highest).sum())
            chosen, tokens[i], scratch.score[i] = draw_of_nucleus(
                table.rows[table.row_of[i]],
                cool,
                top_p,
                numbers[i, 1],
                terms,
                nodes.link_set[low:high],
                ahead,
                whole,
            )
        else:
            if is_sample:
                chosen = draw_of_edge(ways, highest, numbers[i, 0])
            k = int(nodes.link_set[low + chosen])
            if is_sample and pins[i] < 0:
                tokens[i], scratch.score[i] = draw_of_set(
                    table, table.row_of[i], terms, k, cool, scratch.total[i, k], numbers[i, 1]
                )
            else:
                scratch.score[i] = scratch.best[i, k]
                tokens[i] = likeliest(table, mask, terms, scratch, i, k)
        here = int(nodes.link_target[low + chosen])
        path[i + 1] = nodes.state[here]
    for i in range(length, len(pins)):
        tokens[i] = pins[i]
        if tokens[i] < 0:
            ends = ids_of(terms, EOS_SET)
            row = table.rows[table.row_of[i]]
            tokens[i] = name_of(table, best_of(row, mask, ends, scratch))
        path[i + 1] = DONE


@compiled
def judge(
    table: Table,
    mask: int,
    pins: IntArray,
    graph: Graph,
    sets: SetArrays,
    terms: SetArrays,
    length: int,
    whole: float,
    first_loss: int,
    scratch: Scratch,
    nodes: Nodes,
    tokens: IntArray,
    confidence: FloatArray,
    forced: NDArray[np.bool_],
) -> None:
    """Write the posterior probability of each token, and whether it has no alternative."""
    first = scratch.first
    eos_ids = ids_of(sets, EOS_SET)
    known = np.full(len(sets.start), -1, np.int64)
    for i in range(length):
        if pins[i] >= 0:
            continue
        token = tokens[i]
        # Sums relative to the highest way so far.
        highest = 4 * NEVER
        total = 0.0
        for n in range(first[i], first[i + 1]):
            for m in range(nodes.first_link[n], nodes.first_link[n + 1]):
                k: Any = np.uint32(nodes.link_set[m])
                if known[k] >> 1 != i:
                    is_in = is_written(ids_of(sets, k), token) != sets.inverted[k]
                    if sets.base[k] >= 0:  # a call takes longer than most sets
                        is_in = holds(sets, k, token)
                    known[k] = 2 * i + (1 if is_in else 0)
                if not known[k] & 1:
                    continue
                way = nodes.forward[n] + nodes.total[nodes.link_target[m]]
                if way > highest:
                    total = total * exp(max(highest - way, SMALLEST)) + 1.0
                    highest = way
                else:
                    total += exp(max(way - highest, SMALLEST))
        score = scratch.score[i]
        if is_written(eos_ids, token):
            row, ends = table.rows[table.row_of[i]], ids_of(terms, EOS_SET)
            best = at(row, best_of(row, mask, ends, scratch), 1.0)
            score = best + math.log(sum_of(row, ends, 1.0, best))
        confidence[i] = min(1.0, total * math.exp(highest + score - whole))
        if confidence[i] > 1 - 1e-6 and i <= first_loss:
            only = np.int64(-1)
            is_whole = first_loss == len(pins)
            for n in range(first[i], first[i + 1]):
                forward = nodes.forward[n]
                if forward <= IMPOSSIBLE:
                    continue
                # Where something was left out, nobody knows what lies behind an edge.
                low, high = nodes.first_link[n], nodes.first_link[n + 1]
                if not is_whole:
                    low, high = graph.first[nodes.state[n]], graph.last[nodes.state[n]]
                for e in range(low, high):
                    if is_whole and forward + nodes.total[nodes.link_target[e]] <= IMPOSSIBLE:
                        continue
                    k = nodes.link_set[e] if is_whole else graph.set[e]
                    is_other = only != -1 and only != k
                    only = np.int64(-2) if is_other else np.int64(k)
            if only >= 0:
                is_single = sets.written[only] == 1 and sets.base[only] < 0
                is_single &= not sets.inverted[only]
                forced[i] = is_single or only == EOS_SET
            else:
                forced[i] = False
        else:
            forced[i] = False
