r"""How values are written: as JSON, or as Gemma's models write the arguments of calls.

Gemma's notation has bare keys in alphabetical order, and strings that stand as they are, without
escapes, between two special tokens: `{city:<|"|>Oslo<|"|>,days:3}`. No text spells a special token,
so a string ends where the token stands and may hold anything else.

Knows values and bytes; no schema, no token ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from agentdiff.constraint.containers import Layout
from agentdiff.constraint.instances import Json, as_list, as_object, spell
from agentdiff.constraint.language import matches
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.strings import JSON_QUOTES, Quotes
from agentdiff.errors import ConfigurationError, SchemaError

Style = Literal["spaced", "compact", "indented"]
"""How JSON is laid out."""


class Notation(Protocol):
    """How values, and what they are made of, become bytes."""

    @property
    def quotes(self) -> Quotes:
        """What strings stand between."""
        ...

    @property
    def key_pattern(self) -> str | None:
        """What a key matches; None where any string can be one, and is written as strings are."""
        ...

    @property
    def is_indented(self) -> bool:
        """Whether the layout depends on how deep a value stands."""
        ...

    def layout(self, level: int) -> Layout:
        """What stands between the parts of a container at a depth."""
        ...

    def spell(self, value: Json, *, level: int, path: str) -> bytes:
        """A ready value at a depth; `path` is its place in the schema, for the error.

        Raises:
            SchemaError: It cannot be written.
        """
        ...

    def spell_key(self, key: str, *, path: str) -> bytes:
        """A key, with its quotes if it has any.

        Raises:
            SchemaError: It cannot be written.
        """
        ...

    def ordered(self, keys: Iterable[str]) -> list[str]:
        """Declared keys in the order in which they are written."""
        ...


def json_notation(style: Style) -> Notation:
    """Return a style of JSON.

    Raises:
        ConfigurationError: It is not known.
    """
    separators = _SEPARATORS.get(style)
    if separators is None:
        raise ConfigurationError(f"`style` must be one of {', '.join(_SEPARATORS)}, got {style!r}")
    return _JsonNotation(separators, style == "indented")


_SEPARATORS: dict[str, tuple[str, str]] = {
    "spaced": (", ", ": "),
    "compact": (",", ":"),
    "indented": (",", ": "),
}


@dataclass(frozen=True, slots=True)
class _JsonNotation:
    separators: tuple[str, str]
    is_indented: bool
    quotes: Quotes = JSON_QUOTES
    key_pattern: None = None

    def layout(self, level: int) -> Layout:
        comma, colon = (s.encode() for s in self.separators)
        if not self.is_indented:
            return Layout(comma, colon)
        line = b"\n" + b"  " * level
        return Layout(comma + line + b"  ", colon, line + b"  ", line)

    def spell(self, value: Json, *, level: int, path: str) -> bytes:
        indent = level if self.is_indented else None
        return spell(value, self.separators, path=path, indent=indent)

    def spell_key(self, key: str, *, path: str) -> bytes:
        return spell(key, self.separators, path=path)

    def ordered(self, keys: Iterable[str]) -> list[str]:
        return list(keys)


_BARE = r'[^\s\u0000-\u001f\u007f-\u009f{}[\],:"]+'


@dataclass(frozen=True, slots=True)
class BareNotation:
    """Bare keys, and strings between marks that nothing else holds.

    Keys are sorted as Jinja's `dictsort` does. They may hold what the readers of this notation have
    no other use for: no bracket, no comma, colon or quote, and white space between words alone.
    """

    mark: bytes
    """Before and behind a string; its first byte stands nowhere in UTF-8."""

    @property
    def quotes(self) -> Quotes:
        """The marks, and no escapes."""
        return Quotes(self.mark, is_raw=True)

    @property
    def key_pattern(self) -> str:
        """Words of characters that have no other meaning."""
        return f"^{_BARE}( +{_BARE})*$"

    @property
    def is_indented(self) -> bool:
        """It is not."""
        return False

    def layout(self, level: int) -> Layout:
        """The same at every depth."""
        return Layout(b",", b":")

    def spell(self, value: Json, *, level: int, path: str) -> bytes:
        """The one way to write a value."""
        members, items = as_object(value), as_list(value)
        if members is not None:
            written = [
                self.spell_key(key, path=path)
                + b":"
                + self.spell(members[key], level=level, path=path)
                for key in self.ordered(members)
            ]
            return b"{" + b",".join(written) + b"}"
        if items is not None:
            return b"[" + b",".join(self.spell(v, level=level, path=path) for v in items) + b"]"
        if not isinstance(value, str):
            return spell(value, (",", ":"), path=path)
        try:
            return self.mark + value.encode() + self.mark
        except UnicodeEncodeError:
            raise SchemaError(
                f"the value {value!r:.80} holds a lone surrogate, which cannot be written without "
                "escapes",
                path=path,
            ) from None

    def spell_key(self, key: str, *, path: str) -> bytes:
        """The key as it is."""
        if not matches(parse_pattern(self.key_pattern), key):
            raise SchemaError(
                f"the name {key!r:.80} cannot be written without quotes, as this model writes the "
                'names of tools and arguments; leave out brackets, commas, colons, `"` and white '
                "space at its ends",
                path=path,
            )
        return key.encode()

    def ordered(self, keys: Iterable[str]) -> list[str]:
        """Alphabetically, whatever their case."""
        return sorted(keys, key=str.lower)
