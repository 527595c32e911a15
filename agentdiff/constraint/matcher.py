"""Grammars and matchers: what the engine asks.

A `Grammar` is a compiled schema for one vocabulary: shared, cached, growing. A `Matcher` is one
text on its way: the state before the active block, the budget left, and the witness: the last
complete valid fill of the block. Commit any subset of the witness and hand it back as pins: the
next `propose` succeeds, whatever the model says by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentdiff.constraint.automaton import DEAD, DONE, INFINITE, Node
from agentdiff.constraint.lattice import Infeasible
from agentdiff.constraint.schema import OneOf, Style, compile_to_nodes
from agentdiff.constraint.step import Solver, StepSolver
from agentdiff.constraint.tokens import TokenAutomaton
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import BudgetTooSmall, SchemaError


def compile_schema(
    schema: Any,
    vocabulary: Vocabulary,
    *,
    style: Style = "spaced",
    open_objects: bool = False,
    one_of: OneOf = "exact",
    grounding: Mapping[str, Sequence[str]] | None = None,
) -> Grammar:
    """Compile a JSON Schema for a vocabulary.

    Cheap: automaton and token edges are built as they are needed.

    Args:
        schema: A JSON Schema, as parsed JSON.
        vocabulary: The model's vocabulary.
        style: `"spaced"` writes `, ` and `: ` between things, `"compact"` writes `,` and `:`,
            `"indented"` gives every member and item its own line; nothing else is taken.
        open_objects: Whether an object with `properties` but without `additionalProperties` may
            have other keys.
        one_of: What becomes of a `oneOf` whose branches cannot be kept apart. `"exact"` refuses it;
            `"validate"` takes it for a union, so what was written has to be validated afterwards.
        grounding: JSON pointer into the *instance* (`*` for any key or index) → texts. A plain
            string there (no `enum`, no `const`) must be a span of one of the texts that begins and
            ends at a word boundary.

    Raises:
        SchemaError: Something in the schema cannot be enforced, or nothing satisfies it; names
            keyword and path.
        ConfigurationError: A grounding pointer is malformed.
    """
    start = compile_to_nodes(
        schema, style=style, open_objects=open_objects, one_of=one_of, grounding=grounding
    )
    return Grammar(start, vocabulary)


class Grammar:
    """What may be written, for one vocabulary. Safe to share between threads."""

    def __init__(self, start: Node, vocabulary: Vocabulary) -> None:
        """Wrap a compiled start node; use `compile_schema`.

        Raises:
            SchemaError: The vocabulary lacks tokens to spell any text.
        """
        self.vocabulary = vocabulary
        self._tokens = TokenAutomaton(start, vocabulary)
        self._solver = StepSolver(self._tokens)
        if self.min_tokens >= INFINITE:
            raise SchemaError(
                "the vocabulary has no tokens to spell any text that satisfies the schema"
            )

    @property
    def min_tokens(self) -> int:
        """The smallest budget that `start` takes: tokens that surely hold a text, EOS not counted.

        The text that is shortest in bytes, in as few tokens as spell it.
        """
        return self._tokens.cost(self._tokens.start)

    def start(self, budget: int) -> Matcher:
        """Begin a text of at most `budget` tokens, EOS not counted.

        Raises:
            BudgetTooSmall: No text is sure to fit; `needed` says what would be enough.
        """
        if budget < self.min_tokens:
            raise BudgetTooSmall(budget=budget, needed=self.min_tokens)
        return Matcher(self._tokens, self._solver, self._tokens.start, budget)

    @property
    def nbytes(self) -> int:
        """Bytes held, about; what all grammars of the vocabulary share is not counted."""
        return self._tokens.nbytes + self._solver.nbytes

    def accepts(self, text: bytes) -> bool:
        """Whether these bytes are one whole text of the grammar, in any tokens."""
        tokens = self._tokens
        with tokens.lock:
            state = tokens.automaton.step(tokens.start, text)
        return state != DEAD and tokens.automaton.accepting[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A complete valid fill of the block, and how sure each token is. L positions."""

    tokens: NDArray[np.int64]
    """[L] the witness; EOS after the end of the text."""
    confidence: NDArray[np.float64]
    """[L] probability of each token under the model's distribution given that the text is valid,
    closes within the budget and keeps the pins. 1 at pins. EOS ids count as one symbol."""
    forced: NDArray[np.bool_]
    """[L] whether grammar and pins allow only this token; true at pins. May miss some far from the
    block's start."""


