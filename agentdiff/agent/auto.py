"""`mode="auto"`: is a prompt worth a plan? Told from words alone, without asking a model.

A plan pays where two or more tools are needed. A tool looks needed where the prompt has a word of its
name that no other tool's name has: `circle_area` and `triangle_area` are told apart by the shape, not
by the area. How often that is right is measured in `tests/benchmarks/plans.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from agentdiff.messages import ToolSpec

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[a-z]{3,}")
_SAME_CHARS = 5
"""Letters by which two words are taken for forms of one: convert, converting."""


def looks_like_several(prompt: str, specs: Sequence[ToolSpec]) -> bool:
    """Whether two or more of the tools look needed."""
    asked = _words(prompt)
    named = [_words(spec.name) for spec in specs]
    tools_with = Counter(word for words in named for word in words)
    return sum(any(tools_with[word] == 1 for word in words & asked) for words in named) >= 2


def _words(text: str) -> set[str]:
    return {word[:_SAME_CHARS] for word in _WORD.findall(_HUMP.sub(" ", text).lower())}
