"""What came back is checked here, whatever the server says that it enforced.

Messages name the place and show the value that is wrong, shortened; never the rest of the output.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, cast

import jsonschema.exceptions
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema import SchemaError as InvalidSchema
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentdiff.errors import OutputInvalid, SchemaError
from agentdiff.messages import Json, ToolCall, ToolSpec

SHOWN = 80
"""Characters of a wrong value that a message shows."""
FAULTS = 8
"""Faults of one output that are listed for a repair."""


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_not_json)
_FENCED = re.compile(r"\s*```(?:json)?[ \t]*\n(.*?)\n?\s*```\s*", re.DOTALL)


def parse_json(text: str) -> Json:
    """The JSON value that is `text`, all of it.

    Raises:
        ValueError: It is not JSON; `NaN` and `Infinity` are not.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def validator(schema: Mapping[str, Json]) -> Validator:
    """A validator of `schema`, by the draft it names, else 2020-12. It never fetches a `$ref`.

    Raises:
        SchemaError: `schema` is not a JSON Schema.
    """
    return _validator(json.dumps(schema, sort_keys=True))


@functools.lru_cache(maxsize=256)
def _validator(text: str) -> Validator:
    """The validator of a schema in JSON. Checking a schema takes longer than most values do."""
    schema: dict[str, Json] = json.loads(text)
    kind = validators.validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except InvalidSchema as error:
        path = "".join(f"/{part}" for part in error.absolute_path)
        raise SchemaError(f"not a JSON Schema: {_shown(error)}", path=path) from None
    return kind(schema, registry=Registry())


@functools.lru_cache(maxsize=256)
def quick_validator(text: str) -> Any:
    """The validator of jsonschema-rs of a schema in JSON; None where it is not installed or does not take it.

    It never fetches a `$ref` either.
    """
    if find_spec("jsonschema_rs") is None:
        return None
    try:
        return import_module("jsonschema_rs").validator_for(json.loads(text), retriever=_nowhere)
    except ValueError:
        return None


def check_output(text: str, schema: Validator, *, backend: str) -> None:
    """Pass when `text` is JSON that satisfies `schema`.

    Raises:
        OutputInvalid: It is not; carries `text` and `faults`.
        SchemaError: A `$ref` of the schema leads nowhere.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise _invalid(f"the output is not JSON ({_where(error)})", text, backend) from None
    try:
        errors = list(schema.iter_errors(value))
    except Unresolvable as error:
        raise SchemaError(f"`$ref` {error.ref!r} leads nowhere", keyword="$ref") from None
    if errors:
        best = cast("ValidationError", jsonschema.exceptions.best_match(errors))
        others = sorted((e for e in errors if e is not best), key=_depth)
        raise _invalid(_fault(best), text, backend, *map(_fault, others[: FAULTS - 1]))


def unfenced(text: str) -> str:
    """What stands inside a code fence, where `text` is nothing but one; else `text`."""
    found = _FENCED.fullmatch(text)
    return found[1] if found else text


def arguments_hold(calls: Iterable[ToolCall], tools: Iterable[ToolSpec]) -> bool:
    """Whether every call names one of `tools` and its arguments satisfy that tool's schema."""
    parameters = {tool.name: tool.parameters for tool in tools}
    try:
        return all(
            call.malformed is None
            and call.name in parameters
            and _satisfies(call.arguments, parameters[call.name])
            for call in calls
        )
    except (SchemaError, Unresolvable):
        return False  # a schema that cannot be used proves nothing


def _nowhere(uri: str) -> NoReturn:
    raise ValueError("a schema is never fetched")


def _satisfies(arguments: Mapping[str, Json], schema: Mapping[str, Json]) -> bool:
    text, value = json.dumps(schema, sort_keys=True), dict(arguments)
    quick = quick_validator(text)
    return (quick is not None and quick.is_valid(value)) or _validator(text).is_valid(value)


def _invalid(fault: str, text: str, backend: str, *others: str) -> OutputInvalid:
    error = OutputInvalid(f"{backend}: {fault}")
    error.text = text
    error.faults = (fault, *others)
    return error


def _fault(error: ValidationError) -> str:
    place = f"`{error.json_path}`" if error.absolute_path else "the output"
    return f"{place} does not satisfy the schema: {_shown(error)}"


def _depth(error: ValidationError) -> int:
    return len(error.absolute_path)


def _shown(error: ValidationError | InvalidSchema) -> str:
    value = repr(error.instance)
    if len(value) <= SHOWN:
        return error.message
    return error.message.replace(value, f"{value[:SHOWN]}…")[: 3 * SHOWN]


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error)


def _flag(
    keyword: str, bound: str, is_outside: Callable[[float, float], bool]
) -> Callable[..., Any]:
    """`exclusiveMinimum` as draft 4 wrote it, a flag on `minimum`, as well as the bound of today's drafts."""
    today: Any = Draft202012Validator.VALIDATORS[keyword]

    def check(validator: Any, value: Json, instance: Json, schema: Json) -> Iterator[Any]:
        if not isinstance(value, bool):
            yield from today(validator, value, instance, schema)
        elif (
            value
            and bound in schema
            and validator.is_type(instance, "number")
            and is_outside(instance, schema[bound])
        ):
            yield ValidationError(f"{instance!r} is not inside its open `{bound}`")

    return check


AnyDraftValidator = cast(
    "type[Draft202012Validator]",
    validators.extend(
        Draft202012Validator,
        {
            "exclusiveMinimum": _flag("exclusiveMinimum", "minimum", operator.le),
            "exclusiveMaximum": _flag("exclusiveMaximum", "maximum", operator.ge),
        },
    ),
)
"""2020-12, and draft 4's flags; for schemas that the constraint engine has compiled."""
