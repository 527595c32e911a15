from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.backends import sse
from agentdiff.backends.sse import EventReader, EventTooLong

SCRIPT = (
    "\ufeff: a comment\n\ndata: plain\n\n:\r\n\r\nevent: x\r\nid: 4\r\ndata:no space\r\n\r\n"
    "data: two\rdata: lines\r\rdata:\n\ndata\n\nretry: 3\n\ndata: ünïcode 🎉 \u2028 in\n\n"
    "data: the end has no blank line"
).encode()
EVENTS = ["plain", "no space", "two\nlines", "", "", "ünïcode 🎉 \u2028 in"]
LAST = "the end has no blank line"


def test_comments_line_ends_and_lines_of_one_event_are_understood() -> None:
    reader = EventReader()
    assert reader.feed(SCRIPT) == EVENTS
    assert reader.close() == [LAST]
    assert reader.close() == []


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=12))
def test_where_the_reads_are_cut_makes_no_difference(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(SCRIPT)]
    reader = EventReader()
    events: list[str] = []
    for start, end in pairwise(edges):
        events += reader.feed(SCRIPT[start:end])
    assert events + reader.close() == [*EVENTS, LAST]


def test_an_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 60 + b"\n")
    with pytest.raises(EventTooLong):
        reader.feed(b"data: " + b"x" * 60)
