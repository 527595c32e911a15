"""llguidance or xgrammar on the same schemas: run with the interpreter that has them installed.

Stands alone: no package of ours is imported. Reads one JSON object from standard input (`tokens` in
base64, `eos`, `schemas`, `block`, `budget`) and writes one line of JSON per peer that is installed.

What they can do is one mask after the other, from left to right: a block costs `block` masks. A
text is written from random choices among the allowed tokens; it counts as closed when the grammar is
satisfied within the budget.
"""

from __future__ import annotations

import base64
import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

Json = Any
Writer = Callable[[str], tuple[float, list[float], bool]]
"""Schema → (compile time, times of a mask and a token each, whether the text was closed)."""


def llguidance(task: Json, tokens: list[bytes], rng: random.Random) -> Writer:
    """Write texts with llguidance."""
    module: Any = importlib.import_module("llguidance")

    class Tokenizer:
        eos_token_id = task["eos"]
        bos_token_id = None
        special_token_ids = (task["eos"],)

        def __init__(self) -> None:
            self.tokens = tokens

        def __call__(self, text: bytes | str) -> list[int]:
            data = text.encode() if isinstance(text, str) else text
            return [single[byte] for byte in data]

    single = {token[0]: i for i, token in reversed(list(enumerate(tokens))) if len(token) == 1}
    tokenizer = module.LLTokenizer(module.TokenizerWrapper(Tokenizer()))
    # As ours: with free white space, random choices never leave it.
    one_spelling = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

    def write(schema: str) -> tuple[float, list[float], bool]:
        started = time.thread_time()
        grammar = module.LLMatcher.grammar_from_json_schema(schema, overrides=one_spelling)
        matcher = module.LLMatcher(tokenizer, grammar)
        matcher.compute_bitmask()
        if matcher.get_error():
            raise ValueError(matcher.get_error())
        compile_s, times_s = time.thread_time() - started, list[float]()
        for _ in range(task["budget"]):
            started = time.thread_time()
            mask = matcher.compute_bitmask()
            times_s.append(time.thread_time() - started)
            token = _random_bit(mask, rng)
            if token in (None, task["eos"]):
                break
            started = time.thread_time()
            matcher.consume_token(token)
            times_s[-1] += time.thread_time() - started
        return compile_s, times_s, bool(matcher.is_accepting())

    return write


def xgrammar(task: Json, tokens: list[bytes], rng: random.Random) -> Writer:
    """Write texts with xgrammar."""
    module: Any = importlib.import_module("xgrammar")
    info = module.TokenizerInfo(
        tokens,
        vocab_type=module.VocabType.RAW,
        vocab_size=len(tokens),
        stop_token_ids=[task["eos"]],
    )
    bitmask = module.allocate_token_bitmask(1, len(tokens))

    def write(schema: str) -> tuple[float, list[float], bool]:
        # A compiler of its own each time: it keeps what it has compiled.
        started = time.thread_time()
        compiler = module.GrammarCompiler(info, max_threads=1)
        matcher = module.GrammarMatcher(compiler.compile_json_schema(schema, any_whitespace=False))
        matcher.fill_next_token_bitmask(bitmask)
        compile_s, times_s = time.thread_time() - started, list[float]()
        for _ in range(task["budget"]):
            started = time.thread_time()
            matcher.fill_next_token_bitmask(bitmask)
            times_s.append(time.thread_time() - started)
            token = _random_bit(bitmask.numpy().tobytes(), rng)
            if token is None:
                break
            started = time.thread_time()
            matcher.accept_token(token)
            times_s[-1] += time.thread_time() - started
            if matcher.is_terminated():
                return compile_s, times_s, True
        return compile_s, times_s, False

    return write


def _random_bit(mask: bytes, rng: random.Random) -> int | None:
    """A bit that is set, each as likely; None when none is."""
    bits = int.from_bytes(mask, "little")
    count = bits.bit_count()
    if count == 0:
        return None
    if count > 64:  # try places at random; all but the smallest masks of this size hit soon
        for _ in range(4096):
            place = rng.randrange(8 * len(mask))
            if mask[place >> 3] >> (place & 7) & 1:
                return place
    wanted = rng.randrange(count)
    for index, byte in enumerate(mask):
        here = byte.bit_count()
        if wanted < here:
            places = [bit for bit in range(8) if byte >> bit & 1]
            return 8 * index + places[wanted]
        wanted -= here
    return None


def main() -> None:
    """Measure whoever is installed."""
    task: Json = json.load(sys.stdin)
    tokens = [base64.b64decode(token) for token in task["tokens"]]
    for peer in (llguidance, xgrammar):
        rng = random.Random(1)
        try:
            write = peer(task, tokens, rng)
            version = importlib.import_module("importlib.metadata").version(peer.__name__)
        except ImportError:
            continue
        compile_s, times_s, blocks_s = list[float](), list[float](), list[float]()
        refused = closed = 0
        for schema in task["schemas"]:
            try:
                spent, masks, is_closed = write(schema)
            except Exception:  # a schema they do not take; they have no common error
                refused += 1
                continue
            compile_s.append(spent)
            times_s += masks
            blocks_s.append(
                sum(masks[: task["block"]]) * task["block"] / max(1, len(masks[: task["block"]]))
            )
            closed += is_closed
        print(
            json.dumps(
                {
                    "name": f"{peer.__name__} {version}",
                    "refused": refused,
                    "closed": closed,
                    "compile_s": compile_s,
                    "block_s": blocks_s,
                    "mask_s": times_s,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
