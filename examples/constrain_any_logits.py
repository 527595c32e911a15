"""The constraint engine alone: noise in, valid JSON out, whatever order the positions are committed in.

Needs numpy, which comes with `pip install 'agentdiff[local]'`.
"""

import json

import numpy as np

from agentdiff.constraint import Vocabulary, compile_schema

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Zürich", "東京"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}

# A vocabulary of all single bytes and a few longer pieces; id 0 ends the text.
pieces = [None, *(bytes([byte]) for byte in range(256)), b'{"city": "', b'", "days": ']
vocabulary = Vocabulary(pieces, eos_ids=[0])
grammar = compile_schema(SCHEMA, vocabulary)
print(f"shortest valid output: {grammar.min_tokens} tokens")

rng = np.random.default_rng(7)
length = 24
matcher = grammar.start(budget=length)
pinned: dict[int, int] = {}
passes = 0
while len(pinned) < length:
    logits = rng.normal(size=(length, len(pieces))) * 3  # a model that knows nothing
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    proposal = matcher.propose(log_probs, pinned)
    passes += 1
    open_positions = [place for place in range(length) if place not in pinned]
    surest = max(open_positions, key=lambda place: proposal.confidence[place])
    for place in open_positions:
        if proposal.forced[place] or place == surest:
            pinned[place] = int(proposal.tokens[place])

text = b"".join(pieces[pinned[place]] or b"" for place in range(length)).decode()
print(f"after {passes} passes over {length} positions: {text}")
assert json.loads(text)["city"] in ("Oslo", "Zürich", "東京")
