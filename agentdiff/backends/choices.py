"""Which of a parameter's choices a request names: `severity` may be "serious", and the user said "serious".

A grounded model's arguments are held to them (`actions.reply_schema`), so that a small model cannot pass over the very
word that it was given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORTEST = 3
"""Letters that a choice has at least; shorter ones (`c`, `on`) stand in many a request by chance."""


def named(choices: Sequence[object], texts: Sequence[str]) -> list[str]:
    """The `choices` that stand in `texts` as whole words, in their order.

    Case does not matter, and `_` and `-` are spaces. Where one choice is a part of another, the longer one is meant;
    one that is denied (`not urgent`) is not named.
    """
    forms = {_plain(c): c for c in choices if isinstance(c, str) and len(c) >= SHORTEST}
    if not forms:
        return []
    longest_first = sorted(map(re.escape, forms), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(not |no |non )?({'|'.join(longest_first)})(?!\w)")
    found = {
        forms[match[2]]
        for text in texts
        for match in pattern.finditer(_plain(text))
        if not match[1]
    }
    return [choice for choice in forms.values() if choice in found]


def _plain(text: str) -> str:
    return text.lower().replace("_", " ").replace("-", " ")
