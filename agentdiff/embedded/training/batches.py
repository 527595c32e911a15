"""Examples to tensors: one encoded prompt shared by several noised copies of its reply.

The response segment is [clean | copy 1 | ... | copy R], each padded to whole blocks. A copy's block sees the prompt,
the clean blocks before it and itself; so one prompt encoding pays for R masked losses, and the clean half gives each
block exactly the keys that the block cache holds at inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from agentdiff.embedded.training import examples
from agentdiff.embedded.training.replies import Example
from agentdiff.embedded.training.slots import IGNORED, slots_of
from agentdiff.embedded.training.tokenizer import END, MASK, PAD, render
from agentdiff.engine.families.lexicon import Lexicon
from agentdiff.engine.families.signatures import Signatures

MAX_PROMPT = 512
FIRST_TOKEN_WEIGHT = 3.0
"""The first token decides between call, answer and refusal."""
PROMPT_QUANTUM = 32
"""Prompts are padded to multiples of this: every new shape costs the CPU kernels half a second of compilation."""
WINDOW = 48
"""Batches that are drawn and sorted together."""
NAME_TOKENS, NAME_WEIGHT = 4, 2.0
"""So do the next few, which name the tool."""
HIDDEN_WORDS = 0.3
"""Share of the words of a prompt that are known by their vectors alone, in every other prompt."""
PADDING_WEIGHT = 0.1
"""What follows the end token is filled too, but matters little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B examples with R copies of C response positions; T = C * (1 + R)."""

    prompt: Tensor
    """[B, S] int64"""
    shown: Tensor
    """[B, S] int64: the prompt, with the tokens of some words masked, so that their meaning has to do."""
    prompt_valid: Tensor
    """[B, S] bool"""
    words: Tensor | None
    """[B, S] int64: rows of the lexicon, where there is one."""
    kinds: Tensor
    """[B, S] int64: what each token of the prompt is (`signatures`)."""
    slots: Tensor
    """[B, S] int64: the place that each token belongs to, or `slots.IGNORED`."""
    response: Tensor
    """[B, T] int64"""
    positions: Tensor
    """[B, T] int64"""
    mask: Tensor
    """[B, 1, T, S + T] bool, true where attention is allowed."""
    targets: Tensor
    """[B, C * R] int64, -100 where nothing is to be predicted."""
    weights: Tensor
    """[B, C * R] float32"""
    clean_len: int
    """C"""
    block_len: int

    @property
    def tokens(self) -> int:
        """Positions pushed through the model."""
        return self.prompt.numel() + self.response.numel()


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example as token ids."""

    prompt: list[int]
    reply: list[int]
    kinds: list[int]
    slots: list[int]


