"""The embedded router: a small block-diffusion language model with a pointer head.

The one model class of our own (every other family is a stock transformers class). A pre-norm transformer over two
segments: the *prompt*, bidirectional, encoded once, and the *response*, written in blocks that see the prompt, the
earlier blocks and themselves. Four things differ from a plain transformer, for copying and for matching:

- token shift: every position also sees the embeddings of its two neighbours (as Canon layers, arXiv 2512.17351), so a
  value is found by the words around it in one layer;
- pointer head: the output distribution is a mixture of the vocabulary softmax and of attention over the prompt tokens
  (pointer-generator, arXiv 1704.04368); its log is what the decoder sees, so thresholds and grammars work unchanged;
- lexicon: a prompt token also gets the fixed vector of the word that it is a part of (`lexicon`), so that a request and
  a tool are matched by what their words mean, also when training never showed them;
- no causal mask anywhere: order comes from blocks alone.

Shapes: B batch, S prompt, T response positions, L block, V vocabulary, H heads, D head dim, E model width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.base import FamilyTraits
from agentdiff.engine.families.lexicon import Lexicon
from agentdiff.engine.weights import read_weights

NO_TOKEN = -1.0
"""Where the pointer's layer holds no prompt token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterShape:
    """The hyperparameters, as they stand in `config.json`."""

    vocab_size: int
    hidden_size: int = 192
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    intermediate_size: int = 512
    rope_theta: float = 10_000.0
    lexicon_size: int = 0
    """Rows of the lexicon, 0 without one."""
    lexicon_width: int = 100


class Encoded(NamedTuple):
    """What the response needs of a prompt."""

    layers: tuple[LayerKV, ...]
    pointer_keys: Tensor
    """[B, S, E]"""
    ids: Tensor
    """[B, S] int64"""
    valid: Tensor
    """[B, S] bool, false on padding."""
    hidden: Tensor
    """[B, S, E]"""


def rotary(
    positions: Tensor, *, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the rotary embedding: [B, 1, T, D] each."""
    frequencies = theta ** (
        -torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    )
    angles = positions[..., None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat([cos, cos], -1)[:, None].to(dtype),
        torch.cat([-sin, sin], -1)[:, None].to(dtype),
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to [B, H, T, D]."""
    low, high = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat([high, low], -1), sin)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of [B, H, T, D] over [B, H, S, D] under an additive mask.

    For training on a CPU it is written out: there the fused kernel takes two to eight times as long.
    """
    if not (query.requires_grad and query.device.type == "cpu") or mask is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    scores = (query / math.sqrt(query.shape[-1])) @ keys.transpose(-1, -2)
    return (scores + mask).softmax(-1) @ values


class RouterLayer(nn.Module):
    """Attention over own and given keys, then a gated feed-forward."""

    def __init__(self, shape: RouterShape) -> None:
        super().__init__()
        width, inner = shape.hidden_size, shape.intermediate_size
        self.heads = shape.num_attention_heads
        head_dim = width // self.heads
        self.attn_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_norm = nn.LayerNorm(head_dim, bias=False)
        self.k_norm = nn.LayerNorm(head_dim, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, past: LayerKV | None
    ) -> tuple[Tensor, LayerKV]:
        """X [B, T, E], mask additive [B, 1, T, S + T] -> (x [B, T, E], own keys and values)."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attn_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        query = rotate(self.q_norm(query), cos, sin).to(value.dtype)
        own = LayerKV(rotate(self.k_norm(key), cos, sin).to(value.dtype), value)
        keys, values = own
        if past is not None:
            keys = torch.cat([past.keys, keys], 2)
            values = torch.cat([past.values, values], 2)
        mixed = attend(query, keys, values, mask)
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up), own


