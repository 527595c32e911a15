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
from agentdiff.constraint.draws import Draw
from agentdiff.constraint.lattice import Infeasible
from agentdiff.constraint.notation import Style
from agentdiff.constraint.parts import Parts
from agentdiff.constraint.schema import KeyOrder, OneOf, compile_to_nodes
from agentdiff.constraint.step import Solver, StepSolver
from agentdiff.constraint.step_scores import StepScores
from agentdiff.constraint.tokens import TokenAutomaton
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import BudgetTooSmall, SchemaError


def compile_schema(
    schema: Any,
    vocabulary: Vocabulary,
    *,
    style: Style = "spaced",
    open_objects: bool = False,
    key_order: KeyOrder = "schema",
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
        key_order: `"schema"` writes keys in the order in which the schema names them: the model has
            less to decide. `"free"` takes any order in objects of up to 10 declared keys; other keys
            may stand among them, and texts have more states. Values listed by `enum` or `const` are
            written as they are either way.
        one_of: What becomes of a `oneOf` whose branches cannot be kept apart. `"exact"` refuses it;
            `"validate"` takes it for a union, so what was written has to be validated afterwards.
        grounding: JSON pointer into the *instance* (`*` for any key or index) → texts. A plain
            string there (no `enum`, no `const`) must be a span of one of the texts that begins and
            ends at a word boundary.

    Raises:
        SchemaError: Something in the schema cannot be enforced, or nothing satisfies it; names
            keyword and path.
        ConfigurationError: The style or the key order is not known, or a grounding pointer is
            malformed.
    """
    start = compile_to_nodes(
        schema,
        style=style,
        open_objects=open_objects,
        key_order=key_order,
        one_of=one_of,
        grounding=grounding,
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
        return state != DEAD and tokens.automaton.may_end(state)


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
        return self._state == DONE or self._tokens.automaton.may_end(self._state)

    @property
    def must_stop(self) -> bool:
        """Whether nothing but EOS may follow."""
        return self._state == DONE or all(target == DONE for target in self._affordable())

    def copy(self) -> Matcher:
        """Return a matcher at the same point; the two go on independently and share the grammar."""
        other = Matcher(self._tokens, self._solver, self._state, self._budget)
        other._path = self._path
        return other

    @property
    def parts(self) -> Parts:
        """What the grammar asks of a row of scores, for what may come next: see `StepScores`."""
        self._tokens.look_ahead([self._state])
        return self._tokens.part_sets.parts()

    def propose(
        self,
        scores: NDArray[np.floating] | StepScores,
        pinned: Mapping[int, int],
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        rng: np.random.Generator | None = None,
    ) -> Proposal:
        """Fill the block: the likeliest valid fill, or a sample of the valid ones.

        Keeps the state before the block; remembers the fill as the new witness.

        Args:
            scores: [L, V] log-probabilities of the model, normalised per row. -inf is taken as very
                unlikely. Or `StepScores`, which may leave out what nobody asks for.
            pinned: Position → token that stands there. Always feasible if a subset of the last
                proposal's tokens.
            temperature: 0 for the likeliest fill; else the fill is a joint sample of the valid ones
                under scores / temperature. The confidence is always that of the scores themselves.
            top_p: Draw each token from the likeliest ones that together have this probability. They
                are looked for among what may follow the tokens before it, after the grammar has
                ruled out the rest and at the temperature: what engines do that write one token at a
                time. So something is always left to draw. Below 1 it needs whole rows; at temperature
                0 it means nothing.
            rng: Where randomness comes from; required for a temperature above 0.

        Raises:
            ValueError: The shape is wrong, a pin lies outside it, or no valid fill keeps the pins.
        """
        if not isinstance(scores, StepScores):
            if scores.ndim != 2:
                raise ValueError(f"`scores` must be [L, V], got {list(scores.shape)}")
            scores = StepScores.whole(scores)
        length = self._check(scores, pinned)
        draw = _drawing(temperature, top_p, rng, length)
        if draw is not None and scores.parts is not None:
            _check_drawn(draw, scores)
        head, state, path = self._follow_pins(pinned, length)
        rest = {i - head: token for i, token in pinned.items() if i >= head}
        if len(self._path) != length + 1 or self._path[head] != state:
            self._path = path + self._cheapest_path(state, length - head)
        try:
            fill = self._solver.solve(
                state,
                scores,
                rest,
                begin=head,
                budget=self._budget - head,
                old_path=self._path[head:],
                draw=draw and draw._replace(numbers=draw.numbers[head:]),
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

    def _check(self, scores: StepScores, pinned: Mapping[int, int]) -> int:
        """Return L, after checking scores and pins."""
        width, length = len(self._tokens.vocabulary), scores.length
        if scores.parts is not None:
            width = len(scores.parts.columns)
        if scores.rows.shape != (len(scores.places), width) or not length:
            raise ValueError(
                f"`scores` must be [{len(scores.places)}, {width}] for L > 0, got "
                f"{list(scores.rows.shape)} for {length}"
            )
        outside = [i for i in pinned if not 0 <= i < length]
        if outside:
            raise ValueError(f"pins at {sorted(outside)} lie outside the block of {length}")
        blind = set(range(length)) - set(scores.places.tolist()) - set(pinned)
        if blind:
            raise ValueError(f"positions {sorted(blind)} have neither scores nor a pin")
        width = len(self._tokens.vocabulary)
        unknown = [token for token in pinned.values() if not 0 <= token < width]
        if unknown:
            raise ValueError(f"pinned tokens {unknown} lie outside the vocabulary of {width}")
        return length

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


def _drawing(
    temperature: float, top_p: float, rng: np.random.Generator | None, length: int
) -> Draw | None:
    """How a block of `length` is to be drawn; None for the likeliest fill."""
    if temperature < 0 or (temperature > 0 and rng is None):
        raise ValueError(f"`temperature` must be 0, or above 0 with an `rng`, got {temperature!r}")
    if not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be in (0, 1], got {top_p!r}")
    if rng is None or temperature == 0:
        return None
    return Draw(temperature, top_p, rng.random((length, 2)))


def _check_drawn(draw: Draw, scores: StepScores) -> None:
    """See to it that scores by parts are good for what is to be drawn."""
    if draw.top_p < 1:
        raise ValueError(f"`top_p` {draw.top_p!r} needs whole rows, the scores are by parts")
    if scores.temperature != draw.temperature:
        raise ValueError(
            f"`temperature` is {draw.temperature!r}, but the scores hold draws at "
            f"{scores.temperature!r}"
        )
