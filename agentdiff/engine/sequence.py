"""One sequence on its way: prompt, finished blocks, the active block, its grammar and its random numbers."""

from __future__ import annotations

import time
from copy import copy, deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentdiff.engine.params import DecodeOutput, DecodeParams, DecodeStats
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.unmask import UnmaskPolicy

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.engine.insert_delete import History
    from agentdiff.engine.sampling import Answer

MASKED = -1
"""Stands in `Sequence.block` where nothing is committed."""
COLDEST = 1e-3
"""Temperatures below it are 0: scores divided by less would leave the range that sums work in."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens of the active block that wait to be checked."""

    places: NDArray[np.intp]
    """[n] the first masked positions, one behind the other."""
    block: NDArray[np.int64]
    """[L] the block with every mask filled."""
    log_probs: Tensor | None
    """[n, V] what the tokens at `places` were drawn from; None where they are the likeliest."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one decode."""

    id: int
    prompt: tuple[int, ...]
    params: DecodeParams
    policy: UnmaskPolicy | Renoise
    eos_ids: frozenset[int]
    matcher: Matcher | None
    edit_ids: tuple[int, int] | None = None
    """What the model predicts to delete a position and to insert one; None where it cannot."""
    started: float = field(default_factory=time.perf_counter)
    rng: np.random.Generator = field(init=False)
    row: int = -1
    """Its row of the engine's cache; -1 where it has none."""
    done: list[int] = field(default_factory=list[int])
    """Tokens of finished blocks."""
    block: NDArray[np.int64] = field(init=False)
    """The generated part of the active block: token ids, MASKED where nothing is committed."""
    tail: tuple[int, ...] = ()
    """Prompt tokens that share the active block, before `block`."""
    canvas_len: int = 0
    """Bidirectional models: generated positions laid out so far."""
    carry: Tensor | None = None
    """[V] logits of the active block's first position, where they come from the block before it."""
    step: int = 0
    """Denoising steps that the active block has had."""
    opened: int = 0
    """Masks that the active block began with."""
    is_settled: bool = False
    """Whether the active block is full and stays as it is."""
    is_stored: bool = False
    """Whether the cache already holds the settled block."""
    draft: Draft | None = None
    """Set where the next pass checks a draft instead of denoising."""
    scores: Answer | None = None
    """What the last pass said of the active block, where states are guessed from it."""
    post_steps: int = 0
    """Steps since the active block was full."""
    history: History | None = None
    """Where positions come and go: what has become of the active block."""
    since_refresh: int = 0
    """Bidirectional models: steps since keys and values were computed."""
    streamed: int = 0
    """Tokens of the reply already reported as final."""
    expected_blocks: int = 0
    """Blocks that `target` tokens take; further ones are extensions."""
    forwards: int = 0
    positions: int = 0
    steps: int = 0
    blocks: int = 0
    forced_tokens: int = 0
    reused_tokens: int = 0
    revised_tokens: int = 0
    constraint_s: float = 0.0
    confidence: float = 1.0
    trace: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    _generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.params.seed)
        self.block = np.empty(0, np.int64)

    @property
    def begin(self) -> int:
        """The absolute position of `block`."""
        return len(self.prompt) + len(self.done)

    @property
    def room(self) -> int:
        """Tokens that may still be written from the active block on."""
        return self.params.ceiling - len(self.done)

    @property
    def temperature(self) -> float:
        """What tokens are drawn at; 0 for the most probable."""
        return self.params.temperature if self.params.temperature >= COLDEST else 0.0

    @property
    def is_full(self) -> bool:
        """Whether the active block has no mask."""
        return not bool((self.block == MASKED).any())

    def generator(self, device: torch.device) -> torch.Generator:
        """Where this sequence's own draws on a device come from."""
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self.params.seed)
        return self._generator

    def open_block(self, length: int, *, tail: tuple[int, ...] = ()) -> None:
        """Begin a block of `length` generated positions, all masked."""
        self.block = np.full(length, MASKED, np.int64)
        self.tail = tail
        self.opened = length
        self.is_settled = self.is_stored = False
        self.scores = self.history = None
        self.step = self.post_steps = 0
        self.blocks += 1

    def close_block(self) -> None:
        """The active block's tokens are final; a new block must be opened."""
        self.done.extend(self.block.tolist())

    def guess(self) -> Sequence:
        """A copy that may be stepped on without changing this one."""
        other = copy(self)
        other.block = self.block.copy()
        other.matcher = self.matcher and self.matcher.copy()
        other.history = deepcopy(self.history)
        return other

    def leading(self) -> list[int]:
        """Tokens of the active block that stand before its first mask."""
        masked = self.block == MASKED
        return self.block[: int(masked.argmax()) if masked.any() else len(masked)].tolist()

    def pushed(self, positions: int) -> None:
        """Count one forward pass."""
        self.forwards += 1
        self.positions += positions

    def output(self, tokens: list[int], *, is_complete: bool) -> DecodeOutput:
        """The finished sequence; `tokens` are all generated ids."""
        return DecodeOutput(
            tokens=tuple(tokens),
            finish="stop" if is_complete else "length",
            stats=DecodeStats(
                forwards=self.forwards,
                positions=self.positions,
                steps=self.steps,
                blocks=self.blocks,
                forced_tokens=self.forced_tokens,
                reused_tokens=self.reused_tokens,
                revised_tokens=self.revised_tokens,
                constraint_s=self.constraint_s,
                decode_s=time.perf_counter() - self.started,
                extensions=max(0, self.blocks - self.expected_blocks),
                confidence=self.confidence,
            ),
            trace=tuple(self.trace) if self.params.record else None,
        )
