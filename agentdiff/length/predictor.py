"""How many tokens a step will need: context in, `Budget` out, outcome back in.

    context -> what has been learned -> distribution -> budget of least expected cost
    outcome -> what has been learned

The share of first attempts that do not fit is steered to `target_miss` for each kind of step. That
is a statement about the long run of a kind, not about one call and not about the first dozens.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentdiff.errors import ConfigurationError, StoreError
from agentdiff.generation import Budget
from agentdiff.length.context import Key, StepContext
from agentdiff.length.cost import LARGEST, CostModel, cheapest, rounded_up
from agentdiff.length.learned import Learned, View
from agentdiff.length.learning import Outcome, learn
from agentdiff.length.prior import shipped_prior
from agentdiff.length.saved import adopt, from_json, merge, to_json
from agentdiff.length.store import Store

DEFAULT_CEILING = 4096
ROOM = 4
"""A ceiling is this many times the target. It costs nothing where decoding stops early."""
LEAST_CEILING = 256
"""Tokens that a ceiling leaves at least: a rare long output is better extended than cut."""
EXPLORE_EVERY, EXPLORE = 50, 1.5
"""Where lengths are known only from below, so often so much more is allowed, to see what happens."""
LAST_RESORT = 0.99
"""The quantile that a retry allows for at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a budget is what it is."""

    budget: Budget
    median: int
    """Tokens that half of the outputs do not exceed."""
    p97: int
    price: float
    """Positions that a call beyond the first is worth here."""
    miss: float
    """The expected probability that `budget.target` is not enough."""
    levels: Sequence[tuple[str, int]]
    """From general to special: what is looked at, and how many outcomes it has seen."""
    experts: Sequence[tuple[str, float]]
    """What else is looked at, and its say in 0..1, the weightiest first."""


class LengthPredictor:
    """Predicts a budget for each step and learns from every outcome.

    A store that fails never stops a run: the predictor goes on with what it has in memory, and says
    so in `problems`. May be used from any thread. The same history gives the same budgets.

    Args:
        store: Where lengths are kept between runs; None keeps them in memory.
        target_miss: The share of outputs, in (0, 0.5], that need more than their target.
        ceiling: The most tokens that any budget allows, unless a schema's minimum alone needs more.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        target_miss: float = 0.03,
        ceiling: int = DEFAULT_CEILING,
    ) -> None:
        if not 0 < target_miss <= 0.5:
            raise ConfigurationError(f"`target_miss` must be in (0, 0.5], got {target_miss!r}")
        if not 0 < ceiling <= LARGEST:
            raise ConfigurationError(f"`ceiling` must be in 1..{LARGEST}, got {ceiling!r}")
        self._store = store
        self._target_miss = target_miss
        self._ceiling = ceiling
        self._learned = Learned(shipped_prior())
        self._problems: list[str] = []
        self._lock = threading.Lock()
        self._seen: tuple[StepContext, View] | None = None
        """The newest view, as long as nothing has been learned since."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong with the store, one line each, for whoever reports it."""
        return tuple(self._problems)

    def predict(self, context: StepContext, cost: CostModel) -> Budget:
        """The budget of least expected cost.

        `target` and `ceiling` are multiples of `cost.quantum`, at least `context.schema_min`, and
        no more than `context.schema_max` needs.
        """
        with self._lock:
            learned = self._recall()
            view = self._view(learned, context)
            return self._decide(learned, context, view, cost)

    def recover(self, context: StepContext, cost: CostModel, budget: Budget, used: int) -> Budget:
        """The budget for going on after an output that did not fit `budget`.

        Where the backend extends or continues, `target` is the whole length that is now the best
        guess, what is written included; where it retries, it is a canvas that nearly every output
        fits, at least twice the one that did not. `ceiling` is the ceiling of a first budget, or
        what the retry needs. Learns nothing: `observe` the final outcome with the first budget.

        Args:
            context: The context that `budget` was predicted for.
            cost: The backend's cost model; its `recovery` says what can be done.
            budget: The one that was not enough.
            used: Tokens that were written within it.
        """
        quantum = cost.quantum
        with self._lock:
            learned = self._recall()
            view = self._view(learned, context)
            price = math.exp(learned.log_price(context, view))
        _, most = self._range(context, quantum)
        floor = min(most, rounded_up(max(used, budget.target) + 1, quantum))
        if cost.recovery == "retry":
            enough = view.lengths.quantile(LAST_RESORT)
            target = min(most, rounded_up(max(2 * budget.target, enough), quantum))
        else:
            known = max(used, budget.target)
            target = known + cheapest(
                cost,
                view.lengths.after(known),
                least=max(quantum, floor - known),
                most=max(quantum, most - known),
                price=price,
                prompt=context.prompt_tokens or 0,
            )
            target = min(most, rounded_up(target, quantum))
        target = max(target, floor)
        ceiling = max(target, budget.ceiling, self._roomy(target, most, quantum))
        return Budget(
            target=target, ceiling=ceiling, source=f"{cost.recovery} after {budget.source}"
        )

    def observe(self, context: StepContext, budget: Budget, used: int, truncated: bool) -> None:
        """Learn from an outcome.

        Args:
            context: The context that the budget was predicted for.
            budget: The budget that the first attempt had.
            used: Tokens of the final output, after all recovery, in the backend's own count.
            truncated: Whether the output was cut, so that its true length is unknown and longer.
        """
        if used < 0:
            raise ConfigurationError(f"`used` must not be negative, got {used!r}")
        outcome = Outcome(context=context, target=budget.target, used=used, truncated=truncated)
        with self._lock:
            seen, self._seen = self._seen, None
            view = seen[1] if seen and (seen[0] is context or seen[0] == context) else None
            if self._store is not None:
                at = self._learned
                try:
                    self._store.add(outcome, target_miss=self._target_miss, view=view)
                except StoreError as error:
                    self._leave_store(error)
                else:
                    self._learned = self._store.learned
                    return
                view = view if self._learned is at else None
            learn(self._learned, outcome, target_miss=self._target_miss, view=view)

    def explain(self, context: StepContext, cost: CostModel) -> Explanation:
        """The budget that `predict` gives, and where it comes from."""
        with self._lock:
            learned = self._recall()
            view = self._view(learned, context)
            budget = self._decide(learned, context, view, cost)
            price = math.exp(learned.log_price(context, view))
        names = ("kind", "size of the schema", "agent", "tool", "model")
        counts = (learned.nodes.get(key) for key in view.path)
        return Explanation(
            budget=budget,
            median=view.lengths.quantile(0.5),
            p97=view.lengths.quantile(0.97),
            price=price,
            miss=view.lengths.tail(budget.target),
            levels=[
                (name, node.seen if node else 0) for name, node in zip(names, counts, strict=True)
            ],
            experts=sorted(zip(view.experts, view.weights, strict=True), key=lambda one: -one[1]),
        )

    def keys(self) -> dict[Key, int]:
        """The keys that have been learned about, down to the model, and how often each was seen."""
        with self._lock:
            nodes = self._recall().nodes
            return {key: node.seen for key, node in nodes.items() if _is_step(key)}

    def save(self, path: str | Path) -> None:
        """Write all that is known as JSON: counts and names.

        Raises `StoreError`. A file is replaced whole or not at all.
        """
        with self._lock:
            text = to_json(self._learned if self._store is None else self._store.sync())
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StoreError(
                f"learned lengths cannot be written to {str(target)!r}: {error.strerror}"
            ) from error

    def load(self, path: str | Path) -> None:
        """Replace all that is known, in the store too, by what `save` wrote.

        Raises `StoreError` and then changes nothing.
        """
        learned = _loaded(path)
        with self._lock:
            self._replace(learned)

    def merge(self, path: str | Path) -> None:
        """Add what `save` wrote, perhaps elsewhere, to what is known, in the store too.

        Raises `StoreError` and then changes nothing.
        """
        other = _loaded(path)
        with self._lock:
            learned = self._copied()
            merge(learned, other)
            self._replace(learned)

    def adopt(self, model: str, *, of: str, factor: float = 1.0) -> int:
        """Start a model from what is known of another, at a fifth of its weight.

        Returns how many histograms that made.

        Args:
            model: The new model, as contexts name it; what it has learned itself stays.
            of: The model to start from.
            factor: Tokens that the new tokenizer spends for each of the old one's.
        """
        if not 0 < factor < math.inf:
            raise ConfigurationError(f"`factor` must be a positive number, got {factor!r}")
        with self._lock:
            learned = self._copied()
            made = adopt(learned, model=model, of=of, factor=factor)
            self._replace(learned)
        return made

    def _copied(self) -> Learned:
        known = self._learned if self._store is None else self._store.sync()
        return from_json(to_json(known), where="what is known", prior=shipped_prior())

    def _replace(self, learned: Learned) -> None:
        if self._store is not None:
            self._store.replace(learned)
        self._learned, self._seen = learned, None

    def _recall(self) -> Learned:
        """What is known now. A store that fails is left."""
        if self._store is not None:
            before, at = self._learned, self._store.position
            try:
                self._learned = self._store.sync()
            except StoreError as error:
                self._leave_store(error)
            else:
                if self._learned is not before or self._store.position != at:
                    self._seen = None
        return self._learned

    def _view(self, learned: Learned, context: StepContext) -> View:
        if self._seen is None or self._seen[0] != context:
            self._seen = (context, learned.view(context))
        return self._seen[1]

    def _leave_store(self, error: StoreError) -> None:
        """Go on in memory. Waiting for a lock at every step would be worse than forgetting."""
        if self._store is not None:
            self._learned = self._store.learned
            self._store.close()
            self._store = None
        self._problems.append(f"{error}; lengths learned from here on are kept in memory only")

    def _decide(
        self, learned: Learned, context: StepContext, view: View, cost: CostModel
    ) -> Budget:
        quantum = cost.quantum
        least, most = self._range(context, quantum)
        leaf = learned.nodes.get(view.path[-1])
        floor = min(most, rounded_up(leaf.floor, quantum)) if leaf else 0
        target = cheapest(
            cost,
            view.lengths,
            least=max(least, floor),
            most=most,
            price=math.exp(learned.log_price(context, view)),
            prompt=context.prompt_tokens or 0,
        )
        if leaf and leaf.cut and leaf.seen % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            target = min(most, rounded_up(math.ceil(EXPLORE * target), quantum))
        ceiling = self._roomy(target, most, quantum)
        return Budget(target=target, ceiling=ceiling, source=_source(context, learned, view))

    def _roomy(self, target: int, most: int, quantum: int) -> int:
        return min(most, rounded_up(max(ROOM * target, LEAST_CEILING), quantum))

    def _range(self, context: StepContext, quantum: int) -> tuple[int, int]:
        least = rounded_up(max(1, context.schema_min), quantum)
        most = self._ceiling // quantum * quantum
        if context.schema_max is not None:
            most = min(most, rounded_up(context.schema_max, quantum))
        return least, max(least, most)


def _source(context: StepContext, learned: Learned, view: View) -> str:
    """Where a budget came from: the deepest of kind, agent, tool and model with a history."""
    tool = context.tool or context.agent
    for key, name in zip(reversed(view.path), (tool, tool, context.agent, "", ""), strict=True):
        if (node := learned.nodes.get(key)) is not None:
            place = f"{context.kind}/{name}" if name else context.kind
            return f"history:{place} (n={node.seen})"
    return f"prior:{context.kind}"


def _is_step(key: Key) -> bool:
    """Whether a key names kind, agent, tool and model, and no more."""
    return len(key) == 4 and isinstance(key[1], str)


def _loaded(path: str | Path) -> Learned:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise StoreError(f"learned lengths cannot be read from {str(path)!r}: {reason}") from error
    return from_json(text, where=repr(str(path)), prior=shipped_prior())
