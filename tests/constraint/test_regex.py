"""Patterns take exactly the strings they describe, alone, together and with lengths."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.constraint import Grammar, language
from agentdiff.constraint.automaton import END, NOWHERE
from agentdiff.constraint.language import matches
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.strings import string
from agentdiff.constraint.terms import Pattern
from agentdiff.errors import SchemaError
from tests.constraint.doubles import BYTES, WORDS, decode, dumps, text_of

SHORT = ["".join(letters) for n in range(4) for letters in product('ab"', repeat=n)]


def grammar_of(
    *patterns: str | Pattern,
    low: int = 0,
    high: int | None = None,
    excluded: Any = (),
    vocabulary: Any = BYTES,
) -> Grammar | None:
    parsed = [parse_pattern(p) if isinstance(p, str) else p for p in patterns]
    start = string(low, high, END, patterns=parsed, excluded=excluded)
    return None if start is NOWHERE else Grammar(start, vocabulary)  # fmt: skip


def taken(grammar: Grammar | None, texts: list[str]) -> list[str]:
    return [] if grammar is None else [t for t in texts if grammar.accepts(dumps(t))]


def _repeated(item: str, sign: str) -> str:
    return f"(?:{item}){sign}"


EXPRESSIONS: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["a", "b", '"', ".", "[ab]", "[^a]", "\\w", "\\W", "", "^", "$", "a$", "^b"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda ways: f"(?:{'|'.join(ways)})"),
        st.builds(
            _repeated,
            inner,
            st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "{0}"]),
        ),
    ),
    max_leaves=7,
)
"""Expressions that mean the same in ECMA-262 and, with `\\Z` for `$`, in Python."""


def parsed_or_none(text: str) -> Pattern | None:
    try:
        return parse_pattern(text)
    except SchemaError:  # an anchor in a repetition
        assert re.search(r"[\^$]", text)
        return None


def in_python(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("$", r"\Z"))


@settings(max_examples=60, deadline=None)
@given(text=EXPRESSIONS)
def test_a_pattern_takes_exactly_the_strings_it_describes(text: str) -> None:
    pattern = parsed_or_none(text)
    if pattern is None:
        return
    expected = [t for t in SHORT if in_python(text).search(t)]
    assert taken(grammar_of(pattern), SHORT) == expected
    assert [t for t in SHORT if matches(pattern, t)] == expected
    assert taken(grammar_of(pattern.negated()), SHORT) == [t for t in SHORT if t not in expected]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(EXPRESSIONS, min_size=1, max_size=3),
    low=st.integers(0, 3),
    span=st.one_of(st.none(), st.integers(0, 3)),
    excluded=st.lists(st.sampled_from(SHORT), max_size=4),
)
def test_several_patterns_a_length_and_exclusions_hold_together(
    texts: list[str], low: int, span: int | None, excluded: list[str]
) -> None:
    patterns = [p for p in map(parsed_or_none, texts) if p is not None]
    high = None if span is None else low + span
    expected = [
        t
        for t in SHORT
        if low <= len(t) <= (9 if high is None else high)
        and t not in excluded
        and all(in_python(p.text).search(t) for p in patterns)
    ]
    grammar = grammar_of(*patterns, low=low, high=high, excluded=excluded)
    assert taken(grammar, SHORT) == expected


def test_emptiness_is_known() -> None:
    assert grammar_of("^a+$", "^b+$") is None
    assert grammar_of("^(aa)+$", "^a(aa)*$", high=65535) is None
    assert grammar_of("^[a-z]{3}$", low=5) is None
    assert grammar_of("^[a-z]{3}$", high=2) is None
    assert grammar_of("^a?$", excluded=["", "a"]) is None
    assert grammar_of("^[]$") is None
    assert grammar_of("a^") is None
    assert grammar_of("^\\u0001$") is None  # cannot be written in a JSON string of ours
    assert grammar_of("^(?!a)a") is None


TABLE: list[tuple[str, list[str], list[str]]] = [
    ("foo", ["foo", "a foo", "foobar"], ["fo", ""]),
    ("^a|b$", ["ab", "ax", "xb"], ["xa", "bx"]),
    ("(^a|b)c", ["ac", "xbc", "acx"], ["xac", "c"]),
    ("(,|^)a(,|$)", ["a", "x,a", "a,b", "x,a,y"], ["ab", "xa"]),
    ("^$", [""], ["a", "\n"]),
    ("^a$", ["a"], ["a\n"]),
    (r"^\d+$", ["0123456789"], ["", "٣", "a"]),
    (r"^\w$", ["a", "_", "7"], ["é", "-", " "]),
    (r"^\W$", ["-", " ", "€", "😀"], ["a", "é", "_"]),
    (r"^\D$", ["a", "é"], ["1", "٣"]),
    (r"^\s$", [" ", "\t", "\n", "\u00a0", "\u2028"], ["a", "\u200b", "\ufeff"]),
    (r"^\S+$", ["aé"], ["a b", ""]),
    (r"^[\s\S]{2}$", ["a\n", "\ufeff\x7f"], ["a"]),
    ("^.$", ["a", "😀", "\u0085"], ["\n", "\r", "\u2028", "\u2029", ""]),
    (r"^\u00e9\x41\t\u{1F600}\ud83d\ude00\cJ$", ["éA\t😀😀\n"], ["éA\t😀"]),
    (r"^[a\-z]$", ["a", "-", "z"], ["b"]),
    (r"^[\w-.]$", ["a", "-", "."], [",", "/"]),
    (r"^[a-c\]\\^]$", ["b", "]", "\\", "^"], ["d"]),
    ("^[^a]$", ["b", "\n", "é"], ["a", ""]),
    ("^[^]$", ["a", "\n"], [""]),
    (r"^[\b]$", ["\b"], ["b"]),
    ("^{a}]$", ["{a}]"], ["a"]),
    ("^a{,3}$", ["a{,3}"], ["aaa"]),
    (r"^\/\-\.\$$", ["/-.$"], ["/"]),
    ("^(?<year>[0-9]{4})$", ["2026"], ["26"]),
    ("^a+?b*?$", ["aab"], ["b"]),
    ("^(?=.*[A-Z])(?=.*[0-9]).{3,}$", ["A1b", "xx1A"], ["A1", "abc", "ABC"]),
    ("^(?!foo)[a-z]+$", ["bar", "fo"], ["foo", "foobar"]),
    ("^(?!foo$)[a-z]+$", ["foobar", "bar"], ["foo"]),
    (r"^(?!\s*$).+", ["a", " a"], ["", "  "]),
    ("^[a-z]+(?=[.]y)", ["a.y", "ab.yml"], ["a", "a.z"]),
    ("a(?=b)|c(?=d)", ["ab", "xcd"], ["ac", "cb"]),
    (r"^\p{Lu}\p{Letter}*$", ["É", "Ab", "Ж日"], ["a", "A1"]),
    (r"^\P{L}$", ["1", " "], ["a", "é"]),
    ("^(?:a|bc){2,3}$", ["aa", "abc", "bcbca"], ["a", "aaaa"]),
    ('^["\\\\]+$', ['"', '\\"'], ["a"]),
    ("(a?){0,1000}", ["", "b"], []),
    ("^(a*)*$", ["", "aaa"], ["b"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), TABLE, ids=[t[0] for t in TABLE])
def test_ecma_semantics(text: str, good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(text)
    assert taken(grammar, good) == good
    assert taken(grammar, bad) == []
    pattern = parse_pattern(text)
    assert all(matches(pattern, t) for t in good)
    assert not any(matches(pattern, t) for t in bad)


def test_classes_on_which_readers_differ_are_narrowed_on_both_sides() -> None:
    everywhere = [chr(c) for c in (*range(0x20, 0x250), 0x663, 0x1680, 0x200B, 0xFEFF, 0x3042)]
    for letter in "dws":
        inside, outside = (
            taken(grammar_of(f"^\\{c}$"), everywhere) for c in (letter, letter.upper())
        )
        assert all(re.fullmatch(f"\\{letter}", c) for c in inside)
        assert all(re.fullmatch(f"\\{letter.upper()}", c) for c in outside)
        assert not set(inside) & set(outside)
        refused = taken(grammar_of(f"^(?!\\{letter})"), everywhere)
        assert refused == outside


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a(?=b)c", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "back-reference"),
        (r"(?<n>a)\k<n>", "back-reference"),
        (r"\bword\b", "word boundary"),
        ("(?i)abc", r"\(\?i"),
        ("(?P<n>a)", r"\(\?P"),
        ("(a", "not closed"),
        ("a)", "closes no group"),
        ("[a", "not closed"),
        ("[b-a]", "out of order"),
        ("a{2,1}", "out of order"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("^*", "assertion"),
        ("(^a)*", "anchor"),
        (r"\p{Script=Greek}", "Script"),
        (r"\pL", "braces"),
        ("\\", "backslash"),
        (r"\q", r"\\q"),
        (r"\u12", "hexadecimal"),
        (r"\u{110000}", "malformed"),
        ("(" * 5000, "deep"),
    ],
)
def test_what_cannot_be_enforced_is_named(text: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why) as error:
        parse_pattern(text)
    assert error.value.keyword == "pattern"


def test_counts_cost_nothing_until_somebody_walks_there() -> None:
    for text, low, high in [
        ("[ab]*a[ab]{13}", 0, None),
        ("^.{0,65535}$", 0, 65535),
        ("^(a{0,1000}){0,1000}$", 0, None),
        ("^([a-z]{1,63}[.]){1,127}[a-z]{2,63}$", 3, 253),
        ("^.*$", 0, 65535),
    ]:
        grammar = grammar_of(text, low=low, high=high)
        assert grammar is not None
        assert grammar.min_tokens <= 17


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_MAX_SEARCH", 500)
    with pytest.raises(SchemaError, match="simplify"):
        grammar_of(
            "^(a|b){0,50}a(a|b){40}$", "^(a|b){0,50}b(a|b){39}$", "^(a|b)*aa(a|b){38,39}$", low=89
        )


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("foo", 0, 9),
        ("^[^@]+@[^@]+$", 0, 12),
        (r"^\p{Lu}\w*\W$", 0, None),
        ("^(?=.*[A-Z])(?=.*[0-9])(?!.*x).{8,}$", 0, 20),
        ("[ab]*a[ab]{5}", 0, 65535),
        ('^(?:日本|München|\\\\|")+$', 2, 9),
    ],
)
@pytest.mark.parametrize("vocabulary", [BYTES, WORDS], ids=["bytes", "words"])
def test_whatever_is_written_matches_and_closes_in_time(
    text: str, low: int, high: int | None, vocabulary: Any
) -> None:
    grammar = grammar_of(text, low=low, high=high, vocabulary=vocabulary)
    assert grammar is not None
    for seed in range(3):
        rng = np.random.default_rng(seed)
        budget = grammar.min_tokens + 3 * seed
        tokens = decode(grammar.start(budget), vocabulary, rng, block=8, choose=lambda c, o: o)
        value = json.loads(text_of(tokens, vocabulary).decode())
        assert low <= len(value) <= (high or 10**6)
        assert re.search(text.replace(r"\p{Lu}", "[^\\W\\d_]"), value)
