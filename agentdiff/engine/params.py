"""What a decode is asked for, what it gives and what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentdiff.engine.block_ends import BlockEnds
from agentdiff.engine.renoise import Renoise
from agentdiff.engine.revise import Revision
from agentdiff.engine.speculate import Speculation
from agentdiff.engine.unmask import UnmaskPolicy
from agentdiff.errors import ConfigurationError

CacheMode = Literal["none", "block", "prefix", "dual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeParams:
    """How one sequence is decoded."""

    target: int
    """Tokens expected: bidirectional models lay out a canvas of them. Blocks beyond count as extensions."""
    ceiling: int
    """Tokens after which decoding ends, the end token not counted."""
    policy: UnmaskPolicy | Renoise | None = None
    """Which positions are committed in a step (canvas models: a `Renoise`); None is the family's own rule."""
    revision: Revision | None = None
    """What may be taken back; None leaves every committed token as it is."""
    speculation: Speculation | None = None
    """Guesses that later passes confirm; None takes a pass for every step."""
    cache: CacheMode | None = None
    """None is exact: `block` for block-causal models, `none` for bidirectional ones. Those may trade exactness for
    speed (Fast-dLLM, arXiv 2505.22618): `prefix` keeps what stands before the block, `dual` also what follows it."""
    refresh_every: int | None = None
    """Steps between passes over the whole canvas for `prefix` and `dual`; None refreshes when a block begins."""
    block_len: int | None = None
    """Positions denoised together; None is the family's. In block-causal models a part of the model's block."""
    block_ends: BlockEnds | None = None
    """Bidirectional models: end blocks at delimiters; None gives all the same length."""
    contract_at: float | None = None
    """Bidirectional models: when a block begins, cut the end of the canvas where an end token has at least this
    probability (after rho-EOS); if the reply goes on, the canvas grows again. None never cuts."""
    suffix: tuple[int, ...] = ()
    """What stands behind the reply, which is to fit before it (infilling). Block-causal models do not see it; of a
    canvas model's canvas it takes what the ceiling leaves."""
    temperature: float = 0.0
    """0 takes the most probable token; above it, tokens are drawn (float64 Gumbel, arXiv 2409.02908)."""
    top_p: float = 1.0
    """Draw among the likeliest tokens of this total probability; under a grammar, among those it allows (see
    `Matcher.propose`). Confidence ignores it."""
    seed: int = 0
    """Seeds this sequence alone: its output does not depend on its neighbours in the batch."""
    guidance: float = 0.0
    """Classifier-free guidance against the prompt masked out (LLaDA's `cfg_scale`); bidirectional, cache `none`."""
    eos_ids: tuple[int, ...] | None = None
    """What ends the reply; None is the family's."""
    eos_stop: Literal["token", "block", "ceiling"] = "token"
    """When an end token ends the decode: as soon as nothing before it is masked, when its block is complete, or never;
    the reply is cut there in any case."""
    record: bool = False
    """Keep the canvas after every step."""

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.ceiling:
            raise ConfigurationError(
                f"`target` must be in 1..ceiling, got target={self.target!r}, ceiling={self.ceiling!r}"
            )
        if not 0 <= self.temperature < math.inf:
            raise ConfigurationError(
                f"`temperature` must be a number from 0 on, got {self.temperature!r}"
            )
        if self.contract_at is not None and not 0 < self.contract_at <= 1:
            raise ConfigurationError(f"`contract_at` must be in (0, 1], got {self.contract_at!r}")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"`top_p` must be in (0, 1], got {self.top_p!r}")
        for name, value in (("block_len", self.block_len), ("refresh_every", self.refresh_every)):
            if value is not None and value < 1:
                raise ConfigurationError(f"`{name}` must be positive, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStats:
    """What one sequence cost."""

    forwards: int = 0
    """Forward passes that this sequence took part in: prefill, denoising steps, block stores."""
    positions: int = 0
    """Token positions pushed through the model for this sequence."""
    steps: int = 0
    """Denoising steps."""
    blocks: int = 0
    forced_tokens: int = 0
    """Tokens that the grammar left no choice about, the end token not counted."""
    reused_tokens: int = 0
    """Prompt positions whose keys and values came from earlier requests."""
    revised_tokens: int = 0
    """Committed tokens that were replaced or masked again."""
    constraint_s: float = 0.0
    """Seconds of wall time in the matcher; other threads may have had the processor meanwhile."""
    decode_s: float = 0.0
    """Seconds from the start of the prefill to the last commit."""
    extensions: int = 0
    """Blocks decoded beyond `target`."""
    confidence: float = 1.0
    """The lowest probability at which a token was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutput:
    """A finished sequence."""

    tokens: tuple[int, ...]
    """Generated ids, without the end token."""
    finish: Literal["stop", "length"]
    """`stop`: the end token, or a complete grammar; `length`: the ceiling."""
    stats: DecodeStats
    trace: tuple[tuple[int, ...], ...] | None = None
    """Where `record` was asked: prompt and reply after every denoising step, masked positions holding the mask id."""
