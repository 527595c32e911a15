"""Signatures as JSON Schema, and arguments as calls."""

import enum
from dataclasses import dataclass
from typing import Annotated, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentdiff.agent.parameters import describe, describe_parameters, read_parameters
from agentdiff.errors import ConfigurationError, InvalidArguments


class Unit(enum.Enum):
    """Of length."""

    KM = "km"
    MILES = "miles"


@dataclass
class Place:
    city: str
    country: str = "FI"


class Tree(BaseModel):
    """Refers to itself."""

    label: str
    children: list["Tree"] = []


def search(
    query: str,
    limit: int = 5,
    unit: Unit = Unit.KM,
    order: Literal["asc", "desc"] | None = None,
    tags: list[str] | None = None,
) -> list[str]:
    """Search the notes.

    Looks at every note.

    Args:
        query: What to look for,
            word by word.
        limit (int): The most to return.

    Returns:
        The notes: all of them.
    """
    return [query]


def test_a_signature_becomes_a_closed_schema_without_noise() -> None:
    assert read_parameters(search, tool="search").schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, word by word."},
            "limit": {"type": "integer", "default": 5, "description": "The most to return."},
            "unit": {
                "type": "string",
                "enum": ["km", "miles"],
                "default": "km",
                "description": "Of length.",
            },
            "order": {
                "anyOf": [{"type": "string", "enum": ["asc", "desc"]}, {"type": "null"}],
                "default": None,
            },
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_parameter_may_be_called_title_or_like_anything_of_pydantic() -> None:
    def add(title: str, schema: str, model_config: int, _hidden: int, self: int = 1) -> None: ...

    parameters = read_parameters(add, tool="add")
    assert list(parameters.schema["properties"]) == [
        "title",
        "schema",
        "model_config",
        "_hidden",
        "self",
    ]
    given_all = {"title": "a", "schema": "b", "model_config": 1, "_hidden": 2}
    assert parameters.bind(given_all) == ([], given_all)


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        return ""

    schema = read_parameters(now, tool="now").schema
    assert schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_annotated_fields_keep_their_bounds_and_their_description_wins() -> None:
    def set_timer(minutes: Annotated[int, Field(ge=1, le=600, description="How long.")]) -> None:
        """Set it.

        Args:
            minutes: Not this.
        """

    properties = read_parameters(set_timer, tool="t").schema["properties"]
    assert properties["minutes"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 600,
        "description": "How long.",
    }


def test_models_stand_where_they_are_used_and_closed() -> None:
    def visit(place: Place, others: list[Place]) -> None: ...

    schema = read_parameters(visit, tool="visit").schema
    place = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string", "default": "FI"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert schema["properties"] == {"place": place, "others": {"type": "array", "items": place}}
    assert "$defs" not in schema


def test_a_model_that_refers_to_itself_stays_in_the_definitions() -> None:
    def plant(tree: Tree) -> None: ...

    schema = read_parameters(plant, tool="plant").schema
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    jsonschema.validate({"tree": {"label": "a", "children": [{"label": "b"}]}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tree": {"label": "a", "children": [{"x": "b"}]}}, schema)


def test_arguments_become_python_values_and_what_is_missing_stays_the_functions_own() -> None:
    missing = object()

    def f(unit: Unit, place: Place, /, *, note: object = missing, top: int = 3) -> object:
        return unit, place, note is missing, top

    args, kwargs = read_parameters(f, tool="f").bind({"unit": "km", "place": {"city": "Oulu"}})
    assert f(*args, **kwargs) == (Unit.KM, Place(city="Oulu"), True, 3)


def test_a_field_as_default_is_filled_in() -> None:
    def f(x: int = Field(7, ge=0)) -> int:
        return x

    parameters = read_parameters(f, tool="f")
    assert parameters.bind({}) == ([], {"x": 7})
    assert parameters.schema["properties"]["x"] == {"type": "integer", "minimum": 0, "default": 7}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "`query`: Field required"),
        ({"query": "a", "limit": "many"}, "`limit`: Input should be a valid integer"),
        ({"query": "a", "color": "red"}, "`color`: Extra inputs are not permitted, got 'red'"),
        ({"query": "a", "tags": ["x", 3]}, "`tags.1`: Input should be a valid string, got 3"),
        ({"query": "a", "unit": "mm"}, "`unit`: Input should be 'km' or 'miles', got 'mm'"),
    ],
)
def test_arguments_that_are_wrong_are_refused_field_by_field(arguments, says) -> None:
    with pytest.raises(InvalidArguments) as caught:
        read_parameters(search, tool="search").bind(arguments)
    assert str(caught.value).startswith("the arguments of `search` are invalid: ")
    assert says in str(caught.value)


def test_all_faults_are_told_at_once_and_values_are_shortened() -> None:
    with pytest.raises(InvalidArguments) as caught:
        read_parameters(search, tool="search").bind({"limit": "x" * 500})
    assert "`query`" in str(caught.value)
    assert "`limit`" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_number_in_quotes_is_a_number() -> None:
    assert read_parameters(search, tool="search").bind({"query": "a", "limit": "1"}) == (
        [],
        {"query": "a", "limit": 1},
    )


def test_a_parameter_without_a_type_hint_is_an_error_that_names_it() -> None:
    def add(text, count: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"tool `add`.*`text`.*write for example `text: "):
        read_parameters(add, tool="add")


@pytest.mark.parametrize("stars", ["*args", "**kwargs"])
def test_stars_are_refused(stars: str) -> None:
    names: dict[str, object] = {}
    exec(f"def f(a: int, {stars}: str): ...", names)
    with pytest.raises(ConfigurationError, match="a model cannot fill"):
        read_parameters(names["f"], tool="f")  # pyright: ignore[reportArgumentType]


def test_types_that_json_cannot_carry_are_refused() -> None:
    class Socket: ...

    def f(socket: Socket) -> None: ...

    with pytest.raises(ConfigurationError, match="tool `f` has a type that JSON cannot carry"):
        read_parameters(f, tool="f")


def test_a_hint_that_cannot_be_resolved_is_refused() -> None:
    def f(x: "Nowhere") -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(ConfigurationError, match="tool `f` has a type hint that cannot be read"):
        read_parameters(f, tool="f")


def test_a_docstring_may_be_anything() -> None:
    assert describe("") == ""
    assert describe("One\nsentence.\n\nMore.") == "One sentence."
    assert describe_parameters("Nothing here.") == {}
    assert describe_parameters(
        "Do.\n\nArgs:\n    a: First.\n\n    b: Second: yes.\nRaises:\n    X: no"
    ) == {
        "a": "First.",
        "b": "Second: yes.",
    }


@given(st.text())
def test_reading_a_docstring_never_fails(text: str) -> None:
    describe(text)
    describe_parameters(f"{text}\n\nArgs:\n    {text}")


@given(
    st.fixed_dictionaries(
        {"query": st.text()},
        optional={
            "limit": st.integers(),
            "unit": st.sampled_from(["km", "miles"]),
            "order": st.sampled_from(["asc", "desc", None]),
            "tags": st.none() | st.lists(st.text()),
        },
    )
)
def test_what_the_schema_allows_can_be_bound(arguments) -> None:
    parameters = read_parameters(search, tool="search")
    jsonschema.validate(arguments, parameters.schema)
    _, kwargs = parameters.bind(arguments)
    assert kwargs.keys() == arguments.keys()
