"""Make the two generated evaluation sets: `python -m agentdiff.embedded.training.evaluation_sets`.

`shipped_phrasings.jsonl`: the shipped tools, asked for with phrases and values that training never sees.
`unseen_calls.jsonl`: tools that training never sees, six of a domain that are easy to confuse, with some strangers.
Seeded; written once and committed. The `hand_*.jsonl` sets beside them were written by hand.
"""

from __future__ import annotations

import json
from random import Random

from agentdiff.embedded.training import corpus, examples
from agentdiff.embedded.training.corpus import EVALUATION, Json
from agentdiff.embedded.training.replies import Digits, Example

COUNT = 600


def row(example: Example, *, shipped: bool) -> dict[str, Json]:
    """A call or a refusal in the format of the evaluation sets."""
    call = example.expected
    expect: dict[str, Json] = {"none": True}
    if call is not None:
        arguments: dict[str, Json] = {
            name: [float(value) if isinstance(value, Digits) else value]
            for name, value in call.arguments.items()
        }
        expect = {"tool": call.tool.name, "args": arguments}
    names = {tool.name for tool in example.tools}
    tools: Json = [tool.spec["function"] for tool in example.tools]
    if shipped and names == {tool.name for tool in corpus.shipped()}:
        tools = "shipped"
    return {"tools": tools, "request": example.request, "expect": expect}


def write(name: str, source: str, *, seed: int) -> None:
    """Write `COUNT` different requests of one source."""
    rng = Random(seed)
    rows: dict[str, dict[str, Json]] = {}
    while len(rows) < COUNT:
        example = examples.sample(rng, split="held", source=source, kind="call")
        if source == "unseen" and rng.random() < 0.3:
            names = {tool.name for tool in example.tools}
            strangers = [t for t in rng.sample(corpus.unseen(), 2) if t.name not in names]
            example = Example(
                example.kind,
                (*example.tools, *strangers)[:8],
                example.request,
                example.target,
                expected=example.expected,
            )
        rows.setdefault(example.request, row(example, shipped=source == "shipped"))
    with (EVALUATION / name).open("w", encoding="utf-8") as file:
        for value in rows.values():
            file.write(json.dumps(value, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write("shipped_phrasings.jsonl", "shipped", seed=20_261)
    write("unseen_calls.jsonl", "unseen", seed=20_262)
