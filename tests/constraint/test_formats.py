"""Formats take only what validators accept, and the usual values."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest

from agentdiff.constraint.automaton import END
from agentdiff.constraint.formats import FORMATS
from agentdiff.constraint.language import Language, matches
from agentdiff.constraint.matcher import Grammar
from agentdiff.constraint.spelling import RAW
from agentdiff.constraint.strings import string
from tests.constraint.doubles import BYTES, dumps


def walk(language: Language, rng: random.Random, wordy: bool) -> str:
    """One string of a language, at random; ends at the first chance, or late."""
    states = language.start[0]
    written = ""
    while True:
        ways = language.ways(states)
        if language.accepts(states) and (not ways or rng.random() < (0.05 if wordy else 0.6)):
            return written
        ways = [way for way in ways if language.size((way.target, 0)) < (10**6, 0)]
        if len(written) > 300:  # long enough: the shortest way out
            ways = [min(ways, key=lambda way: language.size((way.target, 0)))]
        way = rng.choice(ways)
        first, last = rng.choice(language.alphabet.letters[rng.choice(way.charset.letters)])
        written += chr(rng.choice([first, last, rng.randint(first, last)]))
        states = way.target


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_a_format_takes_passes_the_validators(name: str) -> None:
    validators: list[Any] = [
        jsonschema.Draft202012Validator(
            {"format": name}, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
    ]
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    validators.append(jsonschema_rs.validator_for({"format": name}, validate_formats=True))
    language = Language((FORMATS[name],), (), 0, RAW)
    rng = random.Random(name)
    for k in range(200):
        text = walk(language, rng, wordy=k % 2 == 0)
        assert all(v.is_valid(text) for v in validators), text


GOOD: dict[str, list[str]] = {
    "date": ["2024-02-29", "2000-02-29", "2026-11-30", "0001-01-01", "9999-12-31", "1999-01-31"],
    "time": ["12:00:00Z", "23:59:59.999+14:00", "00:00:00-05:30"],
    "date-time": ["2026-11-30T12:04:29Z", "1985-04-12T23:20:50.52+01:00"],
    "duration": ["P1Y", "PT5M", "P3Y6M4DT12H30M5S", "P2W", "PT36H"],
    "email": [
        "a@b.co",
        "first.last+tag@mail.example.ac.uk",
        "x_y-z@a-b.example",
        "joe'o@x.io",
        "a@b",
    ],
    "hostname": ["example.com", "a", "xn1.a-b.c3", "localhost"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "192.168.1.10"],
    "ipv6": [
        "::",
        "::1",
        "2001:db8::ff00:42:8329",
        "1:2:3:4:5:6:7:8",
        "fe80::",
        "1::8",
        "::ffff:10.0.0.1",
    ],
    "uri": [
        *("https://example.com", "http://a.b:8080/x/y?q=1&r=%20#top", "urn:isbn:0451450523"),
        *(
            "mailto:a@b.co",
            "file:/etc/hosts",
            "ftp://u:p@127.0.0.1/",
            "file:///x",
            "http://[::1]:80/",
        ),
    ],
    "uri-reference": ["", "/", "/a/b?c#d", "a/b", "../x", "#top", "?q", "//host/x", "https://x.y"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "FFFFFFFF-0000-4000-8000-000000000000"],
    "json-pointer": ["", "/a/0/~0~1", "/é"],
    "relative-json-pointer": ["0", "1/a", "12#"],
}
BAD: dict[str, list[str]] = {
    "date": ["2023-02-29", "1900-02-29", "2026-13-01", "2026-04-31", "0000-01-01", "2026-1-1", ""],
    "time": ["12:00:00", "24:00:00Z", "12:60:00Z", "12:00Z", "23:59:60Z", "12:00:00.Z"],
    "date-time": ["2026-11-30 12:04:29Z", "2026-11-30T12:04:29", "2026-02-29T00:00:00Z"],
    "duration": ["P", "PT", "P1Y2D", "P1W2D", "PT1H2S", "1Y", "P1S"],
    "email": ["a", "a@", "@b", "a..b@c.de", ".a@b.co", "a@b..c", "a b@c.de", "a@-b.co", "é@b.co"],
    "hostname": ["", "-a", "a-", "a..b", "a_b", ".", "xn--a", "é.com"],
    "ipv4": ["256.1.1.1", "1.1.1", "01.1.1.1", "1.1.1.1.1"],
    "ipv6": [":", "1:2:3:4:5:6:7", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "1:2:3:4:5:6:7::8:9"],
    "uri": ["", "/a", "a b:c", "http://a b", "http://x/%zz", "1http://x", "http://[::1"],
    "uri-reference": ["a b", "a:b c", "\\", "%", "é"],
    "uuid": ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"],
    "json-pointer": ["a", "/~2", "/~"],
    "relative-json-pointer": ["", "01", "-1", "1##"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_usual_values_of_a_format(name: str) -> None:
    grammar = Grammar(string(0, None, END, patterns=[FORMATS[name]]), BYTES)
    assert [t for t in GOOD[name] if not grammar.accepts(dumps(t))] == []
    assert [t for t in BAD[name] if grammar.accepts(dumps(t))] == []
    assert all(matches(FORMATS[name], t) for t in GOOD[name])


def test_a_format_goes_with_a_length() -> None:
    assert string(0, 9, END, patterns=[FORMATS["date"]]).is_dead
    start = string(0, 12, END, patterns=[FORMATS["email"]])
    assert Grammar(start, BYTES).accepts(b'"abcd@defg.hi"')
    assert not Grammar(start, BYTES).accepts(b'"abcd@defg.hij"')


def test_formats_that_nobody_reads_alike_are_not_offered() -> None:
    assert {"idn-email", "idn-hostname", "regex", "uri-template"}.isdisjoint(FORMATS)
    assert len(FORMATS) == len(GOOD) == len(BAD)
