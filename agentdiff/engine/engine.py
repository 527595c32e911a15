"""The engine: sequences join and leave at step boundaries, and their active blocks share one forward pass.

Law: alone equals batched. A sequence has its own prefix, grammar, policy and random numbers; the batch only saves time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from agentdiff.engine.buckets import Buckets
from agentdiff.engine.load import load_family
from agentdiff.engine.outcome import Update, failure, finish, forced_end
from agentdiff.engine.regimes.bidirectional import Bidirectional
from agentdiff.engine.regimes.block_causal import BlockCausal
from agentdiff.engine.regimes.canvas import CanvasRegime
from agentdiff.engine.revise import InsertDelete
from agentdiff.engine.sequence import Sequence
from agentdiff.engine.speculate import SelfVerify
from agentdiff.errors import ConfigurationError

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.engine.families.base import Attention, CanvasFamily, Family, Shift
    from agentdiff.engine.params import DecodeOutput, DecodeParams
    from agentdiff.engine.prefix_cache import PrefixStats
    from agentdiff.engine.regimes.advance import Regime

PREFIX_BYTES = 256 * 2**20


class Engine:
    """Decodes many sequences on one model. Not thread-safe: call it from one thread at a time."""

    def __init__(
        self,
        family: Family | CanvasFamily,
        *,
        max_batch: int = 64,
        max_cache_bytes: int | None = None,
        prefix_bytes: int = PREFIX_BYTES,
        buckets: Buckets | None = None,
    ) -> None:
        """Set up an empty engine.

        Args:
            family: The model.
            max_batch: Sequences decoded together; others wait.
            max_cache_bytes: Keys and values that sequences decoded together may take, counted at their ceilings;
                others wait. One sequence is always let in. None is no limit.
            prefix_bytes: Keys and values kept for later requests that begin the same way; 0 keeps none.
            buckets: Round the shapes of passes up; None runs them as they are.
        """
        self.family = family
        self.max_batch = max_batch
        self.max_cache_bytes = max_cache_bytes
        self._regime = _regime(family, prefix_bytes=prefix_bytes, buckets=buckets)
        self._ids = itertools.count()
        self._active: dict[int, Sequence] = {}
        self._waiting: dict[int, Sequence] = {}

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        adapter: str | Path | None = None,
        family: str | None = None,
        attention: Attention | None = None,
        shift: Shift | None = None,
        block_len: int | None = None,
        mask_id: int | None = None,
        attn_implementation: str = "sdpa",
        device_map: str | Mapping[str, Any] | None = None,
        max_memory: Mapping[Any, Any] | None = None,
        offload_folder: str | Path | None = None,
        quantization_config: Any = None,
        torch_compile: str | None = None,
        max_batch: int = 64,
        max_cache_bytes: int | None = None,
        prefix_bytes: int = PREFIX_BYTES,
        buckets: Buckets | None = None,
    ) -> Engine:
        """Load a checkpoint, a folder or a hub id, into an engine.

        See `load_family` for what concerns the model and `Engine` for the rest. On a GPU `max_cache_bytes` is by
        default four fifths of what is free once the model is loaded, less `prefix_bytes`. With `torch_compile`,
        `buckets` is by default `Buckets()`.

        Raises:
            ConfigurationError: See `load_family`.
        """
        model = load_family(
            path_or_id,
            device=device,
            dtype=dtype,
            adapter=adapter,
            family=family,
            attention=attention,
            shift=shift,
            block_len=block_len,
            mask_id=mask_id,
            attn_implementation=attn_implementation,
            device_map=device_map,
            max_memory=max_memory,
            offload_folder=offload_folder,
            quantization_config=quantization_config,
            torch_compile=torch_compile,
        )
        if torch_compile is not None and buckets is None:
            buckets = Buckets()
        if max_cache_bytes is None and model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(model.device)
            max_cache_bytes = max(0, free * 4 // 5 - prefix_bytes)
        return cls(
            model,
            max_batch=max_batch,
            max_cache_bytes=max_cache_bytes,
            prefix_bytes=prefix_bytes,
            buckets=buckets,
        )

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._active or self._waiting)

    @property
    def prefix_stats(self) -> PrefixStats:
        """What the prefixes kept from earlier requests have saved."""
        return self._regime.prefixes.stats

    def add(self, prompt: Many[int], params: DecodeParams, matcher: Matcher | None = None) -> int:
        """Queue a sequence; it joins the batch at the next step. Returns its id.

        Args:
            prompt: Token ids.
            params: Lengths, policy, temperature, seed. A ceiling beyond the context is lowered to it.
            matcher: Grammar state at the start of the reply; owned by the engine from here on.

        Raises:
            ConfigurationError: The prompt does not fit the context together with the target, the matcher may write
                more than the ceiling, or the model cannot do what the parameters ask for.
        """
        traits = self.family.traits
        room = traits.context_len - len(prompt) - len(params.suffix)
        if params.target > room:
            raise ConfigurationError(
                f"the prompt has {len(prompt)} tokens and the reply is expected to take {params.target}, but "
                f"the model's context holds {traits.context_len}; shorten the prompt"
            )
        if params.ceiling > room:
            params = replace(params, ceiling=room)
        if matcher is not None and matcher.tokens_left > params.ceiling:
            raise ConfigurationError(
                f"the matcher may write {matcher.tokens_left} tokens, but the reply ends after "
                f"{params.ceiling}; start the matcher with that budget"
            )
        if params.block_ends is not None and traits.attention != "bidirectional":
            raise ConfigurationError(
                f"`block_ends` needs a bidirectional model, {traits.name} has blocks of its own"
            )
        is_drawn = matcher is not None and params.temperature > 0
        if is_drawn and isinstance(params.speculation, SelfVerify):
            raise ConfigurationError(
                f"`SelfVerify` needs `temperature` 0 under a grammar, got {params.temperature!r}"
            )
        edit_ids = None
        if traits.delete_id is not None and traits.insert_id is not None:
            edit_ids = traits.delete_id, traits.insert_id
        if isinstance(params.revision, InsertDelete) and edit_ids is None:
            raise ConfigurationError(
                f"`InsertDelete` needs a model that names ids for it, {traits.name} has none; use `Edit`"
            )
        self._regime.check(prompt, params)
        number = next(self._ids)
        self._waiting[number] = Sequence(
            id=number,
            prompt=tuple(prompt),
            params=params,
            policy=params.policy or traits.policy,
            eos_ids=frozenset(traits.eos_ids if params.eos_ids is None else params.eos_ids),
            matcher=matcher,
            edit_ids=edit_ids,
        )
        return number

    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        """Drop a sequence and free what it holds; unknown or finished ids are ignored."""
        self._waiting.pop(number, None)
        if number in self._active:
            self._regime.leave(self._active.pop(number))

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Let waiting sequences join, store finished blocks, then denoise every active block once.

        What fails for one sequence (its prefill, its grammar) ends that one, with an update that says so. What fails
        in a pass over all of them is raised and changes none: step again, or cancel some.
        """
        ended = self._let_in()
        if ended or not self._active:
            return ended
        updates = self._regime.step(list(self._active.values()))
        for update in updates:
            if update.is_last:
                self.cancel(update.sequence)
        return updates

    def generate(
        self,
        prompts: Many[Many[int]],
        params: DecodeParams | Many[DecodeParams],
        constraints: Many[Matcher | None] | None = None,
    ) -> list[DecodeOutput]:
        """Decode prompts together, to their ends.

        Other sequences in the engine advance beside them, and their updates are lost.

        Args:
            prompts: Token ids of each.
            params: For all of them, or one for each.
            constraints: A matcher, or None, for each.

        Raises:
            ConfigurationError: See `add`.
        """
        many = list(params) if isinstance(params, Many) else [params] * len(prompts)
        matchers = list(constraints or [None] * len(prompts))
        numbers: list[int] = []
        outputs: dict[int, DecodeOutput] = {}
        try:
            for prompt, own, matcher in zip(prompts, many, matchers, strict=True):
                numbers.append(self.add(prompt, own, matcher))
            while len(outputs) < len(numbers):
                for update in self.step():
                    if update.sequence in numbers and update.error is not None:
                        raise update.error
                    if update.output is not None:
                        outputs[update.sequence] = update.output
        finally:
            for number in numbers:
                self.cancel(number)
        return [outputs[number] for number in numbers]

    def _let_in(self) -> list[Update]:
        """Let waiting sequences join while there is room; the ends of those that never had to."""
        ended: list[Update] = []
        joining: list[Sequence] = []
        while self._waiting and self._has_room(joining):
            sequence = self._waiting.pop(next(iter(self._waiting)))
            rest = sequence.matcher and forced_end(sequence.matcher, sequence.params.ceiling)
            if rest is not None:  # the grammar has said it all
                sequence.forced_tokens = len(rest)
                ended.append(finish(sequence, rest))
            else:
                joining.append(sequence)
        if joining:
            try:
                self._regime.join(joining)
            except Exception:
                for sequence in reversed(joining):
                    self._regime.leave(sequence)
                ended += self._join_alone(joining)
            else:
                self._active |= {sequence.id: sequence for sequence in joining}
        return ended

    def _join_alone(self, joining: Many[Sequence]) -> list[Update]:
        """One after the other, so that a failure is one sequence's own."""
        failed: list[Update] = []
        for sequence in joining:
            try:
                self._regime.join([sequence])
            except Exception as error:
                self._regime.leave(sequence)
                failed.append(failure(sequence, error))
            else:
                self._active[sequence.id] = sequence
        return failed

    def _has_room(self, joining: Many[Sequence]) -> bool:
        """Whether the next waiting sequence may join beside those active and about to."""
        present = [*self._active.values(), *joining]
        if not present or len(present) >= self.max_batch:
            return not present
        if self.max_cache_bytes is None:
            return True
        asking = [*present, next(iter(self._waiting.values()))]
        widest = max(self._regime.columns(sequence) for sequence in asking)
        needed = len(asking) * widest * self._regime.buffer.bytes_per_position
        return needed <= self.max_cache_bytes


def _regime(family: Family | CanvasFamily, *, prefix_bytes: int, buckets: Buckets | None) -> Regime:
    match family.traits.attention:
        case "block_causal":
            return BlockCausal(cast("Family", family), prefix_bytes=prefix_bytes, buckets=buckets)
        case "bidirectional":
            return Bidirectional(cast("Family", family), buckets=buckets)
        case "canvas":
            return CanvasRegime(
                cast("CanvasFamily", family), prefix_bytes=prefix_bytes, buckets=buckets
            )
