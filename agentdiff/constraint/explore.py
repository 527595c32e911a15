"""The first pass of a step, compiled: which states to look at, as in `lattice.Lattice`.

It follows the edges in `tokens.Graph`; where they are not known yet it stops, and goes on when they
are. All sums are in log space.

Legend: L positions, V vocabulary, S states, E edges, K token sets, N nodes. A node is a state at a
position; nodes of a position lie side by side.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.arithmetic import FloatArray, compiled, relate
from agentdiff.constraint.automaton import DONE
from agentdiff.constraint.lattice import IMPOSSIBLE, NEVER
from agentdiff.constraint.scratch import Scratch, Table, holds, ids_of, is_written
from agentdiff.constraint.sets import SetArrays
from agentdiff.constraint.sums import add_needed, find_lines, weigh
from agentdiff.constraint.tokens import Graph
from agentdiff.constraint.vocabulary import IntArray

OK = -1
"""The status of a finished pass."""
UNKNOWN = -2
"""Edges of some states are not known, or there is no room; see to it and go on."""
NOT_A_NUMBER = -3
"""A status from 0 on is the position where all ways ended."""

_MANY = 4096
"""Where a set is written by more ids, most of a row is read."""


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
    first_link: IntArray
    """[N + 1] where the links of a node begin: its edges to nodes that were kept."""
    link_target: NDArray[np.int32]
    """[links] the node."""
    link_set: NDArray[np.int32]
    """[links] the token set."""


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
    table: Table,
    mask: int,
    cool: float,
    pins: IntArray,
    graph: Graph,
    sets: SetArrays,
    terms: SetArrays,
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

    mask: the largest integer of the scores' width · pins: [L], -1 where open · sets: by token, terms:
    by what `table` has scores of · old_path: states of the last witness. Begins with the nodes of
    `begin` in place.

    Returns:
        (status, position, first position where something plausible was left out or L, how many
        states were written to `unknown`). After UNKNOWN, call again from `position`.
    """
    length = len(pins)
    first = scratch.first
    needed = np.empty(len(terms.start), np.int64)
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
        if nodes.first_link[low] + room > len(nodes.link_target):
            # The caller makes room and goes on from here.
            return UNKNOWN, i, first_loss, 0

        pin = pins[i]
        stamp, total = scratch.stamp[i], scratch.total[i]
        count = 0
        has_lines = False
        for n in range(low, high):
            q = nodes.state[n]
            for e in range(graph.first[q], graph.last[q]):
                k: Any = np.uint32(graph.set[e])  # without a sign there is no test for one
                if stamp[k] == 0:
                    count = add_needed(terms, k, stamp, needed, count)
                    has_lines |= bool(terms.inverted[k]) or terms.written[k] > _MANY
        if pin >= 0:
            for k in needed[:count]:
                is_in = is_written(ids_of(sets, k), pin) != sets.inverted[k]
                if sets.base[k] >= 0:  # a call takes longer than most sets
                    is_in = holds(sets, k, pin)
                scratch.total[i, k] = 0.0 if is_in else NEVER
                scratch.best[i, k] = scratch.total[i, k]
                scratch.plain[i, k] = scratch.total[i, k]
                scratch.token[i, k] = pin
        elif count:
            if has_lines:
                # Reading the row in order first makes reading it here and there quick.
                find_lines(table.bits[table.row_of[i]], mask, scratch.lines)
            if not weigh(table, mask, terms, cool, scratch, i, needed[:count]):
                return NOT_A_NUMBER, i, first_loss, 0
        way_at = np.empty(room)
        way_to = np.empty(room, np.int32)
        way_set = np.empty(room, np.int32)
        last_way = np.empty(high - low, np.int64)
        state = np.empty(room, np.int32)
        highest = np.empty(room)
        ways = 0
        count = 0
        for n in range(low, high):
            q = nodes.state[n]
            before = nodes.forward[n]
            for e in range(graph.first[q], graph.last[q]):
                s = graph.set[e]
                weight = total[np.uint32(s)]
                if weight <= NEVER:
                    continue
                u = np.uint32(graph.target[e])
                way = before + weight
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
                way_set[ways] = s
                ways += 1
            last_way[n - low] = ways
        relate(way_at[:ways], way_to, highest)
        sums = np.zeros(count)
        for w in range(ways):
            sums[way_to[w]] += way_at[w]

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
        node = np.full(count, -1, np.int32)
        for z in range(count):
            if highest[z] >= limit or (state[z] == wanted and highest[z] > IMPOSSIBLE):
                if here >= len(nodes.state):
                    return UNKNOWN, i, first_loss, 0
                node[z] = here
                nodes.state[here] = state[z]
                nodes.forward[here] = highest[z]
                here += 1
            elif highest[z] > IMPOSSIBLE:
                lost = True
        if lost and first_loss == length:
            first_loss = i
        first[i + 2] = here
        link = nodes.first_link[low]
        w = 0
        for n in range(low, high):
            nodes.first_link[n] = link
            while w < last_way[n - low]:
                v = node[way_to[w]]
                if v >= 0:
                    nodes.link_target[link] = v
                    nodes.link_set[link] = way_set[w]
                    link += 1
                w += 1
        nodes.first_link[high] = link
    return OK, length, first_loss, 0
