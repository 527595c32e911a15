"""The router's tokenizer: byte-level BPE in which spaces, digits and punctuation always stand alone.

A value therefore has the same tokens in the request and in the JSON, so copying it is copying token ids. A few whole
pieces of reply structure are tokens of their own.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import jinja2
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentdiff.embedded.training import examples

if TYPE_CHECKING:
    from agentdiff.embedded.training.examples import Example

WEIGHTS = Path(__file__).parent.parent / "weights"
PAD, MASK, END = "<|pad|>", "<|mask|>", "<|end|>"
SPECIAL = [PAD, MASK, END, "<|tools|>", "<|user|>", "<|call|>", "<|result|>", "<|reply|>"]
STRUCTURE = [
    '{"tool":"', '","args":{"', '","args":{}}', '":"', '","', '"}}', '"}',
    '{"answer":"', '{"none":true}', '":', ',"', "}}",
]  # fmt: skip
_PIECES = r"[A-Za-z]+|[0-9]|\s|[^A-Za-z0-9\s]"


@cache
def chat_template() -> jinja2.Template:
    """The template of the checkpoint, compiled as transformers compiles it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((WEIGHTS / "chat_template.jinja").read_text("utf-8"))


def render(example: Example) -> str:
    """The prompt of an example, as the chat template writes it at inference."""
    return chat_template().render(
        messages=example.messages,
        tools=[tool.spec for tool in example.tools],
        add_generation_prompt=True,
    )


def build(*, vocab_size: int = 2048, count: int = 24_000, seed: int = 3) -> Tokenizer:
    """Train the tokenizer on `count` examples."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = Random(seed)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(STRUCTURE),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (render(e) + e.target for e in (examples.sample(rng) for _ in range(count)))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(STRUCTURE)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` so that transformers loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "mask_token": MASK,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    save(build(), WEIGHTS)
