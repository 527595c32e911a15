import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.backends.exclusive import ExclusiveMatcher
from agentdiff.constraint import StepScores, Vocabulary, compile_schema

BYTES = Vocabulary([None, *(bytes([n]) for n in range(256))], [0])
TEXT = "bed of printer 3 at 26 degrees for Ann Lee"
SCHEMA = {
    "type": "object",
    "properties": {
        "args": {
            "type": "object",
            "properties": {
                "printer": {"enum": [3, 26]},
                "celsius": {"enum": [3, 26]},
                "who": {"type": "string"},
                "whose": {"type": "string"},
            },
            "required": ["printer", "celsius"],
            "additionalProperties": False,
        }
    },
    "required": ["args"],
    "additionalProperties": False,
}
LENGTH = 72
SPANS = {"/args/who": [TEXT], "/args/whose": [TEXT]}


GRAMMAR = compile_schema(SCHEMA, BYTES, style="compact", grounding=SPANS)


def matcher(text=TEXT):
    return ExclusiveMatcher(GRAMMAR.start(LENGTH), BYTES, [text])


def row_of(text):
    """Log-probabilities that want a text, and after it the end."""
    wanted = [1 + byte for byte in text.encode()]
    wanted += [0] * (LENGTH - len(wanted))
    scores = np.full((LENGTH, len(BYTES)), -9.0)
    scores[np.arange(LENGTH), wanted] = -0.01
    return scores, wanted


def written(tokens):
    return b"".join(BYTES.tokens[int(t)] or b"" for t in tokens).decode()


def arguments(fill):
    return json.loads(written(fill.tokens))["args"]


def test_two_numbers_that_are_said_once_are_not_both_taken():
    scores, _ = row_of('{"args":{"printer":3,"celsius":3}}')
    assert sorted(arguments(matcher().propose(scores, {})).values()) == [3, 26]


def test_the_likelier_of_the_two_stays():
    scores, _ = row_of('{"args":{"printer":3,"celsius":3}}')
    at = '{"args":{"printer":3,"celsius":3'.rindex("3")
    scores[at, 1 + ord("2")] = -1.0
    assert arguments(matcher().propose(scores, {})) == {"printer": 3, "celsius": 26}


def test_a_number_that_is_said_twice_may_be_taken_twice():
    scores, wanted = row_of('{"args":{"printer":3,"celsius":3}}')
    fill = matcher("3 at 3 and 26").propose(scores, {})
    assert fill.tokens.tolist() == wanted


def test_strings_that_overlap_are_the_same_words():
    scores, _ = row_of('{"args":{"printer":3,"celsius":26,"who":"Ann Lee","whose":"Ann"}}')
    fill = matcher().propose(scores, {})
    one, other = arguments(fill)["who"], arguments(fill).get("whose", "")
    assert not (set(one.split()) & set(other.split()))


def test_what_is_committed_stays_and_the_other_gives_way():
    scores, wanted = row_of('{"args":{"printer":3,"celsius":3}}')
    head = len('{"args":{"printer":3')
    fill = matcher().propose(scores, dict(enumerate(wanted[:head])))
    assert arguments(fill) == {"printer": 3, "celsius": 26}


def test_what_an_earlier_block_wrote_counts():
    scores, wanted = row_of('{"args":{"printer":3,"celsius":3}}')
    head = len('{"args":{"printer":3,')
    begun = matcher()
    begun.advance(wanted[:head])
    assert written(begun.copy().propose(scores[head:], {}).tokens) == '"celsius":26}}'


def test_a_value_that_the_block_cuts_is_seen_to_repeat():
    scores, _ = row_of('{"args":{"printer":26,"celsius":26}}')
    scores = scores[: len('{"args":{"printer":26,"celsius":2')]
    text = written(matcher().propose(scores, {}).tokens)
    assert not text.endswith("2") or '"printer":3' in text


def test_where_nothing_else_fits_words_are_taken_twice():
    schema = {"properties": {"args": {"properties": {"a": {"const": 3}, "b": {"const": 3}}}}}
    for node in (schema, schema["properties"]["args"]):
        node |= {"type": "object", "additionalProperties": False, "required": [*node["properties"]]}
    grammar = compile_schema(schema, BYTES, style="compact")
    only = ExclusiveMatcher(grammar.start(LENGTH), BYTES, ["3"])
    scores, wanted = row_of('{"args":{"a":3,"b":3}}')
    assert only.propose(scores, {}).tokens.tolist() == wanted


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.8]))
def test_any_subset_of_a_proposal_can_be_committed(seed, temperature):
    """The witness law holds with the exclusion, step by step until the text is whole."""
    rng = np.random.default_rng(seed)
    own, pinned = matcher(), {}
    while len(pinned) < LENGTH:
        scores = rng.normal(size=(LENGTH, len(BYTES))) * 3
        scores -= np.logaddexp.reduce(scores, axis=1)[:, None]
        fill = own.propose(scores, pinned, temperature=temperature, rng=rng)
        assert all(fill.tokens[n] == token for n, token in pinned.items())
        chosen = rng.random(LENGTH) < 0.7
        chosen[rng.integers(LENGTH)] = True
        pinned |= {n: int(fill.tokens[n]) for n in np.flatnonzero(chosen)}
    found = json.loads(written([pinned[n] for n in range(LENGTH)]))["args"]
    assert {"printer", "celsius"} <= found.keys()


def test_a_seed_gives_the_same_fill_again():
    scores, _ = row_of('{"args":{"printer":3,"celsius":3}}')
    fills = [
        matcher().propose(scores, {}, temperature=1.0, rng=np.random.default_rng(5)).tokens.tolist()
        for _ in range(2)
    ]
    assert fills[0] == fills[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_by_parts_give_the_same_fill(temperature):
    scores, _ = row_of('{"args":{"printer":3,"celsius":3}}')
    own = matcher()
    whole = own.copy().propose(scores, {}, temperature=temperature, rng=np.random.default_rng(2))
    reduced = StepScores.reduced(
        scores, own.parts, temperature=temperature, rng=np.random.default_rng(2)
    )
    parted = own.propose(reduced, {}, temperature=temperature, rng=np.random.default_rng(2))
    assert sorted(arguments(parted).values()) == [3, 26]
    if temperature == 0:
        assert parted.tokens.tolist() == whole.tokens.tolist()


@pytest.mark.parametrize(
    ("text", "wanted", "is_taken"),
    [
        ("how many kelvin per degree", "kelvin per", False),
        ("how many kelvin per degree", "kelvin", True),
        ("note what it is for", "what it is for", True),
        ("note it now! thanks", "it now!", False),
        ('note "it now!" thanks', "it now!", True),
        ("call her, Bo", "her,", False),
        ("put it on in May", "on", True),
    ],
)
def test_a_value_is_not_cut_in_the_middle_of_a_phrase(text, wanted, is_taken):
    grammar = compile_schema(SCHEMA, BYTES, style="compact", grounding={"/args/who": [text]})
    own = ExclusiveMatcher(grammar.start(LENGTH), BYTES, [text])
    scores, _ = row_of(f'{{"args":{{"printer":3,"celsius":26,"who":"{wanted}"}}}}')
    assert (arguments(own.propose(scores, {})).get("who") == wanted) is is_taken
