"""What it costs to close: tokens from a node to the end of its frame.

Every node knows its shortest way out in bytes. Along that way the tokens are counted that spell it,
where a token may not reach over a call or a frame's end. The law that the promise of closing in
time rests on follows: a node of finite cost c > 0 has a token along its way out that leads to a
node of cost at most c - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentdiff.constraint.automaton import END, INFINITE, Node, way_out
from agentdiff.constraint.vocabulary import Vocabulary


class Closing:
    """Prices nodes in tokens of one vocabulary; each price is kept on its node."""

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
        # The run: nodes joined by single bytes, up to a call or the frame's end.
        run: list[Node] = []
        data = bytearray()
        offsets: list[int] = []
        unpriced = 0
        tail = 0  # bytes collected beyond the last unpriced node
        while node is not END:
            if node.price < 0:
                unpriced, tail = len(run) + 1, 0
            elif tail > 64:
                break
            byte, after, rule = way_out(node)
            run.append(node)
            offsets.append(len(data))
            if rule is not None:
                if node.price < 0:
                    yield rule.start
                    yield after
                    node.price = min(_known(rule.start) + _known(after), INFINITE)
                break
            if byte >= 0:
                data.append(byte)
                tail += 1
            node = after
        # prices[k]: tokens from the k-th byte of the run on.
        prices = [INFINITE] * (len(data) + 1)
        prices[len(data)] = node.price if node is not END else 0
        for k in range(unpriced, len(run)):
            prices[offsets[k]] = run[k].price
        for k in range(unpriced - 1, -1, -1):
            member, at = run[k], offsets[k]
            if member.price < 0:
                # Nodes joined by a skip share a byte offset, and so a price.
                if prices[at] >= INFINITE:
                    prices[at] = self._cheapest(data, at, prices)
                member.price = prices[at]
            prices[at] = member.price

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


def _known(node: Node) -> int:
    """The price of a node, or -1 when it must be found."""
    if node is END:
        return 0
    return INFINITE if node.is_dead else node.price
