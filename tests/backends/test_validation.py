import socket
from types import MappingProxyType

import pytest

from agentdiff.backends import validation
from agentdiff.backends.validation import arguments_hold, check_output, validator
from agentdiff.errors import OutputInvalid, SchemaError
from agentdiff.messages import ToolCall, ToolSpec

CLOSED = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_a_valid_output_passes() -> None:
    check_output(' {"n": 3} ', validator(CLOSED), backend="b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "b: the output is not JSON (Expecting value at character 0)"),
        ('{"n": NaN}', "b: the output is not JSON (NaN is not a JSON number)"),
        ("[" * 100_000, "b: the output is not JSON (nested too deeply)"),
        ('{"n": 0}', "b: `$.n` does not satisfy the schema: 0 is less than the minimum of 1"),
        ("{}", "b: the output does not satisfy the schema: 'n' is a required property"),
    ],
)
def test_a_message_names_the_place(text: str, message: str) -> None:
    with pytest.raises(OutputInvalid) as caught:
        check_output(text, validator(CLOSED), backend="b")
    assert str(caught.value) == message


def test_a_message_shows_little_of_a_long_value() -> None:
    with pytest.raises(OutputInvalid) as caught:
        check_output(f'{{"n": "{"x" * 5000}"}}', validator(CLOSED), backend="b")
    assert "is not of type 'integer'" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_what_is_no_schema_is_refused_with_its_place() -> None:
    with pytest.raises(SchemaError) as caught:
        validator({"properties": {"a": {"type": "strin"}}})
    assert caught.value.path == "/properties/a/type"


def test_a_reference_that_leads_nowhere_is_not_fetched() -> None:
    schema = validator({"$ref": "https://example.com/other.json"})
    with pytest.raises(SchemaError, match=r"other\.json' leads nowhere"):
        check_output("1", schema, backend="b")


def test_arguments_hold_only_where_a_tool_says_so() -> None:
    tool = ToolSpec(name="t", parameters=CLOSED)
    good = ToolCall(id="1", name="t", arguments={"n": 1})
    bad = ToolCall(id="2", name="t", arguments={"n": "1"})
    unknown = ToolCall(id="3", name="u", arguments={"n": 1})
    assert arguments_hold([good], [tool])
    assert not arguments_hold([good, bad], [tool])
    assert not arguments_hold([unknown], [tool])
    assert not arguments_hold([good], [ToolSpec(name="t", parameters={"type": 7})])


def test_a_schema_of_a_tool_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        elsewhere = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"}
        call = ToolCall(id="1", name="t", arguments={"n": 1})
        assert not arguments_hold([call], [ToolSpec(name="t", parameters=elsewhere)])
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("has_quick", [True, False])
def test_both_validators_hold_arguments_to_the_same_schema(
    has_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_quick:
        monkeypatch.setattr(validation, "quick_validator", lambda _: None)
    tool = ToolSpec(name="t", parameters=CLOSED)
    for arguments, holds in [({"n": 1}, True), ({"n": 0}, False), ({}, False), ({"n": "1"}, False)]:
        call = ToolCall(id="1", name="t", arguments=MappingProxyType(arguments))
        assert arguments_hold([call], [tool]) is holds
