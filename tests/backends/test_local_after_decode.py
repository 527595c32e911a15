"""What is checked once more after a decode: no right answer is taken for a bug, no wrong one for right."""

from __future__ import annotations

import stat

import pytest

from agentdiff.backends import after_decode
from agentdiff.backends.after_decode import Dump, fault, keep

pytestmark = pytest.mark.local

RIGHT = [
    (0.3, {"multipleOf": 0.1}),
    (19.99, {"multipleOf": 0.01}),
    (1, {"minimum": 0, "exclusiveMinimum": True}),
    ("ñ", {"type": "string", "pattern": r"^\p{L}$"}),
    ("13:37:00Z", {"type": "string", "format": "time"}),
    ({"a": 1}, {"$ref": "#/$defs/a", "$defs": {"a": {"required": ["a"]}}}),
]
WRONG = [
    (0.35, {"multipleOf": 0.1}, "$: multipleOf"),
    (0, {"minimum": 0, "exclusiveMinimum": True}, "$: exclusiveMinimum"),
    (
        {"a": {"b": "x"}},
        {"properties": {"a": {"properties": {"b": {"type": "integer"}}}}},
        "$.a.b: type",
    ),
]


@pytest.fixture(params=["both", "jsonschema alone"], autouse=True)
def validators(request, monkeypatch) -> None:
    if request.param != "both":
        monkeypatch.setattr(after_decode, "_quick", lambda _: None)


@pytest.mark.parametrize(("value", "schema"), RIGHT)
def test_a_right_answer_is_no_fault(value, schema) -> None:
    assert fault(value, schema) is None


@pytest.mark.parametrize(("value", "schema", "place"), WRONG)
def test_a_wrong_answer_is_found_with_its_place(value, schema, place) -> None:
    assert fault(value, schema) == place


def test_a_dump_is_for_its_owner_alone_and_the_same_bug_is_kept_once(tmp_path, monkeypatch) -> None:
    dump = Dump(
        model="m", place="$: type", schema={}, tokens=(1,), prompt=[2], seed=3, temperature=0.0
    )
    monkeypatch.setenv("AGENTDIFF_CACHE_DIR", str(tmp_path))
    path = keep(dump)
    assert path is not None
    assert path == keep(dump)
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    monkeypatch.setenv("AGENTDIFF_CACHE_DIR", "")
    assert keep(dump) is None