class RouterModel(nn.Module):
    """Encode a prompt once, then score response blocks against it."""

    def __init__(self, shape: RouterShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.embed = nn.Embedding(shape.vocab_size, width)
        self.shift = nn.Parameter(torch.full((2, width), 0.5))
        self.layers = nn.ModuleList(RouterLayer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.pointer_query = nn.Linear(width, width, bias=False)
        self.pointer_key = nn.Linear(width, width, bias=False)
        self.pointer_gate = nn.Linear(width, 1)
        self.lexicon: Tensor
        if shape.lexicon_size:
            self.register_buffer("lexicon", torch.zeros(shape.lexicon_size, shape.lexicon_width))
            self.lexicon_in = nn.Linear(shape.lexicon_width, width, bias=False)

    def reset_parameters(self) -> None:
        """Initialise for training (loading a checkpoint does not need it)."""
        nn.init.normal_(self.embed.weight, std=0.06 * math.sqrt(256 / self.shape.hidden_size))
        for layer in self.layers:
            assert isinstance(layer, RouterLayer)
            nn.init.zeros_(layer.attn_out.weight)
            nn.init.zeros_(layer.down.weight)
        if self.shape.lexicon_size:
            nn.init.zeros_(self.lexicon_in.weight)

    def encode(self, ids: Tensor, valid: Tensor, words: Tensor | None = None) -> Encoded:
        """Ids [B, S] int64, valid [B, S] bool (padding on the right) -> what the response needs.

        With a lexicon, `words` [B, S] int64 says which of its rows each token belongs to.
        """
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        embedded = self.embed(ids) * valid[..., None]
        if words is not None:
            embedded = embedded + self.lexicon_in(F.embedding(words, self.lexicon))
        x = embedded + self._neighbours(embedded)
        mask = additive(valid[:, None, None, :].expand(-1, 1, ids.shape[1], -1), x.dtype)
        hidden, layers = self._run(x, positions, mask, None)
        return Encoded(layers, self.pointer_key(hidden), ids, valid, hidden)

    def decode(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        past: tuple[LayerKV, ...],
        *,
        block_len: int,
    ) -> tuple[Tensor, tuple[LayerKV, ...]]:
        """Run response tokens over `past`.

        ids, positions [B, T] int64 with T a multiple of `block_len` (the token shift stays inside a block), mask
        [B, 1, T, S + T] bool or None -> (hidden [B, T, E], own keys and values per layer).
        """
        batch, length = ids.shape
        embedded = self.embed(ids)
        blocks = embedded.view(batch * (length // block_len), block_len, -1)
        x = embedded + self._neighbours(blocks).view_as(embedded)
        return self._run(x, positions, None if mask is None else additive(mask, x.dtype), past)

    def log_probs(self, hidden: Tensor, prompt: Encoded) -> Tensor:
        """Hidden [B, T, E] -> log-probabilities [B, T, V] float32 of the mixture of vocabulary and pointer."""
        attention = self.point(hidden, prompt.pointer_keys, prompt.valid[:, None])
        return self.mixture(hidden, attention, prompt.ids[:, None].expand(-1, hidden.shape[1], -1))

    def point(self, hidden: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """Attention [B, T, S] float32 of hidden [B, T, E] over pointer keys [B, S, E]; seen broadcasts to it."""
        scores = (self.pointer_query(hidden) @ keys.transpose(1, 2)).float()
        scores = scores / math.sqrt(hidden.shape[-1])
        return scores.masked_fill(~seen, -1e9).softmax(-1)

    def mixture(self, hidden: Tensor, attention: Tensor, ids: Tensor) -> Tensor:
        """Hidden [..., E], attention and prompt ids [..., S] -> log-probabilities [..., V] float32."""
        from_vocabulary = F.linear(hidden, self.embed.weight).float().softmax(-1)
        gate = torch.sigmoid(self.pointer_gate(hidden).float())
        mixture = ((1 - gate) * from_vocabulary).scatter_add(-1, ids, gate * attention)
        return (mixture + 1e-8).log()

    def _neighbours(self, embedded: Tensor) -> Tensor:
        """The shifted embeddings [N, T, E]: the neighbour before and the one after, zero at the borders."""
        return self.shift[0] * F.pad(embedded, (0, 0, 1, -1)) + self.shift[1] * F.pad(
            embedded, (0, 0, -1, 1)
        )

    def _run(
        self, x: Tensor, positions: Tensor, mask: Tensor | None, past: tuple[LayerKV, ...] | None
    ) -> tuple[Tensor, tuple[LayerKV, ...]]:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        head_dim = self.shape.hidden_size // self.shape.num_attention_heads
        cos, sin = rotary(positions, head_dim=head_dim, theta=self.shape.rope_theta, dtype=dtype)
        if mask is not None:
            mask = mask.to(dtype)
        own: list[LayerKV] = []
        for number, layer in enumerate(self.layers):
            x, kv = layer(x, cos, sin, mask, None if past is None else past[number])
            own.append(kv)
        return self.norm(x), tuple(own)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool attention mask as an additive one: 0 where allowed, very negative elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, -1e9
    )


class RouterFamily:
    """The router behind the engine: bidirectional prompt, block-causal reply."""

    def __init__(
        self,
        model: RouterModel,
        traits: FamilyTraits,
        lexicon: Lexicon | None = None,
        *,
        biases: Mapping[int, float] | None = None,
    ) -> None:
        self.model = model.eval()
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
        return cls(model.to(device), traits, lexicon, biases=biases)

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

        What the pointer head needs of a prompt is kept as one more layer, whose values are the token ids: so it
        travels, pads and leaves with the others. Response positions hold NO_TOKEN there.
        """
        if not past:
            encoded = self.model.encode(ids, mask[:, 0].any(1), self._words(ids))
            hidden = ids.new_zeros(*ids.shape, 0, dtype=encoded.pointer_keys.dtype)
            own = LayerKV(encoded.pointer_keys[:, None], ids[:, None, :, None].float())
            return hidden, [*encoded.layers, own]
        *layers, prompt = past
        hidden, own = self.model.decode(
            ids, positions, mask, tuple(layers), block_len=self._traits.block_len
        )
        width = hidden.shape[-1]
        nothing = LayerKV(
            prompt.keys.new_zeros(ids.shape[0], 1, ids.shape[1], width),
            prompt.values.new_full((ids.shape[0], 1, ids.shape[1], 1), NO_TOKEN),
        )
        return self._pointing(hidden, prompt, mask), [*own, nothing]

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

    def _pointing(self, hidden: Tensor, prompt: LayerKV, mask: Tensor) -> Tensor:
        """[B, T, E + 2S] hidden states, how they attend to the prompt, and the prompt's ids."""
        ids = prompt.values[:, 0, :, 0]
        seen = mask[:, 0, :, : ids.shape[1]] & (ids != NO_TOKEN)[:, None]
        attention = self.model.point(hidden, prompt.keys[:, 0], seen)
        spread = ids.clamp_min(0)[:, None].expand(-1, hidden.shape[1], -1)
        return torch.cat([hidden.float(), attention, spread], -1)


def _parted(hidden: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `RouterFamily.run` put together: hidden states, attention [..., S] and ids [..., S] int64."""
    attention, ids = hidden[..., width:].chunk(2, -1)
    return hidden[..., :width], attention, ids.long()
