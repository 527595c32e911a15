"""Taking tokens back: what may happen to a committed token while its block is active, as values."""

from __future__ import annotations

from dataclasses import dataclass

from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace a token in place when the model is surer of another one (T2T editing, LLaDA2.1).

    Edits run in every step, beside the commits. A block is complete when a step that found no mask edits nothing, or
    after `post_steps` steps without a mask. Quality mode is 0.5 beside `Threshold(0.7)`, speed mode 0 beside
    `Threshold(0.5)`.
    """

    threshold: float = 0.9
    """The other token's probability must exceed it."""
    post_steps: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in [0, 1], got {self.threshold!r}")
        if self.post_steps < 0:
            raise ConfigurationError(f"`post_steps` must not be negative, got {self.post_steps!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertDelete(Edit):
    """Edit, and let positions of the block come and go (LLaDA2.2's Levenshtein editing).

    For models that were trained to predict two more tokens. Where one deletes, its position goes and what follows
    moves up; where the other inserts, a mask comes before what stands there and what follows moves down. The block
    keeps its length: masks fill it up at the end, and what is pushed over its end is lost.

    The rule is that of the serving engine SGLang (its joint threshold with insertion and deletion): while masks of the
    block's own are left, a step commits one more than there are masks that edits brought in, or all that the policy
    chooses if they are more; after them all masks at once. Steps without a mask of the block's own count against
    `post_steps`, the last of which writes plain tokens only; a state that comes back is left by another token where the
    model is least sure. One thing differs: as everywhere in this engine the mask is never predicted. Under a grammar
    tokens are replaced and none is inserted or deleted.
    """

    threshold: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Mask a token again when the rest of the block no longer supports it (WINO).

    Each pass carries a shadow of the block: a mask for every position, which sees everything but that position. A
    token whose probability there falls below the threshold is masked again, the worst first, always fewer than the
    step commits: so every step makes progress. Doubles the block's positions.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"`threshold` must be in [0, 1], got {self.threshold!r}")


Revision = Edit | Revoke
