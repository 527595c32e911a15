"""A function's signature as the JSON Schema of its arguments, and a model's arguments as a call.

Knows type hints, defaults, docstrings and pydantic; knows no tool, no model and no run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from agentdiff.agent.context import is_context
from agentdiff.agent.schemas import QuietJsonSchema, Schema, faults_of, tidy
from agentdiff.errors import ConfigurationError, InvalidArguments
from agentdiff.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of one function."""

    tool: str
    schema: Schema
    """JSON Schema of the arguments: a closed object, one property for each parameter, in the order
    of the signature."""
    takes_context: bool
    """Whether the first parameter is a `RunContext`, which no model fills."""
    _fields: dict[str, Parameter]
    _model: type[BaseModel]

    def bind(self, arguments: Mapping[str, Json]) -> tuple[list[Any], dict[str, Any]]:
        """Validate arguments and lay them out as `(args, kwargs)`.

        What is not given keeps the function's default.

        Raises:
            InvalidArguments: They do not satisfy the schema; the message names every field at
                fault.
        """
        try:
            valid = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            faults = "; ".join(faults_of(error))
            raise InvalidArguments(
                f"the arguments of `{self.tool}` are invalid: {faults}"
            ) from error
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for field, parameter in self._fields.items():
            value = getattr(valid, field)
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                args.append(value)
            elif field in valid.model_fields_set or not _has_plain_default(parameter):
                kwargs[parameter.name] = value
        return args, kwargs


def read_parameters(function: Callable[..., Any], *, tool: str) -> Parameters:
    """Read the signature of a function that is to be the tool `tool`.

    Raises:
        ConfigurationError: A parameter has no type hint, has a type that JSON cannot carry, or is
            `*args` or `**kwargs`.
    """
    signature = inspect.signature(function)
    hints = _hints(function, tool)
    described = describe_parameters(inspect.getdoc(function) or "")
    fields: dict[str, Parameter] = {}
    definitions: dict[str, Any] = {}
    takes_context = False
    for number, parameter in enumerate(signature.parameters.values()):
        name = parameter.name
        if is_context(hints.get(name)):
            if number or parameter.kind is Parameter.KEYWORD_ONLY:
                raise ConfigurationError(
                    f"tool `{tool}`: `{name}` is a `RunContext`; make it the first parameter"
                )
            takes_context = True
            continue
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise ConfigurationError(
                f"tool `{tool}` takes `{parameter}`, which a model cannot fill; name each parameter"
            )
        if name not in hints:
            raise ConfigurationError(
                f"tool `{tool}`: parameter `{name}` has no type hint;"
                f" write for example `{name}: str`"
            )
        # The parameter's name is only the alias of its field, so that none can clash with pydantic.
        field = f"p{number}"
        annotation = _described(hints[name], described.get(name))
        default = ... if parameter.default is Parameter.empty else parameter.default
        fields[field] = parameter
        definitions[field] = (Annotated[annotation, Field(alias=name)], default)
    try:
        model = create_model(tool, __config__=ConfigDict(extra="forbid"), **definitions)
        schema = tidy(model.model_json_schema(schema_generator=QuietJsonSchema))
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"tool `{tool}` has a type that JSON cannot carry: {reason}"
        ) from error
    schema.setdefault("properties", {})
    schema.pop("description", None)
    return Parameters(
        tool=tool, schema=schema, takes_context=takes_context, _fields=fields, _model=model
    )


def return_schema(function: Callable[..., Any]) -> Schema | None:
    """JSON Schema of what a function returns; None where its hints do not say."""
    try:
        hint = _hints(function, "")["return"]
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        schema = adapter.json_schema(mode="serialization", schema_generator=QuietJsonSchema)
    except (ConfigurationError, KeyError, PydanticUserError):
        return None
    return tidy(schema)


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter of a function is a `RunContext`."""
    first = next(iter(inspect.signature(function).parameters), None)
    return first is not None and is_context(_hints(function, "").get(first))


def describe(docstring: str) -> str:
    """The first paragraph of a docstring, on one line."""
    first = inspect.cleandoc(docstring).split("\n\n", 1)[0]
    return " ".join(first.split())


def describe_parameters(docstring: str) -> dict[str, str]:
    """Descriptions of parameters, from the `Args:` section of a Google docstring."""
    section = re.search(r"^(?:Args|Arguments):[ ]*\n((?:[ \t]+.*\n?|\n)*)", docstring, re.MULTILINE)
    if section is None:
        return {}
    body = inspect.cleandoc("\n" + section[1])
    entries = re.finditer(
        r"^\*{0,2}(\w+)(?: *\([^)\n]*\))?:((?:.*\n?)(?:[ \t]+.*\n?|\n)*)", body, re.MULTILINE
    )
    return {entry[1]: " ".join(entry[2].split()) for entry in entries}


def _hints(function: Callable[..., Any], tool: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"tool `{tool}` has a type hint that cannot be read: {error};"
            " import it at run time, at the module's top level"
        ) from error


def _described(annotation: Any, description: str | None) -> Any:
    """The annotation with a description, unless it brings its own."""
    metadata = getattr(annotation, "__metadata__", ())
    if description is None or any(isinstance(m, FieldInfo) and m.description for m in metadata):
        return annotation
    return Annotated[annotation, Field(description=description)]


def _has_plain_default(parameter: Parameter) -> bool:
    return parameter.default is not Parameter.empty and not isinstance(parameter.default, FieldInfo)
