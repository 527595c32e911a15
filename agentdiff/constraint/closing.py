"""What it costs to close: tokens from a node to the end of its frame.

Every node knows its shortest way out in bytes. Along that way the tokens are counted that spell it,
where a token may not reach over a call or a frame's end. The law that the promise of closing in
time rests on follows: a node of finite cost c > 0 has a token along its way out that leads to a
node of cost at most c - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentdiff.constraint.automaton import (
    END,
    INFINITE,
    Joint,
    Node,
    Point,
    Stretch,
    Word,
    way_out,
)
from agentdiff.constraint.vocabulary import Vocabulary


class Closing:
    """Prices nodes in tokens of one vocabulary; each price is kept on its node or stretch."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def price(self, node: Node) -> int:
        """Return the tokens from a node to its frame's end; INFINITE if they cannot be spelled."""
        work = [self._price_way_out(node)]  # a stack of our own: calls may follow by the thousand
        while work:
            needed = next(work[-1], None)
            if needed is None:
                work.pop()
            elif _known(needed) < 0:
                work.append(self._price_way_out(needed))
        return _known(node)

    def _price_way_out(self, node: Node) -> Iterator[Node]:
        """Price a node; yields the nodes that must be priced before it goes on."""
        if _known(node) >= 0:
            return
        # The run: places joined by single bytes, up to a call or the frame's end.
        run: list[_Place] = []
        data = bytearray()
        offsets: list[int] = []
        unpriced = 0
        tail = 0  # bytes collected beyond the last unpriced place
        here = _place_of(node)
        while here[0] is not END:
            price = _price(here)
            if price < 0:
                unpriced, tail = len(run) + 1, 0
            elif tail > 64:
                break
            run.append(here)
            offsets.append(len(data))
            keeper, at = here
            if isinstance(keeper, Word):
                byte = keeper.data[at]
                ends = at + 1 == len(keeper.data)
                here = _place_of(keeper.after) if ends else (keeper, at + 1)
            elif isinstance(keeper, Joint):
                if price < 0:
                    parts = keeper.parts()
                    yield from parts
                    keeper.price = min(sum(map(_known, parts)), INFINITE)
                break
            elif isinstance(keeper, Stretch):
                byte, after, _ = keeper.point(at).way_out()
                here = _place_of(after)
            else:
                byte, after, rule = way_out(keeper)
                if rule is not None:
                    if price < 0:
                        yield rule.start
                        yield after
                        keeper.price = min(_known(rule.start) + _known(after), INFINITE)
                    break
                here = _place_of(after)
            if byte >= 0:
                data.append(byte)
                tail += 1
        # prices[k]: tokens from the k-th byte of the run on.
        prices = [INFINITE] * (len(data) + 1)
        prices[len(data)] = _price(here)
        for k in range(unpriced, len(run)):
            prices[offsets[k]] = _price(run[k])
        for k in range(unpriced - 1, -1, -1):
            (keeper, where), at = run[k], offsets[k]
            price = _price(run[k])
            if price < 0:
                # Nodes joined by a skip share a byte offset, and so a price.
                if prices[at] >= INFINITE:
                    prices[at] = self._cheapest(data, at, prices)
                price = prices[at]
                if isinstance(keeper, Stretch):
                    keeper.keep_price(where, price)
                else:
                    keeper.price = price
            prices[at] = price

    def _cheapest(self, data: bytearray, at: int, prices: list[int]) -> int:
        """1 + the least price behind any token that matches the bytes from `at` on."""
        vocabulary = self._vocabulary
        best, trie_node = INFINITE, 0
        for end in range(at, len(data)):
            trie_node = vocabulary.child(trie_node, data[end])
            if trie_node < 0:
                break
            if vocabulary.node_token[trie_node] >= 0 and prices[end + 1] + 1 < best:
                best = prices[end + 1] + 1
        return min(best, INFINITE)


_Place = tuple[Node | Stretch, int]
"""(what keeps the price, which of its places)."""


def _place_of(node: Node) -> _Place:
    return (node.stretch, node.at) if isinstance(node, Point) else (node, 0)


def _price(place: _Place) -> int:
    """The price of a place, or -1 when it must be found."""
    keeper, at = place
    if isinstance(keeper, Stretch):
        return keeper.price(at)
    if keeper is END:
        return 0
    return INFINITE if keeper.is_dead else keeper.price


def _known(node: Node) -> int:
    """The price of a node, or -1 when it must be found."""
    return INFINITE if node.is_dead else _price(_place_of(node))
