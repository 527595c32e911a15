"""The same prompts with the grammar and without."""

from __future__ import annotations

from agentdiff.embedded.forwards import compare


def test_the_grammar_makes_replies_valid_in_no_more_passes() -> None:
    found = compare(2)
    assert found["requests"] == found["valid_constrained"] == 2
    assert 0 < found["constrained"] <= found["unconstrained"]
    assert 0 < found["share"] < 1
