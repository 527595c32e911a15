"""One schema object, and how the values of its keywords are read.

Keywords that JSON Schema does not know are annotations to it; one that is only misspelled is an
error. Knows what form a value must have, not what it means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn, cast

from agentdiff.constraint.facts import Claim
from agentdiff.constraint.instances import TYPES, Json, as_list, is_number
from agentdiff.constraint.numbers import Bound
from agentdiff.constraint.references import Dialect, escaped
from agentdiff.errors import SchemaError

Object = Mapping[str, Json]
"""A schema that is an object."""

KEYWORDS = frozenset(
    (
        *("type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependencies", "dependentRequired"),
        *("dependentSchemas", "unevaluatedProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains", "unevaluatedItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
"""The keywords that constrain."""
_BY_LOWER = {k.lower(): k for k in KEYWORDS}
_FROM_2019 = frozenset(
    (
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
        *("minContains", "maxContains", "prefixItems", "$recursiveRef", "$dynamicRef"),
    )
)
FOREIGN: dict[Dialect, frozenset[str]] = {
    "draft-04": _FROM_2019 | {"const", "contains", "propertyNames", "if", "then", "else"},
    "draft-07": _FROM_2019,
    "2019-09": frozenset(("dependencies", "prefixItems", "$dynamicRef")),
    "2020-12": frozenset(("dependencies", "additionalItems", "$recursiveRef")),
}
"""Keywords that the dialect does not know. Its readers ignore them; whoever wrote them meant them.
So they bind where that narrows, and are silent where it would widen."""
_WEAKENS = frozenset(("minContains", "prefixItems"))
"""Keywords that take something away from another one."""


class Schema:
    """One schema object whose keywords are read one by one."""

    def __init__(self, schema: Json, path: str, dialect: Dialect) -> None:
        """Check the names of the keywords.

        Raises:
            SchemaError: It is no object, or a keyword is misspelled.
        """
        self.path = path
        self.dialect: Dialect = dialect
        if not isinstance(schema, dict):
            self.fail(f"a schema must be an object or a boolean, got {schema!r:.80}")
        known = cast("dict[str, Json]", schema)
        if "$ref" in known and dialect in {"draft-04", "draft-07"}:
            self.words: Object = {"$ref": known["$ref"]}  # all beside it is to be ignored
            return
        self.words = {k: v for k, v in known.items() if k in KEYWORDS}
        foreign = FOREIGN[dialect]
        if not foreign.isdisjoint(self.words):
            self.words = {
                k: v for k, v in self.words.items() if k not in foreign or k not in _WEAKENS
            }
        if len(self.words) < len(known):
            for keyword in known:
                meant = _BY_LOWER.get(keyword.lower(), keyword)
                if meant != keyword and meant not in known:
                    self.fail(f"`{keyword}` is no keyword; did you mean `{meant}`?", keyword)

    def fail(self, message: str, keyword: str | None = None) -> NoReturn:
        """Raise a `SchemaError` for this schema."""
        raise SchemaError(message, path=self.path, keyword=keyword)

    def claim(self, schema: Json, *segments: str | int) -> Claim:
        """A schema below this one holds."""
        return Claim(schema, "/".join([self.path, *(escaped(str(s)) for s in segments)]))

    # -- how the values of keywords are read --------------------------------------------------

    def list_of(self, keyword: str) -> list[Json]:
        """The value of a keyword that takes a list; empty when it is absent."""
        value = self.words.get(keyword, [])
        if not isinstance(value, list):
            self.fail(f"`{keyword}` must be a list, got {value!r:.80}", keyword)
        return cast("list[Json]", value)

    def names_of(self, keyword: str) -> tuple[str, ...]:
        """The value of a keyword that takes a list of names."""
        return self._names(self.list_of(keyword), keyword)

    def _names(self, names: list[Json], keyword: str) -> tuple[str, ...]:
        if not all(isinstance(name, str) for name in names):
            self.fail(f"`{keyword}` must list strings, got {names!r:.80}", keyword)
        return tuple(dict.fromkeys(names))

    def map_of(self, keyword: str) -> dict[str, Json]:
        """The value of a keyword that takes an object; empty when it is absent."""
        value = self.words.get(keyword, {})
        if not isinstance(value, dict):
            self.fail(f"`{keyword}` must be an object, got {value!r:.80}", keyword)
        return cast("dict[str, Json]", value)

    def claims_of(self, keyword: str) -> dict[str, Claim]:
        """The schemas of a keyword that takes an object of them."""
        return {name: self.claim(s, keyword, name) for name, s in self.map_of(keyword).items()}

    def branches_of(self, keyword: str) -> tuple[Claim, ...]:
        """The schemas of a keyword that takes a list of them."""
        return tuple(self.claim(s, keyword, i) for i, s in enumerate(self.list_of(keyword)))

    def one_of(self, keyword: str) -> Claim | None:
        """The schema of a keyword that takes one; None when it is absent."""
        return self.claim(self.words[keyword], keyword) if keyword in self.words else None

    def count_of(self, keyword: str) -> int | None:
        """The value of a keyword that counts; None when it is absent."""
        if keyword not in self.words:
            return None
        value: Any = self.words[keyword]
        if not is_number(value) or not math.isfinite(value) or value < 0 or value != int(value):
            self.fail(f"`{keyword}` must be a whole number >= 0, got {value!r:.80}", keyword)
        return int(value)

    def text_of(self, keyword: str) -> str:
        """The value of a keyword that takes a string."""
        value = self.words[keyword]
        if not isinstance(value, str):
            self.fail(f"`{keyword}` must be a string, got {value!r:.80}", keyword)
        return value

    def number_of(self, keyword: str) -> Decimal:
        """The value of a keyword that takes a number."""
        value: Any = self.words[keyword]
        if not is_number(value) or not math.isfinite(value):
            self.fail(f"`{keyword}` must be a number, got {value!r:.80}", keyword)
        return Decimal(str(value))

    def bounds_of(self, closed: str, opened: str) -> list[Bound]:
        """The inclusive and the exclusive bound, as far as there are any."""
        is_open = self.words.get(opened) is True  # draft 4: a flag on the inclusive bound
        bounds: list[Bound] = []
        if closed in self.words:
            bounds.append(Bound(self.number_of(closed), is_open))
        if opened in self.words and not isinstance(self.words[opened], bool):
            bounds.append(Bound(self.number_of(opened), is_open=True))
        return bounds

    def types_of(self) -> tuple[frozenset[str], bool]:
        """The types that `type` allows, and whether numbers must be whole."""
        value: Any = self.words.get("type")
        if value is None and "type" not in self.words:
            return TYPES, False
        names = as_list(value) or [value]
        for name in names:
            if not isinstance(name, str) or (name not in TYPES and name != "integer"):
                self.fail(f"`type` {name!r:.80} is not known", "type")
        whole = "integer" in names and "number" not in names
        return frozenset("number" if n == "integer" else str(n) for n in names), whole

    def prefix_of(self) -> tuple[str, str]:
        """The keywords of the first items and of all others in this dialect."""
        if isinstance(self.words.get("items"), list):
            if self.dialect == "2020-12":
                self.fail(
                    "`items` must be a schema; a list of schemas is `prefixItems`, "
                    "unless `$schema` names an older draft",
                    "items",
                )
            return "items", "additionalItems"
        return "prefixItems", "items"

    def dependents_of(self) -> tuple[dict[str, tuple[str, ...]], dict[str, Claim]]:
        """(key → keys that must come with it, key → what else holds with it)."""
        names = {
            name: self._names(as_list(value) or [], "dependentRequired")
            for name, value in self.map_of("dependentRequired").items()
        }
        claims = self.claims_of("dependentSchemas")
        for name, value in self.map_of("dependencies").items():
            if (listed := as_list(value)) is not None:
                both = (*names.get(name, ()), *self._names(listed, "dependencies"))
                names[name] = tuple(dict.fromkeys(both))
            else:
                claims[name] = self.claim(value, "dependencies", name)
        return names, claims
