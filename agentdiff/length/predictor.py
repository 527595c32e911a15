"""How many tokens a step will need: context in, `Budget` out, outcome back in.

    context -> distribution (histograms along its path) -> budget of least expected cost
    outcome -> the histograms along the path, and the price of a miss for its kind

The share of first attempts that do not fit is steered to `target_miss` for each kind of step. That
is a statement about the long run of a kind, not about one call and not about the first dozens.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import cast

from agentdiff.errors import ConfigurationError, StoreError
from agentdiff.generation import Budget, StepKind
from agentdiff.length.context import StepContext
from agentdiff.length.cost import LARGEST, CostModel
from agentdiff.length.histogram import Node, Tail, beyond, exactly, predictives, tail_of
from agentdiff.length.known import Control, Known, from_json, to_json
from agentdiff.length.store import Store

DEFAULT_CEILING = 4096
ROOM = 4
"""A ceiling is this many times the target. It costs nothing where decoding stops early."""
LEAST_CEILING = 256
"""Tokens that a ceiling leaves at least: a rare long output is better extended than cut."""
GROWTH = 0.06
"""Budgets that are compared lie a quantum or this share apart, whichever is more."""


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
        self._prior = _shipped_prior()
        self._nodes: dict[str, Node] = {}
        self._controls: dict[StepKind, Control] = {}
        self._problems: list[str] = []
        self._lock = threading.Lock()

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong with the store, one line each, for whoever reports it."""
        return tuple(self._problems)

    def predict(self, context: StepContext, cost: CostModel) -> Budget:
        """The budget of least expected cost.

        `target` and `ceiling` are multiples of `cost.quantum`, at least `context.schema_min`, and
        no more than `context.schema_max` needs.
        """
        keys = _path(context)
        with self._lock:
            known = self._recall(keys, context.kind)
        nodes = [known.nodes.get(key) for key in keys]
        distribution = predictives(nodes, self._prior[context.kind])[-1]
        control = known.controls.get(context.kind, Control())
        least, most = self._range(context, cost.quantum)
        leaf = nodes[-1]
        floor = min(most, _up(leaf.floor, cost.quantum)) if leaf else 0
        target = _cheapest(
            _candidates(max(least, floor), most, cost.quantum),
            cost,
            tail_of(distribution, offset=context.schema_min),
            price=control.price,
        )
        ceiling = min(most, _up(max(ROOM * target, LEAST_CEILING), cost.quantum))
        return Budget(target=target, ceiling=ceiling, source=_source(context, nodes))

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
        keys = _path(context)

        def learn(known: Known) -> Known:
            return self._learned(known, keys, context, budget, used=used, truncated=truncated)

        with self._lock:
            newer: Known | None = None
            if self._store is not None:
                try:
                    newer = self._store.update(keys, context.kind, learn)
                except StoreError as error:
                    self._leave_store(error)
            self._keep(newer or learn(self._in_memory(keys, context.kind)))

    def save(self, path: str | Path) -> None:
        """Write all that is known as JSON: counts and names.

        Raises `StoreError`. A file is replaced whole or not at all.
        """
        with self._lock:
            if self._store is None:
                known = Known(nodes=self._nodes, controls=self._controls)
            else:
                known = self._store.everything()
            text = to_json(known)
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
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise StoreError(
                f"learned lengths cannot be read from {str(path)!r}: {reason}"
            ) from error
        known = from_json(text, where=repr(str(path)))
        with self._lock:
            if self._store is not None:
                self._store.replace(known)
            self._nodes.clear()
            self._controls.clear()
            self._keep(known)

    def _recall(self, keys: Sequence[str], kind: StepKind) -> Known:
        if self._store is not None:
            try:
                known = self._store.read(keys, kind)
            except StoreError as error:
                self._leave_store(error)
            else:
                self._keep(known)
                return known
        return self._in_memory(keys, kind)

    def _in_memory(self, keys: Sequence[str], kind: StepKind) -> Known:
        return Known(
            nodes={key: self._nodes[key] for key in keys if key in self._nodes},
            controls={kind: self._controls[kind]} if kind in self._controls else {},
        )

    def _keep(self, known: Known) -> None:
        """Hold a copy in memory too: what goes on if the store fails."""
        self._nodes.update(known.nodes)
        self._controls.update(known.controls)

    def _leave_store(self, error: StoreError) -> None:
        """Go on in memory. Waiting for a lock at every step would be worse than forgetting."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._problems.append(f"{error}; lengths learned from here on are kept in memory only")

    def _learned(
        self,
        known: Known,
        keys: Sequence[str],
        context: StepContext,
        budget: Budget,
        *,
        used: int,
        truncated: bool,
    ) -> Known:
        nodes = [known.nodes.get(key) for key in keys]
        if truncated:
            cut = max(used, budget.target) - context.schema_min
            shares = [beyond(cut, at) for at in predictives(nodes, self._prior[context.kind])]
        else:
            shares = [exactly(max(0, used - context.schema_min))] * len(keys)
        floor = budget.target if truncated else 0
        control = known.controls.get(context.kind, Control())
        missed = truncated or used > budget.target
        return Known(
            nodes={
                key: (node or Node()).plus(share, floor=floor)
                for key, node, share in zip(keys, nodes, shares, strict=True)
            },
            controls={context.kind: control.plus(missed=missed, target=self._target_miss)},
        )

    def _range(self, context: StepContext, quantum: int) -> tuple[int, int]:
        least = _up(max(1, context.schema_min), quantum)
        most = self._ceiling // quantum * quantum
        if context.schema_max is not None:
            most = min(most, _up(context.schema_max, quantum))
        return least, max(least, most)


def _path(context: StepContext) -> tuple[str, ...]:
    """Keys of the context's nodes: kind > agent > tool > model > magnitude of the newest input."""
    names: list[str | int | None] = [context.kind, context.agent, context.tool, context.model]
    if context.last_tokens is not None:
        names.append(context.last_tokens.bit_length())
    return tuple(json.dumps(names[: depth + 1], ensure_ascii=False) for depth in range(len(names)))


def _candidates(least: int, most: int, quantum: int) -> Iterator[int]:
    budget = least
    while budget < most:
        yield budget
        budget += max(quantum, int(budget * GROWTH) // quantum * quantum)
    yield most


def _cheapest(candidates: Iterator[int], cost: CostModel, tail: Tail, *, price: float) -> int:
    """The smallest of the candidates (which ascend) that cost least."""
    best, least = 0, math.inf
    for budget in candidates:
        if budget >= least:
            break  # a budget costs at least itself
        positions, calls = cost.expected(budget, tail)
        if positions + price * calls < least:
            best, least = budget, positions + price * calls
    return best


def _source(context: StepContext, nodes: Sequence[Node | None]) -> str:
    """Where a budget came from: the deepest of kind, agent, tool and model with a history."""
    tool = context.tool or context.agent
    for name, node in reversed(list(zip(("", context.agent, tool, tool), nodes, strict=False))):
        if node is not None:
            place = f"{context.kind}/{name}" if name else context.kind
            return f"history:{place} (n={node.seen})"
    return f"prior:{context.kind}"


def _up(tokens: int, quantum: int) -> int:
    return -(-tokens // quantum) * quantum


def _shipped_prior() -> Mapping[StepKind, Sequence[float]]:
    text = files("agentdiff.length").joinpath("prior.json").read_text(encoding="utf-8")
    return cast("Mapping[StepKind, Sequence[float]]", json.loads(text))
