import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from agentdiff.agent.plan import Plan, PlanStep, Ref, filled, refs_in
from agentdiff.agent.plan_check import adapted, check_plan
from agentdiff.agent.plan_schema import plan_schema
from agentdiff.agent.tools import by_name, tool
from agentdiff.errors import PlanInvalid


class Weather(BaseModel):
    celsius: float
    text: str
    hours: list[int]


@tool
def weather(city: str) -> Weather:
    """Get the weather."""
    return Weather(celsius=1.0, text=city, hours=[1])


@tool
def warmer(first: float, second: float) -> str:
    """Say which is warmer."""
    return f"{first} {second}"


@tool
def tell(text: str, times: int = 1) -> None:
    """Say something."""


TOOLS = by_name([weather, warmer, tell])


def plan(*steps):
    return Plan.model_validate({"steps": [{"id": f"s{n}", **s} for n, s in enumerate(steps, 1)]})


GOOD = plan(
    {"tool": "weather", "arguments": {"city": "Oslo"}},
    {"tool": "weather", "arguments": {"city": "Rome"}},
    {"tool": "warmer", "arguments": {"first": "$s1.celsius", "second": "$s2.celsius"}},
    {"tool": "tell", "arguments": {"text": "It is $s3, for $$5", "times": "$s1.hours[0]"}},
)


def test_references_are_found_where_they_stand():
    found = list(refs_in({"a": "$s1.rows[0].id", "b": ["x $s2 y", "$$s3", "5$"]}))
    assert found == [
        (("a",), Ref("s1", ("rows", 0, "id")), True),
        (("b", 0), Ref("s2"), False),
    ]


def test_a_reference_reads_as_it_is_written():
    assert str(Ref("s1", ("rows", 0, "id"))) == "$s1.rows[0].id"
    step = PlanStep(id="s2", tool="tell", arguments={"text": Ref("s1", ("text",))})
    assert step.arguments == {"text": "$s1.text"}
    assert step.needs == ("s1",)


def test_an_argument_that_is_a_reference_takes_the_value_itself():
    results = {"s1": {"rows": [{"id": 7}]}}
    assert filled({"id": "$s1.rows[0].id", "rows": "$s1.rows"}, results) == {
        "id": 7,
        "rows": [{"id": 7}],
    }


def test_inside_a_text_a_value_is_written_out():
    results = {"s1": {"name": "Ana", "tags": ["a"]}}
    assert filled("to $s1.name: $s1.tags, $$5", results) == 'to Ana: ["a"], $5'


def test_a_part_that_is_not_there_is_named():
    with pytest.raises(
        LookupError, match=r"`\$s1\.rows` has no part 3 \(wanted by `\$s1\.rows\[3\]`\)"
    ):
        filled("$s1.rows[3]", {"s1": {"rows": [1]}})


def test_a_plan_that_fits_its_tools_passes():
    check_plan(GOOD, TOOLS)


def test_all_faults_are_told_at_once():
    bad = Plan.model_validate(
        {
            "steps": [
                {"id": "s1", "tool": "wether", "arguments": {}},
                {"id": "s2", "tool": "weather", "arguments": {"town": "Oslo"}},
                {"id": "s2", "tool": "tell", "arguments": {"text": "$s9", "times": "three"}},
                {"id": "s4", "tool": "warmer", "arguments": {"first": "$s5", "second": 1}},
                {"id": "s5", "tool": "tell", "arguments": {"text": "$s4"}},
            ]
        }
    )
    with pytest.raises(PlanInvalid) as caught:
        check_plan(bad, TOOLS)
    told = "\n".join(caught.value.faults)
    for part in (
        "there is no tool `wether`; there are `weather`, `warmer`, `tell`",
        "'city' is a required property",
        "'town' was unexpected",
        "step `s2`: the id is taken",
        "there is no step `s9` (a plain dollar is written `$$`)",
        "'three' is not of type 'integer'",
        "the steps `s4`, `s5` wait for each other in a circle",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"first": "$s1.text", "second": 1}, "takes number, but `$s1.text` is string"),
        ({"first": "$s1.humidity", "second": 1}, "`weather` returns no `s1.humidity`"),
        ({"first": "$s1.hours.x", "second": 1}, "`weather` returns no `s1.hours.x`"),
        ({"first": "$s1", "second": 1}, "takes number, but `$s1` is object"),
        ({"first": "about $s1.celsius", "second": 1}, "is not of type 'number'"),
    ],
)
def test_a_reference_must_be_there_and_of_the_right_type(arguments, fault):
    steps = plan(
        {"tool": "weather", "arguments": {"city": "Oslo"}},
        {"tool": "warmer", "arguments": arguments},
    )
    with pytest.raises(PlanInvalid) as caught:
        check_plan(steps, TOOLS)
    assert fault in str(caught.value)