class Matcher:
    """One text on its way: advance block by block, propose within a block."""

    def __init__(self, tokens: TokenAutomaton, solver: Solver, state: int, budget: int) -> None:
        """Begin in a state; use `Grammar.start`."""
        self._tokens = tokens
        self._solver = solver
        self._state = state
        self._budget = budget
        self._path: list[int] = []
        """States of the last witness; empty before the first."""

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be written, EOS not counted."""
        return self._budget

    @property
    def min_tokens_left(self) -> int:
        """Tokens that surely complete the text, EOS not counted."""
        return self._tokens.cost(self._state)

    @property
    def can_stop(self) -> bool:
        """Whether the text is complete as it stands."""
        return self._state == DONE or self._tokens.automaton.accepting[self._state]

    @property
    def must_stop(self) -> bool:
        """Whether nothing but EOS may follow."""
        return self._state == DONE or all(target == DONE for target in self._affordable())

    def copy(self) -> Matcher:
        """Return a matcher at the same point; the two go on independently and share the grammar."""
        other = Matcher(self._tokens, self._solver, self._state, self._budget)
        other._path = self._path
        return other

    def propose(
        self,
        log_probs: NDArray[np.floating],
        pinned: Mapping[int, int],
        *,
        temperature: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> Proposal:
        """Fill the block: the likeliest valid fill, or a sample of the valid ones.

        Keeps the state before the block; remembers the fill as the new witness.

        Args:
            log_probs: [L, V] log-probabilities of the model, normalised per row. -inf is taken as
                very unlikely.
            pinned: Position → token that stands there. Always feasible if a subset of the last
                proposal's tokens.
            temperature: 0 for the likeliest fill; else the fill is a joint sample of the valid ones
                under log_probs / temperature. The confidence is always that of `log_probs`
                themselves.
            rng: Where randomness comes from; required for a temperature above 0.

        Raises:
            ValueError: The shape is wrong, a pin lies outside it, or no valid fill keeps the pins.
        """
        length = self._check(log_probs, pinned, temperature, rng)
        head, state, path = self._follow_pins(pinned, length)
        rest = {i - head: token for i, token in pinned.items() if i >= head}
        if len(self._path) != length + 1 or self._path[head] != state:
            self._path = path + self._cheapest_path(state, length - head)
        try:
            fill = self._solver.solve(
                state,
                log_probs[head:],
                rest,
                budget=self._budget - head,
                old_path=self._path[head:],
                temperature=temperature,
                draws=rng.random((length - head, 2)) if rng and temperature > 0 else None,
            )
        except Infeasible as error:
            positions = sorted(
                i for i in pinned if error.position is None or i <= error.position + head
            )
            raise ValueError(f"no valid fill keeps the pins at positions {positions}") from None
        self._path = path + fill.path
        pins = np.array([pinned[i] for i in range(head)], np.int64)
        return Proposal(
            tokens=np.concatenate([pins, fill.tokens]),
            confidence=np.concatenate([np.ones(head), fill.confidence]),
            forced=np.concatenate([np.ones(head, np.bool_), fill.forced]),
        )

    def advance(self, tokens: Sequence[int]) -> None:
        """Write tokens for good; EOS may follow once the text is complete.

        Raises:
            ValueError: The grammar forbids a token, or what they begin cannot close within the
                budget; nothing changes.
        """
        state, budget = self._state, self._budget
        for i, token in enumerate(tokens):
            state, before = self._tokens.step(state, int(token)), state
            if state == DEAD:
                raise ValueError(
                    f"the grammar forbids token {int(token)} at position {i}, in state {before}"
                )
            budget -= state != DONE
        if state != DONE and self._tokens.cost(state) > budget:
            needed = self._tokens.cost(state)
            raise ValueError(f"{needed} tokens are needed to close, {budget} are left after these")
        self._state, self._budget, self._path = state, budget, []

    def forced_prefix(self, limit: int) -> list[int]:
        """Return up to `limit` tokens, each of them the only one possible; no EOS."""
        prefix: list[int] = []
        ahead = self.copy()
        while len(prefix) < limit:
            targets, sets = self._tokens.edges(ahead._state)
            ways = [k for k, t in enumerate(targets.tolist()) if ahead._can_afford(t)]
            if len(ways) != 1 or targets[ways[0]] == DONE:
                break
            ids = self._tokens.sets.members(int(sets[ways[0]]))
            if len(ids) != 1:
                break
            prefix.append(int(ids[0]))
            ahead._state, ahead._budget = int(targets[ways[0]]), ahead._budget - 1
        return prefix

    def _affordable(self) -> list[int]:
        """Next states from which the text closes within the budget."""
        return [t for t in self._tokens.edges(self._state)[0].tolist() if self._can_afford(t)]

    def _can_afford(self, target: int) -> bool:
        return self._tokens.automaton.costs[target] <= self._budget - 1 or target == DONE

    def _check(
        self,
        log_probs: NDArray[np.floating],
        pinned: Mapping[int, int],
        temperature: float,
        rng: np.random.Generator | None,
    ) -> int:
        """Return L, after checking the arguments of `propose`."""
        width = len(self._tokens.vocabulary)
        if log_probs.ndim != 2 or log_probs.shape[1] != width or not len(log_probs):
            raise ValueError(
                f"`log_probs` must be [L, {width}] with L > 0, got {list(log_probs.shape)}"
            )
        outside = [i for i in pinned if not 0 <= i < len(log_probs)]
        if outside:
            raise ValueError(f"pins at {sorted(outside)} lie outside the block of {len(log_probs)}")
        unknown = [token for token in pinned.values() if not 0 <= token < width]
        if unknown:
            raise ValueError(f"pinned tokens {unknown} lie outside the vocabulary of {width}")
        if temperature < 0 or (temperature > 0 and rng is None):
            raise ValueError(
                f"`temperature` must be 0, or above 0 with an `rng`, got {temperature!r}"
            )
        return len(log_probs)

    def _follow_pins(self, pinned: Mapping[int, int], length: int) -> tuple[int, int, list[int]]:
        """Go over the pins at the block's start: (how many, state behind, states before)."""
        state, path = self._state, list[int]()
        while len(path) < length and len(path) in pinned:
            after = self._tokens.step(state, pinned[len(path)])
            left = self._budget - len(path) - 1
            if after == DEAD or (after != DONE and self._tokens.cost(after) > left):
                raise ValueError(
                    f"no valid fill keeps the pins at positions {list(range(len(path) + 1))}"
                )
            path.append(state)
            state = after
        return len(path), state, path

    def _cheapest_path(self, state: int, length: int) -> list[int]:
        """The states of a fill that closes as soon as it can: the first witness."""
        path = [state]
        while len(path) <= length:
            path.append(self._tokens.cheapest(path[-1]))
        return path
