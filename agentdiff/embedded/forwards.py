"""Forward passes of the embedded model with its grammar and without, at the same threshold."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentdiff.backends.local import LocalBackend
from agentdiff.backends.validation import AnyDraftValidator
from agentdiff.embedded.bench import EVALUATION, SETS, load_cases
from agentdiff.embedded.tools import shipped_tools
from agentdiff.messages import Json

_FILE = SETS["shipped tools, unseen phrasings"][0]


def compare(count: int) -> dict[str, Any]:
    """Decode the same prompts with and without the grammar.

    A reply is valid when it is JSON that satisfies the schema of the request: which it is by
    construction with the grammar, and by luck without.

    Args:
        count: How many requests of the evaluation set for the shipped tools.
    """
    backend = LocalBackend.load("embedded")
    with tempfile.TemporaryDirectory() as root:
        specs = {tool.name: tool.spec for tool in shipped_tools(Path(root))}
    cases = load_cases(EVALUATION / _FILE, specs, lambda _name, _arguments: "")[:count]
    found: dict[str, Any] = {"requests": len(cases)}
    for is_constrained in (True, False):
        passes = valid = 0
        constraint_s = decode_s = 0.0
        for case in cases:
            # The same prompt, parameters and schema as a request has; only the grammar differs.
            job = backend._begin(case.request, time.perf_counter())  # pyright: ignore[reportPrivateUsage]
            engine = backend._engine  # pyright: ignore[reportPrivateUsage]
            matcher = job.matcher if is_constrained else None
            (output,) = engine.generate([job.prompt], job.params, [matcher])
            passes += output.stats.forwards
            constraint_s += output.stats.constraint_s
            decode_s += output.stats.decode_s
            text = b"".join(
                backend._vocabulary.tokens[t] or b""  # pyright: ignore[reportPrivateUsage]
                for t in output.tokens
            )
            valid += _satisfies(text, job.schema)
        name = "constrained" if is_constrained else "unconstrained"
        found |= {name: passes, f"valid_{name}": valid}
        if is_constrained:
            found["share"] = constraint_s / decode_s if decode_s else 0.0
    return found


def _satisfies(text: bytes, schema: Mapping[str, Json] | None) -> bool:
    try:
        value = json.loads(text.decode())
    except ValueError:
        return False
    return schema is None or bool(AnyDraftValidator(schema).is_valid(value))
