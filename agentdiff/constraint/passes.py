"""The passes of one step over the lattice, compiled: `lattice.py` with arrays instead of layers.

They follow the edges in `tokens.Graph`. All sums are in log space.

Legend: L positions, V vocabulary, S states, E edges, K token sets, N nodes. A node is a state at a
position; nodes of a position lie side by side.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DONE
from agentdiff.constraint.lattice import IMPOSSIBLE, NEVER
from agentdiff.constraint.sets import SetArrays
from agentdiff.constraint.sums import (
    SMALLEST,
    Bits,
    FloatArray,
    Rows,
    Scratch,
    at,
    best_of,
    compiled,
    exp,
    find_lines,
    ids_of,
    is_written,
    sum_of,
    weigh,
)
from agentdiff.constraint.tokens import EOS_SET, Graph
from agentdiff.constraint.vocabulary import IntArray

OK = -1
"""The status of a finished pass."""
UNKNOWN = -2
"""Edges of some states are not known, or there is no room; see to it and go on."""
NOT_A_NUMBER = -3
"""A status from 0 on is the position where all ways ended."""


class Nodes(NamedTuple):
    """The explored part of the lattice; grows from step to step."""

    state: NDArray[np.int32]
    """[N]"""
    forward: FloatArray
    """[N] log-sum over the ways from the start."""
    total: FloatArray
    """[N] log-sum over the ways to the end."""
    best: FloatArray
    """[N] the best of them."""


@compiled
def _nth_largest(values: FloatArray, n: int) -> float:
    """The n-th largest value, by Hoare's selection; reorders the values."""
    low, high = 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if n - 1 <= j:
            high = j
        elif n - 1 >= i:
            low = i
        else:
            break
    return values[n - 1]


@compiled
def explore(
    rows: Rows,
    bits: Bits,
    mask: int,
    cool: float,
    pins: IntArray,
    graph: Graph,
    sets: SetArrays,
    old_path: IntArray,
    budget: int,
    width: int,
    margin: float,
    begin: int,
    first_loss: int,
    scratch: Scratch,
    nodes: Nodes,
    unknown: NDArray[np.int32],
) -> tuple[int, int, int, int]:
    """Explore forward from position `begin` on, as `Lattice` does.

    rows: [L, V], bits: the same as integers, mask: the largest of their type · pins: [L], -1 where
    open · old_path: states of the last witness. Begins with the nodes of `begin` in place.

    Returns:
        (status, position, first position where something plausible was left out or L, how many
        states were written to `unknown`). After UNKNOWN, call again from `position`.
    """
    length = len(rows)
    first = scratch.first
    for i in range(begin, length):
        low, high = first[i], first[i + 1]
        if high - low == 1 and nodes.state[low] == DONE:
            return OK, i, first_loss, 0
        missing = 0
        room = 0
        for n in range(low, high):
            q = nodes.state[n]
            if q >= len(graph.first) or graph.first[q] < 0:
                if missing < len(unknown):
                    unknown[missing] = q
                    missing += 1
            else:
                room += graph.last[q] - graph.first[q]
        if missing:
            return UNKNOWN, i, first_loss, missing

        pin = pins[i]
        has_lines = False
        if pin < 0:
            # Reading the row in order first makes reading it here and there quick.
            for n in range(low, high):
                q = nodes.state[n]
                for e in range(graph.first[q], graph.last[q]):
                    if sets.inverted[graph.set[e]] and not has_lines:
                        has_lines = True
                        find_lines(bits[i], mask, scratch.lines)
        way_at = np.empty(room)
        way_to = np.empty(room, np.int32)
        state = np.empty(room, np.int32)
        highest = np.empty(room)
        ways = 0
        count = 0
        for n in range(low, high):
            q = nodes.state[n]
            for e in range(graph.first[q], graph.last[q]):
                k = graph.set[e]
                if scratch.stamp[i, k] == 0:
                    scratch.stamp[i, k] = 1
                    ids = ids_of(sets, k)
                    if pin >= 0:
                        holds = is_written(ids, pin) != sets.inverted[k]
                        scratch.total[i, k] = 0.0 if holds else NEVER
                        scratch.best[i, k] = scratch.total[i, k]
                        scratch.plain[i, k] = scratch.total[i, k]
                        scratch.token[i, k] = pin
                    else:
                        if not weigh(
                            rows[i], bits[i], mask, ids, bool(sets.inverted[k]), cool, scratch, i, k
                        ):
                            return NOT_A_NUMBER, i, first_loss, 0
                weight = scratch.total[i, k]
                if weight <= NEVER:
                    continue
                u = graph.target[e]
                way = nodes.forward[n] + weight
                z = scratch.slot[u]
                if z < 0:
                    z = count
                    scratch.slot[u] = z
                    state[z] = u
                    highest[z] = way
                    count += 1
                elif way > highest[z]:
                    highest[z] = way
                way_at[ways] = way
                way_to[ways] = z
                ways += 1
        sums = np.zeros(count)
        for w in range(ways):
            z = way_to[w]
            d = way_at[w] - highest[z]
            if d == 0.0:
                sums[z] += 1.0
            elif d > -50.0:
                sums[z] += exp(d)

        # Which of the states reached to keep.
        left = budget - i - 1
        wanted = old_path[i + 1] if i + 1 < len(old_path) else -1
        best = 2 * NEVER
        for z in range(count):
            scratch.slot[state[z]] = -1
            if graph.cost[state[z]] > left:
                highest[z] = 2 * NEVER
            elif sums[z] > 1.0:
                highest[z] += math.log(sums[z])
            best = max(best, highest[z])
        if best < IMPOSSIBLE:
            return i, i, first_loss, 0
        limit = max(best - margin, IMPOSSIBLE)
        plausible = 0
        for z in range(count):
            plausible += highest[z] >= limit
        if plausible > width:
            limit = max(limit, _nth_largest(highest[:count].copy(), width))
        here = high
        lost = False
        for z in range(count):
            if highest[z] >= limit or (state[z] == wanted and highest[z] > IMPOSSIBLE):
                if here >= len(nodes.state):
                    # The caller makes room and goes on from here.
                    return UNKNOWN, i, first_loss, 0
                nodes.state[here] = state[z]
                nodes.forward[here] = highest[z]
                here += 1
            elif highest[z] > IMPOSSIBLE:
                lost = True
        if lost and first_loss == length:
            first_loss = i
        first[i + 2] = here
    return OK, length, first_loss, 0


