"""The embedded router: a small block-diffusion language model with a pointer head.

The one model class of our own (every other family is a stock transformers class). A pre-norm transformer over two
segments: the *prompt*, bidirectional, encoded once, and the *response*, written in blocks that see the prompt, the
earlier blocks and themselves. Five things differ from a plain transformer, for copying and for matching:

- token shift: every position also sees the embeddings of its two neighbours (as Canon layers, arXiv 2512.17351), so a
  value is found by the words around it in one layer;
- pointer head: the output distribution is a mixture of the vocabulary softmax and of attention over the prompt tokens
  (pointer-generator, arXiv 1704.04368); its log is what the decoder sees, so thresholds and grammars work unchanged;
- lexicon: a prompt token also gets the fixed vector of the word that it is a part of (`lexicon`), so that a request and
  a tool are matched by what their words mean, also when training never showed them;
- slots: every token of the conversation points to the parameter that it fills, and the end of the prompt to the tool
  that is asked for. The pointer head is told: what it copies is weighed by whether it fills the parameter at hand;
- no causal mask anywhere: order comes from blocks alone.

Shapes: B batch, S prompt, T response positions, L block, V vocabulary, H heads, D head dim, E model width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentdiff.engine.cache import LayerKV
from agentdiff.engine.families.signatures import CONVERSATION, TOOL

FAINTEST = -12.0
"""Log-probabilities of slots are not taken below this."""


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
    slots: bool = False
    """Whether it was trained to find slots."""


class Slots(NamedTuple):
    """What each prompt token is for: it belongs to a place with log-probability `queries · keys / sqrt(E) - norms`."""

    keys: Tensor
    """[B, S, E]"""
    queries: Tensor
    """[B, S, E]"""
    norms: Tensor
    """[B, S] float32"""
    places: Tensor
    """[B, S] bool: tools, parameters, and the one for nothing."""
    said: Tensor
    """[B, S] bool: tokens of the conversation."""
    tools: Tensor
    """[B, S] float32: in the list of tools, the log-probability of the tool it stands in; 0 elsewhere."""
    refusal: Tensor
    """[B, S] float32: the log-odds that no tool is asked for, everywhere the same."""


class Encoded(NamedTuple):
    """What the response needs of a prompt."""

    layers: tuple[LayerKV, ...]
    pointer_keys: Tensor
    """[B, S, E]"""
    ids: Tensor
    """[B, S] int64"""
    valid: Tensor
    """[B, S] bool, false on padding."""
    slots: Slots | None


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
        if shape.slots:
            self.slot_key = nn.Linear(width, width, bias=False)
            self.slot_query = nn.Linear(width, width, bias=False)
            self.slot_asked = nn.Linear(width, width, bias=False)
            self.slot_weights = nn.Parameter(torch.full((2,), 0.4))
            self.refusal = nn.Parameter(torch.zeros(width))

    def reset_parameters(self) -> None:
        """Initialise for training (loading a checkpoint does not need it)."""
        nn.init.normal_(self.embed.weight, std=0.06 * math.sqrt(256 / self.shape.hidden_size))
        for layer in self.layers:
            assert isinstance(layer, RouterLayer)
            nn.init.zeros_(layer.attn_out.weight)
            nn.init.zeros_(layer.down.weight)
        if self.shape.lexicon_size:
            nn.init.zeros_(self.lexicon_in.weight)

    def encode(
        self,
        ids: Tensor,
        valid: Tensor,
        words: Tensor | None = None,
        kinds: Tensor | None = None,
    ) -> Encoded:
        """Ids [B, S] int64, valid [B, S] bool (padding on the right) -> what the response needs.

        With a lexicon, `words` [B, S] int64 says which of its rows each token belongs to; with slots, `kinds` [B, S]
        int64 what it is (`signatures`).
        """
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        embedded = self.embed(ids) * valid[..., None]
        if words is not None:
            embedded = embedded + self.lexicon_in(F.embedding(words, self.lexicon))
        x = embedded + self._neighbours(embedded)
        mask = additive(valid[:, None, None, :].expand(-1, 1, ids.shape[1], -1), x.dtype)
        hidden, layers = self._run(x, positions, mask, None)
        slots = None if kinds is None else self._slots(hidden, valid, kinds)
        return Encoded(layers, self.pointer_key(hidden), ids, valid, slots)

    def _slots(self, hidden: Tensor, valid: Tensor, kinds: Tensor) -> Slots:
        """Hidden [B, S, E] -> what each token of the prompt is for."""
        keys, queries = self.slot_key(hidden), self.slot_query(hidden)
        places = (kinds >= TOOL) & valid
        scores = belongings(queries, keys, places)
        last = valid.sum(1) - 1
        asked = scores[torch.arange(len(last), device=last.device), last]
        is_tool = kinds == TOOL
        of_tools = asked.masked_fill(~is_tool, -1e9)
        any_tool = of_tools.logsumexp(1, keepdim=True)
        chances = (of_tools - any_tool).clamp_min(FAINTEST)
        place = torch.arange(kinds.shape[1], device=kinds.device)
        nearest = torch.where(is_tool, place, 0).cummax(1).values
        listed = (kinds != CONVERSATION) & (nearest > 0)
        return Slots(
            keys,
            queries,
            scores.logsumexp(2),
            places,
            (kinds == CONVERSATION) & valid,
            torch.where(listed, chances.gather(1, nearest), 0.0),
            (asked[:, :1] - any_tool).clamp(FAINTEST, -FAINTEST).expand_as(chances),
        )

    def decode(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        past: tuple[LayerKV, ...],
        *,
        block_len: int,
        refusal: Tensor | None = None,
    ) -> tuple[Tensor, tuple[LayerKV, ...]]:
        """Run response tokens over `past`; with slots, `refusal` [B] are the log-odds that no tool is asked for.

        ids, positions [B, T] int64 with T a multiple of `block_len` (the token shift stays inside a block), mask
        [B, 1, T, S + T] bool or None -> (hidden [B, T, E], own keys and values per layer).
        """
        batch, length = ids.shape
        embedded = self.embed(ids)
        blocks = embedded.view(batch * (length // block_len), block_len, -1)
        x = embedded + self._neighbours(blocks).view_as(embedded)
        if refusal is not None:
            x = x + (refusal / 4).tanh()[:, None, None] * self.refusal
        return self._run(x, positions, None if mask is None else additive(mask, x.dtype), past)

    def log_probs(self, hidden: Tensor, prompt: Encoded) -> Tensor:
        """Hidden [B, T, E] -> log-probabilities [B, T, V] float32 of the mixture of vocabulary and pointer."""
        attention = self.point(hidden, prompt.pointer_keys, prompt.valid[:, None], prompt.slots)
        return self.mixture(hidden, attention, prompt.ids[:, None].expand(-1, hidden.shape[1], -1))

    def point(self, hidden: Tensor, keys: Tensor, seen: Tensor, slots: Slots | None) -> Tensor:
        """Attention [B, T, S] float32 of hidden [B, T, E] over pointer keys [B, S, E]; seen broadcasts to it."""
        root = math.sqrt(hidden.shape[-1])
        scores = (self.pointer_query(hidden) @ keys.transpose(1, 2)).float() / root
        if slots is not None:
            asked = belongings(self.slot_asked(hidden), slots.keys, slots.places).softmax(-1)
            wanted = asked.to(slots.keys.dtype) @ slots.keys
            fits = (wanted @ slots.queries.transpose(1, 2)).float() / root - slots.norms[:, None]
            fits = fits.clamp_min(FAINTEST) * slots.said[:, None]
            scores = scores + self.slot_weights[0] * fits
            scores = scores + self.slot_weights[1] * slots.tools[:, None]
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


def belongings(queries: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    """Scores [B, T, S] float32 of queries [B, T, E] over the keys [B, S, E] of places [B, S] bool."""
    scores = (queries @ keys.transpose(1, 2)).float() / math.sqrt(queries.shape[-1])
    return scores.masked_fill(~places[:, None], -1e9)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool attention mask as an additive one: 0 where allowed, very negative elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, -1e9
    )
