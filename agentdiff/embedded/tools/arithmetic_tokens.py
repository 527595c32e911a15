"""From arithmetic as people type it to tokens: numbers, portions of one, names and signs.

`plain` rewrites signs and phrases (`the square root of 9 times 2` is `sqrt 9 * 2`); `cut` cuts that
into tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from agentdiff.embedded.tools.numerals import (
    ORDINALS,
    PORTIONS,
    SCALES,
    SMALL,
    TENS,
    is_numeral,
    read_spelled,
)
from agentdiff.errors import ToolFailed

MAX_EXPONENT = 400
"""Of a number written like 1e400."""

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("×·∙⋅✕✖", "*"),
        **dict.fromkeys("÷∕", "/"),
        **dict.fromkeys("−–—", "-"),
        **dict.fromkeys("[{", "("),
        **dict.fromkeys("]}", ")"),
        **dict.fromkeys("$€£¥", ""),
        **{"½": "(1/2)", "¼": "(1/4)", "¾": "(3/4)", "⅓": "(1/3)", "⅔": "(2/3)", "⅛": "(1/8)"},
        **{"√": " sqrt ", "∛": " cbrt ", "π": " pi ", "’": "'", "°": " degrees "},
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_PHRASES = (
    (r"^(?:please )?(?:what is|what's|whats|how much is|calculate|compute|evaluate|solve)\b", " "),
    (r"\*\*", "^"),
    (rf"\b({'|'.join(TENS)})-({'|'.join(list(SMALL)[1:10])})\b", r"\1 \2"),
    (r"\b(?:raised )?to the (?:power (?:of )?)?", " ^ "),
    (r"(?<=\d)(?:st|nd|rd|th)\b(?: power\b)?", " "),
    (r"\bremainder (?:of|when) (.+?) (?:is )?divided by (.+)", r"(\1) mod (\2)"),
    (r"\b(?:multiplied by|times)\b", " * "),
    (r"\b(?:divided by|over)\b", " / "),
    (r"\b(?:plus|increased by|added to)\b", " + "),
    (r"\b(?:minus|less|decreased by|reduced by|take away|negative)\b", " - "),
    (r"\bmodulo\b", " mod "),
    (r"\b(?:percent|per cent|pct)\b", " % "),
    (r"\bsquared\b", " ^ 2 "),
    (r"\bcubed\b", " ^ 3 "),
    (r"\b(?:square root|sqrt)(?: of)?\b", " sqrt "),
    (r"\b(?:cube root|cbrt)(?: of)?\b", " cbrt "),
    (r"\b(square|cube|factorial|log|logarithm|sine|cosine|tangent) of\b", r" \1 "),
    (r"\babsolute value of\b", " abs "),
    (r"\bdegrees?\b", " "),
)
_ORDINAL_POWER = re.compile(
    rf"\bto the ({'|'.join(sorted(ORDINALS, key=len, reverse=True))})(?: power)?\b"
)
_LEXEME = re.compile(
    r"""\s*(?:
      (?P<number> \d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)? | (?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+(?![a-z]))? )
    | (?P<word> log10 | log2 | [a-z]+ )
    | (?P<sign> [-+*/^()%!,] )
    )""",
    re.VERBOSE | re.ASCII,
)
_ARTICLES = ("a", "an", "the")
_SIGN_WORDS = {"x": "*", "on": "of"} | {
    word: word for word in ("mod", "of", "off", "and", "by", "from", "to", "with", "between")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A number, a portion (`half`, `two thirds`), a name (`sqrt`) or a sign (`+`, `%`, `of`)."""

    kind: Literal["number", "portion", "name", "sign"]
    text: str
    value: Fraction = Fraction(0)


def plain(text: str) -> str:
    """`text` in lower case, with the words for signs replaced by the signs."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: f"^{m[0].translate(_SUPERSCRIPTS)} ", text)
    text = " ".join(text.translate(_SIGNS).lower().split())
    text = _ORDINAL_POWER.sub(lambda m: f" ^ {ORDINALS[m[1]]} ", text)
    for pattern, replacement in _PHRASES:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def cut(text: str) -> list[Token]:
    """The tokens of a `plain` text.

    Raises:
        ToolFailed: It has a character that is no part of arithmetic, or a number out of bounds.
    """
    pieces: list[str] = []
    at = 0
    while at < len(text):
        found = _LEXEME.match(text, at)
        if found is None:
            raise ToolFailed(
                f"cannot read {text[at : at + 20]!r} as arithmetic; write it like `12 * (3 + 4)`"
            )
        pieces.append(found[0].strip())
        at = found.end()
    pieces = [piece for piece in pieces if piece not in _ARTICLES]
    tokens: list[Token] = []
    at = 0
    while at < len(pieces):
        token, taken = _token(pieces[at:])
        tokens.append(token)
        at += taken
    return tokens


def _token(pieces: list[str]) -> tuple[Token, int]:
    """The first token of `pieces` and how many of them it takes."""
    first = pieces[0]
    number = _number(pieces)
    if number is None:
        if first in PORTIONS:
            return Token(kind="portion", text=first, value=PORTIONS[first]), 1
        if first.isalnum() and first not in _SIGN_WORDS:
            return Token(kind="name", text=first), 1
        return Token(kind="sign", text=_SIGN_WORDS.get(first, first)), 1
    value, taken = number
    match pieces[taken : taken + 2]:
        case [portion, *_] if portion in PORTIONS:  # two thirds
            return Token(kind="portion", text=first, value=value * PORTIONS[portion]), taken + 1
        case ["and", portion] if portion in PORTIONS:  # two and a half
            return Token(kind="number", text=first, value=value + PORTIONS[portion]), taken + 2
        case _:
            return Token(kind="number", text=first, value=value), taken


def _number(pieces: list[str]) -> tuple[Fraction, int] | None:
    if is_numeral(pieces[0]):
        return read_spelled(pieces)
    if not re.match(r"\.?\d", pieces[0]):
        return None
    mantissa, _, exponent = pieces[0].replace(",", "").partition("e")
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT):
        raise ToolFailed(f"{pieces[0]} is too large or too small to compute with")
    value, taken = Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0), 1
    while taken < len(pieces) and pieces[taken] in SCALES:  # 2.5 million
        value, taken = value * SCALES[pieces[taken]], taken + 1
    return value, taken
