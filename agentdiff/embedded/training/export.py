"""A training checkpoint to a checkpoint folder that the engine loads.

`python -m agentdiff.embedded.training.export RUN/last.pt OUT`

Weights are stored as int8 with a scale for each row, in shards under 4 MiB.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from agentdiff.embedded.training.replies import REFUSAL
from agentdiff.embedded.training.tokenizer import END, MASK, PAD, WEIGHTS
from agentdiff.engine.families.lexicon import FILE as LEXICON
from agentdiff.engine.weights import quantize_rows, write_weights

SHARD_BYTES = 3_500_000
CONTEXT = 1024
REFUSAL_BIAS = 16.0
"""Added to the score of saying that no tool fits. A call is weighed by all tokens of its block, a refusal by one token
and the padding behind it, which was little trained: without it, calls win where the first token alone would refuse."""


def export(
    checkpoint: Path, folder: Path, *, tokenizer: Path = WEIGHTS, block_len: int = 16
) -> None:
    """Write config, tokenizer, chat template and weights into `folder`."""
    state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    folder.mkdir(parents=True, exist_ok=True)
    names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    names += [LEXICON] if state["shape"].get("lexicon_size") else []
    for name in names:
        if (tokenizer / name).resolve() != (folder / name).resolve():
            shutil.copyfile(tokenizer / name, folder / name)
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["AgentdiffRouter"],
        "model_type": "agentdiff_router",
        **state["shape"],
        "block_length": block_len,
        "max_position_embeddings": CONTEXT,
        "mask_token_id": vocabulary.token_to_id(MASK),
        "eos_token_id": [vocabulary.token_to_id(END), vocabulary.token_to_id(PAD)],
        "pad_token_id": vocabulary.token_to_id(PAD),
        "token_biases": {str(vocabulary.token_to_id(REFUSAL)): REFUSAL_BIAS},
        "quantization": "int8, one float32 scale for each row",
        "name": "agentdiff-router",
        "description": "block diffusion, trained on synthetic data",
        "agentdiff": {
            "style": "compact",
            "grounded": True,
            "refuses": True,
            "reads_instructions": False,
            "max_tools": 10,
            "max_reply": 128,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    for old in folder.glob("*.safetensors"):
        old.unlink()
    shards = write_weights(quantize_rows(state["model"]), folder, shard_bytes=SHARD_BYTES)
    sums = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in [*shards, "tokenizer.json"]
    }
    (folder / "sha256.json").write_text(json.dumps(sums, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    export(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        tokenizer=Path(sys.argv[3]) if len(sys.argv) > 3 else WEIGHTS,
    )
