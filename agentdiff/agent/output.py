"""The output of a run: its JSON Schema, and the way from text to a value of the user's type."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Generic, cast, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypeVar

from agentdiff.agent.schemas import QuietJsonSchema, faults_of, tidy
from agentdiff.errors import ConfigurationError, OutputInvalid
from agentdiff.length import Bounds, schema_bounds
from agentdiff.messages import Json

OutputT = TypeVar("OutputT", default=str)

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)


class Output(Generic[OutputT]):
    """What an agent's output must be.

    `str` is free text; any other type that pydantic knows is JSON of its schema. A union with `str`
    in it is JSON too, and a reply that is not JSON is taken for the text.
    """

    def __init__(self, output_type: Any) -> None:
        """Read the type.

        Raises:
            ConfigurationError: It is not a type that pydantic can read from JSON.
        """
        self.schema: Mapping[str, Json] | None = None
        """None for free text."""
        self._adapter: TypeAdapter[OutputT] | None = None
        self._takes_text = str in get_args(output_type)
        if output_type is str:
            return
        try:
            self._adapter = TypeAdapter(output_type)
            self.schema = tidy(self._adapter.json_schema(schema_generator=QuietJsonSchema))
        except PydanticUserError as error:
            reason = str(error).splitlines()[0]
            raise ConfigurationError(
                f"`output_type` {output_type!r} cannot be read from JSON: {reason}"
            ) from error

    @functools.cached_property
    def bounds(self) -> Bounds:
        """Tokens of the shortest and of the longest output of the schema."""
        return schema_bounds(self.schema or {})

    def parse(self, text: str) -> OutputT:
        """The value that the text stands for.

        Raises:
            OutputInvalid: The text is empty, not JSON, or not of the type; the message names every
                fault.
        """
        if not text.strip():
            raise OutputInvalid("the reply is empty")
        if self._adapter is None:
            return cast("OutputT", text)
        fenced = _FENCED.fullmatch(text)
        try:
            return self._adapter.validate_json(fenced[1] if fenced else text)
        except ValidationError as error:
            if self._takes_text and error.errors()[0]["type"] == "json_invalid":
                return cast("OutputT", text)
            raise OutputInvalid("the output is invalid: " + "; ".join(faults_of(error))) from error
