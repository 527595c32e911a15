"""The embedded router behind the engine: its prompt is encoded once, its reply is written in blocks.

What the pointer head needs of a prompt travels as one more layer of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.lexicon import Lexicon
from agentdiff.engine.families.router_model import (
    FAINTEST,
    Encoded,
    RouterModel,
    RouterShape,
    Slots,
)
from agentdiff.engine.families.signatures import Signatures
from agentdiff.engine.weights import read_weights

NO_TOKEN = -1.0
"""What the values of the pointer's layer are where no prompt token is."""


class RouterFamily:
    """The router behind the engine: bidirectional prompt, block-causal reply."""

    def __init__(
        self,
        model: RouterModel,
        traits: FamilyTraits,
        lexicon: Lexicon | None = None,
        signatures: Signatures | None = None,
        *,
        biases: Mapping[int, float] | None = None,
    ) -> None:
        self.model = model.eval()
        self._signatures = signatures
        self._biases = dict(biases or {})
        self._traits = traits
        self._lexicon = lexicon

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any], *, device: torch.device) -> RouterFamily:
        """Load a checkpoint folder whose `config.json` has `model_type` `agentdiff_router`."""
        shape = RouterShape(
            **{name: config[name] for name in RouterShape.__dataclass_fields__ if name in config}
        )
        with torch.device("meta"):
            model = RouterModel(shape)
        model.load_state_dict(read_weights(folder), assign=True)
        eos: int | list[int] = config["eos_token_id"]
        traits = FamilyTraits(
            name="router",
            vocab_size=shape.vocab_size,
            mask_id=config["mask_token_id"],
            eos_ids=tuple(eos) if isinstance(eos, list) else (eos,),
            block_len=config["block_length"],
            context_len=config["max_position_embeddings"],
            prompt_blocks="whole",
        )
        lexicon = Lexicon.load(folder) if shape.lexicon_size else None
        biases = {int(token): bias for token, bias in config.get("token_biases", {}).items()}
        signatures = Signatures.load(folder) if shape.slots else None
        return cls(model.to(device), traits, lexicon, signatures, biases=biases)

    @property
    def traits(self) -> FamilyTraits:
        """Facts of the loaded model."""
        return self._traits

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed.weight.device

    def run(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor, past: Sequence[LayerKV]
    ) -> tuple[Tensor, Sequence[LayerKV]]:
        """See `Family.run`. Without a past the ids are prompts, else whole response blocks.

        The hidden states of a response are [B, T, E + 2S]: how they attend to the prompt, and its ids, are put behind.

        What the pointer head needs of a prompt is kept as one more layer, so it travels, pads and leaves with the
        others: its keys are those of the pointer and of the slots, its values the token id and facts of the token.
        Response positions hold NO_TOKEN there.
        """
        if not past:
            encoded = self.model.encode(ids, mask[:, 0].any(1), self._words(ids), self._kinds(ids))
            hidden = ids.new_zeros(*ids.shape, 0, dtype=encoded.pointer_keys.dtype)
            return hidden, [*encoded.layers, _as_layer(encoded)]
        *layers, prompt = past
        columns = prompt.keys.shape[2]
        is_prompt = mask[:, 0, :, :columns].any(1) & (prompt.values[:, 0, :, 0] != NO_TOKEN)
        keys, slots = _from_layer(prompt, self.model.shape.hidden_size, is_prompt)
        hidden, own = self.model.decode(
            ids,
            positions,
            mask,
            tuple(layers),
            block_len=self._traits.block_len,
            refusal=None if slots is None else _refusal(slots),
        )
        nothing = LayerKV(
            prompt.keys.new_zeros(ids.shape[0], 1, ids.shape[1], prompt.keys.shape[-1]),
            prompt.values.new_full(
                (ids.shape[0], 1, ids.shape[1], prompt.values.shape[-1]), NO_TOKEN
            ),
        )
        attention = self.model.point(hidden, keys, is_prompt[:, None], slots)
        spread = prompt.values[:, 0, :, 0].clamp_min(0)[:, None].expand(-1, hidden.shape[1], -1)
        return torch.cat([hidden.float(), attention, spread], -1), [*own, nothing]

    def head(self, hidden: Tensor) -> Tensor:
        """See `Family.head`: the log of a mixture that sums to one, the checkpoint's `token_biases` included."""
        scores = self.model.mixture(*_parted(hidden, self.model.shape.hidden_size))
        if not self._biases:
            return scores
        for token, bias in self._biases.items():
            scores[..., token] += bias
        return scores.log_softmax(-1)

    def _words(self, ids: Tensor) -> Tensor | None:
        if self._lexicon is None:
            return None
        rows = cast("list[list[int]]", ids.tolist())
        return torch.tensor([self._lexicon.rows(row) for row in rows], device=ids.device)

    def _kinds(self, ids: Tensor) -> Tensor | None:
        if self._signatures is None:
            return None
        rows = cast("list[list[int]]", ids.tolist())
        return torch.tensor([self._signatures.kinds(row) for row in rows], device=ids.device)


def _parted(hidden: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `RouterFamily.run` put together: hidden states, attention [..., S] and ids [..., S] int64."""
    attention, ids = hidden[..., width:].chunk(2, -1)
    return hidden[..., :width], attention, ids.long()


def _as_layer(prompt: Encoded) -> LayerKV:
    """A prompt as a layer of a cache: keys [B, 1, S, E or 3E], values [B, 1, S, 1 or 6] float32."""
    keys, values = [prompt.pointer_keys], [prompt.ids]
    slots = prompt.slots
    if slots is not None:
        keys += [slots.keys, slots.queries]
        values += [slots.norms, slots.places, slots.said, slots.tools, slots.refusal]
    return LayerKV(
        torch.cat(keys, -1)[:, None], torch.stack([v.float() for v in values], -1)[:, None]
    )


def _from_layer(prompt: LayerKV, width: int, is_prompt: Tensor) -> tuple[Tensor, Slots | None]:
    """The pointer's keys and the slots of `_as_layer`.

    Where `is_prompt` [B, S] is false, anything may stand in a layer, as what an earlier sequence left there.
    """
    parts = cast("tuple[Tensor, ...]", prompt.keys[:, 0].split(width, -1))
    if len(parts) == 1:
        return parts[0], None
    pointer_keys, keys, queries = parts
    _, norms, places, said, tools, refusal = prompt.values[:, 0].unbind(-1)
    is_place, is_said = (places > 0) & is_prompt, (said > 0) & is_prompt
    return pointer_keys, Slots(keys, queries, norms, is_place, is_said, tools, refusal)


def _refusal(slots: Slots) -> Tensor:
    """[B]: the log-odds that the tokens of each conversation hold."""
    return slots.refusal.masked_fill(~slots.said, FAINTEST).amax(1)