@compiled
def look_back(
    weights: FloatArray, graph: Graph, length: int, scratch: Scratch, nodes: Nodes, has_best: bool
) -> float:
    """Write the sums and the best over all ways from each node to the end; return the first sum.

    weights: [L, K] log-sums of the sets · length: positions that were explored.
    """
    first = scratch.first
    for n in range(first[length], first[length + 1]):
        nodes.total[n] = 0.0
        nodes.best[n] = 0.0
    for i in range(length - 1, -1, -1):
        for n in range(first[i + 1], first[i + 2]):
            scratch.slot[nodes.state[n]] = n
        for n in range(first[i], first[i + 1]):
            q = nodes.state[n]
            highest = 2 * NEVER
            best = 2 * NEVER
            for e in range(graph.first[q], graph.last[q]):
                v = scratch.slot[graph.target[e]]
                if v >= 0:
                    k = graph.set[e]
                    highest = max(highest, nodes.total[v] + weights[i, k])
                    if has_best:
                        best = max(best, nodes.best[v] + scratch.best[i, k])
            total = 0.0
            for e in range(graph.first[q], graph.last[q]):
                v = scratch.slot[graph.target[e]]
                if v >= 0:
                    d = nodes.total[v] + weights[i, graph.set[e]] - highest
                    if d == 0.0:
                        total += 1.0
                    elif d > -50.0:
                        total += exp(d)
            if total > 1.0:
                highest += math.log(total)
            nodes.total[n] = max(highest, 2 * NEVER)
            nodes.best[n] = max(best, 2 * NEVER)
        for n in range(first[i + 1], first[i + 2]):
            scratch.slot[nodes.state[n]] = -1
    return nodes.total[0]


@compiled
def look_ahead(
    weights: FloatArray, graph: Graph, length: int, scratch: Scratch, nodes: Nodes
) -> None:
    """Write the forward sums of the nodes that were kept anew, under other weights."""
    first = scratch.first
    for i in range(length):
        low, high = first[i + 1], first[i + 2]
        highest = np.full(high - low, 2 * NEVER)
        sums = np.zeros(high - low)
        for n in range(low, high):
            scratch.slot[nodes.state[n]] = n - low
        for is_sum in range(2):
            for n in range(first[i], first[i + 1]):
                q = nodes.state[n]
                for e in range(graph.first[q], graph.last[q]):
                    v = scratch.slot[graph.target[e]]
                    if v >= 0:
                        way = nodes.forward[n] + weights[i, graph.set[e]]
                        if is_sum == 0:
                            highest[v] = max(highest[v], way)
                        else:
                            sums[v] += exp(max(way - highest[v], SMALLEST))
        for n in range(low, high):
            scratch.slot[nodes.state[n]] = -1
            nodes.forward[n] = max(highest[n - low] + math.log(sums[n - low]), 2 * NEVER)


