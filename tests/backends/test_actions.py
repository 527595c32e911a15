import pytest

from agentdiff.backends.actions import ReplyFormat, reply_schema
from agentdiff.generation import Request
from agentdiff.messages import ToolCall, ToolSpec, tool_result, user

EMBEDDED = ReplyFormat(grounded=True, refuses=True)


def numbers_allowed(text, schema, *, result=None, format=EMBEDDED):
    parameters = {"type": "object", "properties": {"amount": schema}, "required": ["amount"]}
    tool = ToolSpec(name="pay", description="", parameters=parameters)
    messages = [user(text)]
    if result is not None:
        messages.append(tool_result(ToolCall(id="call_0", name="count", arguments={}), result))
    actions = reply_schema(Request(messages=tuple(messages), tools=(tool,)), format)
    assert actions is not None
    return actions["anyOf"][0]["properties"]["args"]["properties"]["amount"].get("enum")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("pay 12 to Bo", [12]),
        ("pay thirty-five or 6", [6, 35]),
        ("pay 1,250.50 on the 3rd", [3, 1250.5]),
    ],
)
def test_a_number_is_one_that_the_request_may_mean(text, meant):
    assert numbers_allowed(text, {"type": "number"}) == meant


def test_numbers_of_results_count_too():
    assert numbers_allowed("pay what is left", {"type": "integer"}, result="left: 7") == [7]


def test_without_any_number_the_model_is_free():
    assert numbers_allowed("pay it all", {"type": "integer"}) is None


def test_numbers_that_do_not_fit_the_schema_are_left_out():
    assert numbers_allowed("pay 3.5, 12 or 400", {"type": "integer", "maximum": 100}) == [12]
    assert numbers_allowed("pay 3.5", {"type": "integer"}) is None


def test_a_default_and_an_enum_keep_their_values():
    assert numbers_allowed("pay 3", {"type": "integer", "default": 1}) == [3, 1]
    assert numbers_allowed("pay 3", {"type": "integer", "enum": [1, 2]}) == [1, 2]


def test_a_model_that_is_not_grounded_may_write_any_number():
    assert numbers_allowed("pay 3", {"type": "integer"}, format=ReplyFormat()) is None
