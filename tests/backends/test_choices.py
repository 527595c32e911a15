import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.backends.actions import ReplyFormat, reply_schema
from agentdiff.backends.choices import named
from agentdiff.generation import Request
from agentdiff.messages import ToolCall, ToolSpec, assistant, tool_result, user


@pytest.mark.parametrize(
    ("choices", "text", "found"),
    [
        (["adult", "student"], "get me 3 Student tickets", ["student"]),
        (["low", "very high", "high"], "very high, please", ["very high"]),
        (["in_progress", "done"], "it is in progress", ["in_progress"]),
        (["private", "public"], "make it private, then public", ["private", "public"]),
        (["urgent", "normal"], "it is not urgent", []),
        (["c", "on"], "vitamin c on the list", []),
        (["art", "music"], "start the party", []),
        ([1, None, "music"], "1 for music", ["music"]),
        ([], "anything", []),
    ],
)
def test_a_choice_is_named_by_its_whole_words(choices, text, found):
    assert named(choices, [text]) == found


@given(st.lists(st.text()), st.text())
def test_only_choices_are_named(choices, text):
    assert set(named(choices, [text])) <= set(choices)


SPEC = ToolSpec(
    name="report",
    description="report a defect",
    parameters={
        "type": "object",
        "properties": {
            "severity": {"type": "string", "enum": ["minor", "serious"]},
            "text": {"type": "string"},
        },
        "required": ["text"],
    },
)


def arguments(messages, *, grounded=True):
    request = Request(messages=messages, tools=(SPEC,))
    schema = reply_schema(request, ReplyFormat(grounded=grounded))
    assert schema is not None
    return schema["anyOf"][0]["properties"]["args"]


def test_what_the_user_names_must_be_given():
    args = arguments((user("the brake has a serious defect"),))
    assert args["properties"]["severity"]["enum"] == ["serious"]
    assert args["required"] == ["text", "severity"]


def test_what_a_result_names_may_be_given():
    args = arguments(
        (
            user("how bad is it? report it"),
            assistant("", tool_calls=(ToolCall(id="c1", name="look", arguments={}),)),
            tool_result(ToolCall(id="c1", name="look", arguments={}), "a minor defect"),
        )
    )
    assert args["properties"]["severity"]["enum"] == ["minor"]
    assert args["required"] == ["text"]


def test_nothing_is_narrowed_without_a_name_or_without_grounding():
    assert arguments((user("the brake is gone"),)) == SPEC.parameters
    assert arguments((user("a serious defect"),), grounded=False) == SPEC.parameters


def test_what_an_earlier_call_took_up_is_free_for_the_next():
    call = ToolCall(id="c1", name="report", arguments={"severity": "serious", "text": "brake"})
    asked = user("report a serious defect of the brake, and a broken bell")
    args = arguments((asked, assistant(tool_calls=(call,)), tool_result(call, "reported")))
    assert args == SPEC.parameters