@compiled
def walk(
    rows: Rows,
    bits: Bits,
    mask: int,
    cool: float,
    pins: IntArray,
    graph: Graph,
    sets: SetArrays,
    length: int,
    draws: FloatArray,
    scratch: Scratch,
    nodes: Nodes,
    tokens: IntArray,
    path: IntArray,
) -> None:
    """Write the best tokens and states from left to right; a sample where `draws` [L, 2] are given.

    length: positions that were explored; behind them is nothing but EOS.
    """
    first = scratch.first
    is_sample = len(draws) > 0
    weights = scratch.total if is_sample else scratch.best
    behind = nodes.total if is_sample else nodes.best
    here = 0
    path[0] = nodes.state[0]
    for i in range(length):
        for n in range(first[i + 1], first[i + 2]):
            scratch.slot[nodes.state[n]] = n
        q = nodes.state[here]
        low, high = graph.first[q], graph.last[q]
        chosen = low
        highest = 4 * NEVER
        for e in range(low, high):
            v = scratch.slot[graph.target[e]]
            if v >= 0:
                k = graph.set[e]
                way = weights[i, k] + behind[v]
                if way > highest:
                    highest = way
                    chosen = e
        if is_sample and high - low > 1:
            total = 0.0
            for e in range(low, high):
                v = scratch.slot[graph.target[e]]
                if v >= 0:
                    d = scratch.total[i, graph.set[e]] + nodes.total[v] - highest
                    total += exp(max(d, SMALLEST))
            point = draws[i, 0] * total
            total = 0.0
            for e in range(low, high):
                v = scratch.slot[graph.target[e]]
                if v >= 0:
                    d = scratch.total[i, graph.set[e]] + nodes.total[v] - highest
                    total += exp(max(d, SMALLEST))
                    if total > point:
                        chosen = e
                        break
        k = graph.set[chosen]
        if is_sample and pins[i] < 0:
            tokens[i] = _draw(
                rows[i],
                ids_of(sets, k),
                bool(sets.inverted[k]),
                cool,
                scratch.best[i, k],
                draws[i, 1],
            )
        else:
            tokens[i] = scratch.token[i, k]
        here = scratch.slot[graph.target[chosen]]
        path[i + 1] = nodes.state[here]
        for n in range(first[i + 1], first[i + 2]):
            scratch.slot[nodes.state[n]] = -1
    for i in range(length, len(rows)):
        tokens[i] = pins[i] if pins[i] >= 0 else best_of(bits[i], mask, ids_of(sets, EOS_SET))
        path[i + 1] = DONE


@compiled
def _draw(
    row: Rows,
    ids: NDArray[np.int32],
    is_inverted: bool,
    cool: float,
    best: float,
    draw: float,
) -> int:
    """Draw a token of a set with probability proportional to exp(score)."""
    count = len(row) if is_inverted else len(ids)
    point = np.inf
    chosen = -1
    for _ in range(2):
        total = 0.0
        j = 0
        for n in range(count):
            token = n
            if not is_inverted:
                token = ids[n]
            elif j < len(ids) and ids[j] == n:
                j += 1
                continue
            total += exp(max(at(row, token, cool) - best, SMALLEST))
            chosen = token
            if total > point:
                return chosen
        point = draw * total
    return chosen


@compiled
def judge(
    rows: Rows,
    bits: Bits,
    mask: int,
    pins: IntArray,
    graph: Graph,
    sets: SetArrays,
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
    holds = np.full(len(sets.start), -1, np.int64)
    for i in range(length):
        if pins[i] >= 0:
            continue
        for n in range(first[i + 1], first[i + 2]):
            scratch.slot[nodes.state[n]] = n
        token = tokens[i]
        highest = 4 * NEVER
        total = 0.0
        for is_sum in range(2):
            for n in range(first[i], first[i + 1]):
                q = nodes.state[n]
                for e in range(graph.first[q], graph.last[q]):
                    v = scratch.slot[graph.target[e]]
                    if v < 0:
                        continue
                    k = graph.set[e]
                    if holds[k] >> 1 != i:
                        is_in = is_written(ids_of(sets, k), token) != sets.inverted[k]
                        holds[k] = 2 * i + (1 if is_in else 0)
                    if holds[k] & 1:
                        way = nodes.forward[n] + nodes.total[v]
                        if is_sum == 0:
                            highest = max(highest, way)
                        else:
                            total += exp(max(way - highest, SMALLEST))
        if is_written(eos_ids, token):
            best = at(rows[i], best_of(bits[i], mask, eos_ids), 1.0)
            score = best + math.log(sum_of(rows[i], eos_ids, 1.0, best))
        else:
            score = at(rows[i], token, 1.0)
        confidence[i] = min(1.0, total * math.exp(highest + score - whole))
        if confidence[i] > 1 - 1e-6 and i <= first_loss:
            only = np.int64(-1)
            for n in range(first[i], first[i + 1]):
                q = nodes.state[n]
                for e in range(graph.first[q], graph.last[q]):
                    v = scratch.slot[graph.target[e]]
                    k = graph.set[e]
                    if nodes.forward[n] <= IMPOSSIBLE:
                        continue
                    # Where something was left out, nobody knows what lies behind an edge.
                    is_whole = first_loss == len(rows)
                    if is_whole and (v < 0 or nodes.forward[n] + nodes.total[v] <= IMPOSSIBLE):
                        continue
                    is_other = only != -1 and only != k
                    only = np.int64(-2) if is_other else np.int64(k)
            if only >= 0:
                is_single = sets.written[only] == 1 and not sets.inverted[only]
                forced[i] = is_single or only == EOS_SET
            else:
                forced[i] = False
        else:
            forced[i] = False
        for n in range(first[i + 1], first[i + 2]):
            scratch.slot[nodes.state[n]] = -1
