"""What the engine has to know of a checkpoint: its special ids, its blocks, its context; read and checked at load.

Who is believed, first to last: the caller, `config.json`, `generation_config.json` (end ids only), the tokenizer's own
files (the mask id only), the published defaults of the family. Two files that contradict each other are an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agentdiff.engine.families.base import Attention, FamilyTraits, Shift
from agentdiff.engine.families.configs import Reading
from agentdiff.engine.families.table import FamilySpec
from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class TraitOptions:
    """What a caller says of a checkpoint that its files leave open, or say otherwise."""

    mask_id: int | None = None
    block_len: int | None = None
    attention: Attention | None = None
    """For families that come in both kinds (A2D: mdlm and bd3lm)."""
    shift: Shift | None = None
    source: str = ""
    """The folder or hub id that was asked for."""


def read_traits(
    spec: FamilySpec, reading: Reading, options: TraitOptions, *, vocab_size: int, context_len: int
) -> FamilyTraits:
    """The traits of a mask model.

    Raises:
        ConfigurationError: An id lies outside the vocabulary, the mask id is unknown, contradictory or an ordinary
            token, there is no end id, or the block length is not positive or not the one that the weights need.
    """
    mask_id = read_mask(spec, reading, options, vocab_size=vocab_size)
    ends = read_ends(spec, reading, vocab_size=vocab_size)
    if mask_id in ends:
        raise reading.wrong("mask_token_id", f"{mask_id} is an end id too; one of them is wrong")
    declared = reading.count(spec.block_key, spec.block_len)
    block_len = declared if options.block_len is None else options.block_len
    if block_len < 1:
        raise ConfigurationError(f"`block_len` must be positive, got {block_len}")
    if reading.get("expert_capacity") is not None and block_len != reading.need(spec.block_key):
        raise reading.wrong(
            spec.block_key, f"its experts are chosen per block, so {block_len} cannot be used"
        )
    delete_id, insert_id = read_edits(reading, mask_id=mask_id, vocab_size=vocab_size)
    named = spec.block_causal_source and spec.block_causal_source in options.source.lower()
    attention = options.attention or ("block_causal" if named else spec.attention)
    if "canvas" in (attention, spec.attention) and attention != spec.attention:
        raise ConfigurationError(f"a `{spec.name}` model cannot run with `attention={attention!r}`")
    return FamilyTraits(
        name=spec.name,
        vocab_size=vocab_size,
        mask_id=mask_id,
        eos_ids=ends,
        pad_id=reading.get("pad_token_id"),
        block_len=block_len,
        sub_block_len=spec.sub_block_len,
        context_len=context_len,
        attention=attention,
        shift=options.shift or spec.shift,
        prompt_blocks=spec.prompt_blocks,
        delete_id=delete_id,
        insert_id=insert_id,
        edits=spec.edits,
        policy=spec.policy,
    )


def read_mask(spec: FamilySpec, reading: Reading, options: TraitOptions, *, vocab_size: int) -> int:
    """The mask id: known, inside the vocabulary, and no ordinary token.

    Raises:
        ConfigurationError: It is not.
    """
    folder = reading.path.parent
    remedy = "pass `mask_id=` with the id that the model was trained with"
    tokens = special_tokens(folder)
    config, tokenizer = reading.get("mask_token_id"), declared_mask(folder, tokens)
    if options.mask_id is None and None not in (config, tokenizer) and config != tokenizer:
        raise ConfigurationError(
            f"`{reading.path}`: `mask_token_id` is {config!r}, but the tokenizer beside it says "
            f"{tokenizer}; {remedy}"
        )
    mask_id = next(
        (
            found
            for found in (options.mask_id, config, tokenizer, spec.mask_id)
            if found is not None
        ),
        None,
    )
    if mask_id is None:
        raise ConfigurationError(
            f"`{reading.path}` names no `mask_token_id`, and neither does a tokenizer beside it; {remedy}"
        )
    if not isinstance(mask_id, int) or not 0 <= mask_id < vocab_size:
        raise ConfigurationError(
            f"`{folder}`: the mask token is {mask_id!r}, outside the vocabulary of {vocab_size}; {remedy}"
        )
    is_ordinary = tokens and mask_id not in tokens.values()
    if is_ordinary and options.mask_id is None and not spec.ordinary_mask:
        raise ConfigurationError(
            f"`{folder}`: the mask token {mask_id} is an ordinary token of its tokenizer; {remedy}"
        )
    return mask_id


def read_ends(spec: FamilySpec, reading: Reading, *, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a reply.

    Raises:
        ConfigurationError: A declared one lies outside the vocabulary, or there is none.
    """
    generation = _read(reading.path.parent / "generation_config.json")
    ends: list[int] = []
    for path, declared in (
        ("generation_config.json", generation.get("eos_token_id")),
        ("config.json", reading.get("eos_token_id")),
    ):
        listed = cast("list[Any]", declared if isinstance(declared, list) else [declared])
        for token in listed:
            if token is None:
                continue
            if not isinstance(token, int) or not 0 <= token < vocab_size:
                raise ConfigurationError(
                    f"`{reading.path.parent}`: the eos token is {token!r}, outside the vocabulary of "
                    f"{vocab_size}; set `eos_token_id` in its {path}"
                )
            ends.append(token)
    ends += [token for token in spec.eos_ids if token < vocab_size]
    if not ends:
        raise ConfigurationError(
            f"`{reading.path}` names no `eos_token_id`; add the id that ends a reply"
        )
    return tuple(dict.fromkeys(ends))


def read_edits(
    reading: Reading, *, mask_id: int, vocab_size: int
) -> tuple[int, int] | tuple[None, None]:
    """The ids that delete and insert positions; only a checkpoint that was trained with them names them.

    Raises:
        ConfigurationError: One is named without the other, lies outside the vocabulary, or has a second meaning.
    """
    names = ("delete_token_id", "split_token_id")
    if all(reading.get(name) is None for name in names):
        return None, None
    ids = [reading.need(name) for name in names]
    for name, token in zip(names, ids, strict=True):
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise reading.wrong(name, f"it must be an id in the vocabulary of {vocab_size}")
    if len({mask_id, *ids}) < 3:
        raise reading.wrong("delete_token_id", "mask, delete and split need an id each")
    return ids[0], ids[1]


def special_tokens(folder: Path) -> dict[str, int]:
    """The added tokens that the tokenizer's files mark as special; empty where they say nothing."""
    config: dict[str, Any] = _read(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    added: list[dict[str, Any]] = [{"id": int(key), **token} for key, token in config.items()]
    if not added:
        added = _read(folder / "tokenizer.json").get("added_tokens", [])
    return {token["content"]: token["id"] for token in added if token.get("special")}


def declared_mask(folder: Path, tokens: dict[str, int]) -> int | None:
    """The mask id that the tokenizer's files name."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        mask = _read(folder / name).get("mask_token")
        content = cast("dict[str, Any]", mask).get("content") if isinstance(mask, dict) else mask
        if content in tokens:
            return tokens[content]
    return None


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
