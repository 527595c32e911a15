"""Where a `$ref` leads: base URIs, anchors and JSON pointers within one document.

A schema is known by its JSON pointer from the root of the document. Nothing is fetched: what lies
outside the document is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast
from urllib.parse import unquote, urldefrag, urljoin

from agentdiff.constraint.instances import Json
from agentdiff.errors import SchemaError

Dialect = Literal["draft-04", "draft-07", "2019-09", "2020-12"]
"""How a schema is read; draft-06 reads as draft-07."""

_SINGLE = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = (
    *("$defs", "definitions", "dependencies", "dependentSchemas"),
    *("patternProperties", "properties"),
)


class Document:
    """A schema and all that can be referred to in it."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self.dialect: Dialect = dialect_of(root)
        self._id_keyword = "id" if self.dialect == "draft-04" else "$id"
        self._is_indexed = False
        self._bases: dict[str, str] = {}
        """Pointer of a schema with an id of its own → its URI."""
        self._resources: dict[str, str] = {}
        """URI → pointer."""
        self._anchors: dict[tuple[str, str], str] = {}
        """(URI, anchor) → pointer."""
        self._dynamic: dict[str, list[str]] = {}
        """Dynamic anchor → pointers."""

    def resolve(self, schema: Json, path: str) -> tuple[Json, str] | None:
        """Return what a schema refers to and its pointer; None when it refers to nothing.

        Raises:
            SchemaError: The reference leads nowhere, out of the document, or to a place that
                depends on who refers.
        """
        if "$ref" in schema:
            target = self._follow(schema["$ref"], path, "$ref")
        elif "$dynamicRef" in schema:
            target = self._follow(schema["$dynamicRef"], path, "$dynamicRef")
            anchor = schema["$dynamicRef"].partition("#")[2]
            if target in self._dynamic.get(anchor, ()) and len(self._dynamic[anchor]) > 1:
                raise SchemaError(
                    f"several schemas have the `$dynamicAnchor` {anchor!r}; "
                    "where `$dynamicRef` leads must be the same from everywhere",
                    path=path,
                    keyword="$dynamicRef",
                )
        elif "$recursiveRef" in schema:
            self._index()
            if len(self._dynamic.get("", ())) > 1:
                raise SchemaError(
                    "several schemas have a `$recursiveAnchor`; "
                    "where `$recursiveRef` leads must be the same from everywhere",
                    path=path,
                    keyword="$recursiveRef",
                )
            target = self._follow("#", path, "$recursiveRef")
        else:
            return None
        return self.at(target), target

    def at(self, pointer: str) -> Json:
        """Return what stands at a pointer that exists."""
        here: Any = self.root
        for segment in pointer.split("/")[1:]:
            segment = segment.replace("~1", "/").replace("~0", "~")
            here = here[segment if isinstance(here, dict) else int(segment)]
        return here

    def _follow(self, ref: Json, path: str, keyword: str) -> str:
        """The pointer that a reference leads to."""
        if not isinstance(ref, str):
            raise SchemaError(
                f"`{keyword}` must be a string, got {ref!r:.80}", path=path, keyword=keyword
            )
        self._index()
        base = self._base_of(path)
        uri, fragment = urldefrag(ref)
        uri = urljoin(base, uri) if uri else base
        fragment = unquote(fragment)
        resource = self._resources.get(uri)
        if resource is None:
            raise SchemaError(
                f"`{keyword}` {ref!r:.200} leads out of the document; "
                "copy what it refers to into `$defs`",
                path=path,
                keyword=keyword,
            )
        if fragment and not fragment.startswith("/"):
            anchored = self._anchors.get((uri, fragment))
            if anchored is not None:
                return anchored
        else:
            pointer = resource + fragment
            try:
                if isinstance(self.at(pointer), dict | bool):
                    return self._normal(pointer)
            except (KeyError, IndexError, ValueError, TypeError):
                pass
        raise SchemaError(f"`{keyword}` {ref!r:.200} leads nowhere", path=path, keyword=keyword)

    def _normal(self, pointer: str) -> str:
        """One spelling of a pointer."""
        segments = (s.replace("~1", "/").replace("~0", "~") for s in pointer.split("/"))
        return "/".join(s.replace("~", "~0").replace("/", "~1") for s in segments)

    def _base_of(self, path: str) -> str:
        while path and path not in self._bases:
            path = path.rpartition("/")[0]
        return self._bases[path]

    def _index(self) -> None:
        """Find ids and anchors, once."""
        if self._is_indexed:
            return
        self._is_indexed = True
        self._bases[""] = ""
        self._resources[""] = ""
        work: list[tuple[Json, str, str]] = [(self.root, "", "")]
        while work:
            schema, path, base = work.pop()
            if not isinstance(schema, dict):
                continue
            known = cast("dict[str, Json]", schema)
            is_hidden = "$ref" in known and self.dialect in {"draft-04", "draft-07"}
            own = known.get(self._id_keyword)
            if isinstance(own, str) and not is_hidden:
                uri, fragment = urldefrag(own)
                if uri:
                    base = urljoin(base, uri)
                    self._bases[path] = base
                    self._resources.setdefault(base, path)
                if fragment:  # before `$anchor` there was this
                    self._anchors[base, fragment] = path
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(known.get(keyword), str):
                    self._anchors[base, known[keyword]] = path
            if isinstance(known.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(known["$dynamicAnchor"], []).append(path)
            if known.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("", []).append(path)
            work += [(inner, path + below, base) for inner, below in _subschemas(known)]


def dialect_of(root: Json) -> Dialect:
    """Return how a schema wants to be read: by its `$schema`, else 2020-12."""
    name = cast("dict[str, Json]", root).get("$schema") if isinstance(root, dict) else None
    if isinstance(name, str):
        if any(f"draft-0{n}" in name for n in (3, 4)):
            return "draft-04"
        if any(f"draft-0{n}" in name for n in (5, 6, 7)):
            return "draft-07"
        if "2019-09" in name:
            return "2019-09"
    return "2020-12"


def escaped(segment: str) -> str:
    """Return a segment of a JSON pointer as it is written."""
    return segment.replace("~", "~0").replace("/", "~1")


def _subschemas(schema: dict[str, Json]) -> Iterator[tuple[Json, str]]:
    """The schemas right below a schema, with what the pointer gains."""
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), dict):
            yield schema[keyword], f"/{keyword}"
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            for i, inner in enumerate(schema[keyword]):
                yield inner, f"/{keyword}/{i}"
    for keyword in _MAPS:
        if isinstance(schema.get(keyword), dict):
            for name, inner in schema[keyword].items():
                yield inner, f"/{keyword}/{escaped(str(name))}"