def test_steps_that_ran_before_may_be_referred_to_and_not_made_again():
    step = {"id": "s2", "tool": "tell", "arguments": {"text": "$s1.text"}}
    check_plan(Plan.model_validate({"steps": [step]}), TOOLS, known={"s1": "weather"})
    again = {"id": "s1", "tool": "tell", "arguments": {"text": "x"}}
    with pytest.raises(PlanInvalid, match="the id is taken"):
        check_plan(Plan.model_validate({"steps": [again]}), TOOLS, known={"s1": "weather"})


def test_an_empty_plan_is_not_a_plan():
    with pytest.raises(ValidationError):
        Plan(steps=())


def test_the_schema_takes_the_plan_and_refuses_what_could_not_run():
    validator = Draft202012Validator(plan_schema([t.spec for t in TOOLS.values()]))

    def written(steps):
        return validator.is_valid({"steps": steps})

    dumped = [step.model_dump(include={"id", "tool", "arguments"}) for step in GOOD.steps]
    assert written(dumped)
    one = {"id": "s1", "tool": "weather", "arguments": {"city": "Oslo"}}
    assert not written([])
    assert not written([one, one])
    assert not written([{**one, "tool": "wether"}])
    assert not written([{"id": "s1", "tool": "warmer", "arguments": {"first": "$s1", "second": 1}}])
    later = {"id": "s2", "tool": "warmer", "arguments": {"first": "$s2.x", "second": 1}}
    assert not written([one, later])


def test_a_plan_goes_on_where_another_ended():
    schema = plan_schema([tell.spec], first=3)
    step = {"id": "s3", "tool": "tell", "arguments": {"text": "x", "times": "$s2"}}
    assert Draft202012Validator(schema).is_valid({"steps": [step]})


def test_a_plan_can_be_looked_at():
    assert str(GOOD).splitlines() == [
        '●      s1  weather(city="Oslo")',
        '●      s2  weather(city="Rome")',
        "  ●    s3  warmer(first=$s1.celsius, second=$s2.celsius)  ← s1, s2",
        '    ●  s4  tell(text="It is $s3, for $$5", times=$s1.hours[0])  ← s3, s1',
    ]
    assert GOOD.mermaid().splitlines()[:2] == ["flowchart LR", '    s1["s1 · weather"]']
    assert "    s2 --> s3" in GOOD.mermaid()


def test_a_plan_in_a_circle_can_be_looked_at_too():
    steps = (
        PlanStep(id="s1", tool="tell", after=("s2",)),
        PlanStep(id="s2", tool="tell", after=("s1",)),
        PlanStep(id="s3", tool="tell", after=("s9",)),
    )
    assert str(Plan(steps=steps)).splitlines() == [
        "●  s1  tell()  ← s2",
        "●  s2  tell()  ← s1",
        "●  s3  tell()  ← s9",
    ]


def test_a_number_that_a_text_refers_to_is_written_out():
    step = PlanStep(
        id="s2", tool="tell", arguments={"text": "$s1.celsius", "times": "$s1.hours[0]"}
    )
    check_plan(Plan(steps=(step,)), TOOLS, known={"s1": "weather"})
    assert adapted(step, {"text": 1.5, "times": 2}, tell) == {"text": "1.5", "times": 2}