class Stream:
    """An endless seeded stream of batches, sorted by length within a window so that little is padding."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seed: int,
        batch_size: int,
        copies: int,
        few: float = 0.0,
        lexicon: Lexicon | None = None,
        related: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.rng = Random(seed)
        self.torch_rng = torch.Generator().manual_seed(seed)
        self.batch_size = batch_size
        self.copies = copies
        self.few = few
        self.lexicon = lexicon
        self.related = related
        self.signatures = Signatures(tokenizer.get_vocab())
        self.pad, self.mask, self.end = (_id(tokenizer, t) for t in (PAD, MASK, END))

    def encode(self, example: Example) -> Encoded:
        """Token ids of prompt and reply; the reply ends with the end token."""
        text = render(example)
        prompt = self.tokenizer.encode(text, add_special_tokens=False)
        reply = self.tokenizer.encode(example.target, add_special_tokens=False).ids
        kinds = self.signatures.kinds(prompt.ids)
        slots = slots_of(example, text, prompt.offsets, kinds)
        return Encoded(prompt.ids, [*reply, self.end], kinds, slots)

    def draw(self) -> Example:
        """The next example."""
        return examples.sample(self.rng, few=self.few, related=self.related)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            window: list[Encoded] = []
            while len(window) < self.batch_size * WINDOW:
                encoded = self.encode(self.draw())
                if len(encoded.prompt) <= MAX_PROMPT and len(encoded.reply) <= 96:
                    window.append(encoded)
            window.sort(key=lambda e: (-(-len(e.reply) // 16), len(e.prompt)))
            groups = [
                window[i : i + self.batch_size] for i in range(0, len(window), self.batch_size)
            ]
            self.rng.shuffle(groups)
            for group in groups:
                is_long = max(len(e.reply) for e in group) > 16
                yield self.collate(
                    group, block_len=32 if is_long and self.rng.random() < 0.4 else 16
                )

    def collate(self, group: list[Encoded], *, block_len: int) -> Batch:
        """Noise each reply `copies` times and lay everything out."""
        count, copies = len(group), self.copies
        prompt_len = -(-max(len(e.prompt) for e in group) // PROMPT_QUANTUM) * PROMPT_QUANTUM
        clean_len = max(-(-len(e.reply) // block_len) * block_len for e in group)
        blocks = clean_len // block_len
        prompt = torch.full((count, prompt_len), self.pad)
        clean = torch.full((count, clean_len), self.pad)
        kinds = torch.zeros(count, prompt_len, dtype=torch.int64)
        slots = torch.full((count, prompt_len), IGNORED)
        lengths = torch.tensor([len(e.prompt) for e in group])
        replies = torch.tensor([len(e.reply) for e in group])
        for row, encoded in enumerate(group):
            prompt[row, : len(encoded.prompt)] = torch.tensor(encoded.prompt)
            clean[row, : len(encoded.reply)] = torch.tensor(encoded.reply)
            kinds[row, : len(encoded.prompt)] = torch.tensor(encoded.kinds)
            slots[row, : len(encoded.prompt)] = torch.tensor(encoded.slots)
        prompt_valid = torch.arange(prompt_len) < lengths[:, None]
        place = torch.arange(clean_len)
        padded_to = -(-replies // block_len) * block_len
        response_valid = place < padded_to[:, None]

        share = torch.rand(count, copies, blocks, generator=self.torch_rng) * 0.9 + 0.1
        share[torch.rand(share.shape, generator=self.torch_rng) < 0.35] = 1.0
        chance = torch.rand(count, copies, clean_len, generator=self.torch_rng)
        masked = chance < share.repeat_interleave(block_len, -1)
        masked &= response_valid[:, None]
        noised = torch.where(masked, self.mask, clean[:, None].expand(-1, copies, -1))
        targets = torch.where(masked, clean[:, None].expand(-1, copies, -1), -100)
        weights = torch.where(place < replies[:, None], 1.0, PADDING_WEIGHT)
        weights[:, 1 : 1 + NAME_TOKENS] *= NAME_WEIGHT
        weights[:, 0] = FIRST_TOKEN_WEIGHT
        words = self._words(group, prompt_len)
        return Batch(
            prompt=prompt,
            shown=prompt if words is None else self._without_words(prompt, words),
            prompt_valid=prompt_valid,
            words=words,
            kinds=kinds,
            slots=slots,
            response=torch.cat([clean, noised.flatten(1)], 1),
            positions=(lengths[:, None] + place).repeat(1, 1 + copies),
            mask=self._mask(prompt_valid, response_valid, block_len=block_len),
            targets=targets.flatten(1),
            weights=(weights[:, None] * masked).flatten(1),
            clean_len=clean_len,
            block_len=block_len,
        )

    def _words(self, group: list[Encoded], prompt_len: int) -> Tensor | None:
        if self.lexicon is None:
            return None
        words = torch.zeros(len(group), prompt_len, dtype=torch.int64)
        for row, encoded in enumerate(group):
            words[row, : len(encoded.prompt)] = torch.tensor(self.lexicon.rows(encoded.prompt))
        return words

    def _without_words(self, prompt: Tensor, words: Tensor) -> Tensor:
        """Mask some words of every other prompt wherever they stand in it."""
        shown = prompt.clone()
        for row in range(0, len(prompt), 2):
            present, place = cast("tuple[Tensor, Tensor]", words[row].unique(return_inverse=True))
            hidden = torch.rand(len(present), generator=self.torch_rng) < HIDDEN_WORDS
            shown[row, hidden[place] & (words[row] > 0)] = self.mask
        return shown

    def _mask(self, prompt_valid: Tensor, response_valid: Tensor, *, block_len: int) -> Tensor:
        """[B, 1, T, S + T]: the prompt, the clean blocks before one's own, and one's own block."""
        clean_len = response_valid.shape[1]
        block = torch.arange(clean_len) // block_len
        earlier, same = block[:, None] > block, block[:, None] == block
        parts = 1 + self.copies
        within = torch.zeros(parts, clean_len, parts, clean_len, dtype=torch.bool)
        within[:, :, 0] = earlier
        for part in range(parts):
            within[part, :, part] |= same
        within = within.view(parts * clean_len, parts * clean_len)
        keys_valid = response_valid.repeat(1, parts)
        own = torch.eye(parts * clean_len, dtype=torch.bool)
        response = (within & keys_valid[:, None, :]) | own
        prompt = prompt_valid[:, None, :].expand(-1, parts * clean_len, -1)
        return torch.cat([prompt, response], 2)[:, None]


def _id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    assert number is not None, token
    return number
