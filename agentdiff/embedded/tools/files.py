"""Finding and reading the text files of one working folder, and nothing outside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from agentdiff.errors import ToolFailed

MAX_CHARS: Final = 4000
"""Of a file's text that `read_file` returns."""
MAX_READ_BYTES: Final = 8_000_000
MAX_FILES: Final = 20_000
"""Files that a search looks at."""
MAX_SEARCHED_BYTES: Final = 50_000_000
"""Text that a search looks through, in all; no file of more than a fiftieth of it is opened."""
MAX_LISTED: Final = 20
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})


class Files:
    """Tools for the files below `root`. Hidden files are not found by a search."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def search_files(self, pattern: str) -> str:
        """Find files by name or content.

        Args:
            pattern: A pattern like `*.py`, or words of the name or of the text.
        """
        wanted = pattern.strip().strip("\"'`").strip()
        if not wanted:
            raise ToolFailed("`pattern` is empty; give a name, words or a pattern like *.txt")
        names = list(self._names())
        if re.search(r"[*?\[]", wanted):
            found = [name for name in names if _matches(name, wanted)]
            return _found(found, [], pattern)
        words = _words(wanted)
        by_name = [name for name in names if _is_named(name, wanted, words)]
        others = [name for name in names if not _is_named(name, wanted, words)]
        by_text = self._with_text(others, wanted, words)
        return _found(by_name, by_text, pattern)

    def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the working folder.
        """
        wanted = path.strip().strip("\"'`").strip()
        try:
            file = self._inside(wanted)
            if file.is_dir():
                there = sorted(each.name for each in file.iterdir() if each.name[0] != ".")
                holds = ", ".join(there[:MAX_LISTED]) or "nothing"
                raise ToolFailed(f"{wanted!r} is a folder; it holds {holds}")
            if not file.exists():
                file = self._elsewhere(wanted)
            return _read_text(file, file.relative_to(self._root).as_posix())
        except (OSError, RuntimeError, ValueError) as error:  # no permission, links in a circle
            reason = error.strerror if isinstance(error, OSError) else None
            raise ToolFailed(f"cannot read {wanted!r}: {reason or 'not a path'}") from None

    def _inside(self, path: str) -> Path:
        """The file that `path` leads to, links followed.

        Raises:
            ToolFailed: It lies outside the root.
            OSError, RuntimeError, ValueError: It cannot be followed.
        """
        file = (self._root / path.replace("\\", "/")).resolve()
        is_elsewhere = path.startswith("~") or re.match(r"[A-Za-z]:[\\/]", path)
        if is_elsewhere or not file.is_relative_to(self._root):
            raise ToolFailed(f"{path!r} is outside the working folder; name a file inside it")
        return file

    def _elsewhere(self, wanted: str) -> Path:
        """The one file below root whose name is `wanted`.

        Raises:
            ToolFailed: There is none, or there are several; names those that are close.
        """
        names = list(self._names())
        same = [name for name in names if name.rsplit("/", 1)[-1].lower() == wanted.lower()]
        if len(same) == 1:
            return self._inside(same[0])
        if same:
            raise ToolFailed(f"several files are named {wanted!r}: {', '.join(same[:MAX_LISTED])}")
        close = _close(wanted, names)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise ToolFailed(f"there is no file {wanted!r} in the working folder{hint}")

    def _names(self) -> Iterator[str]:
        """Paths relative to root, in order: no hidden ones, no folder that is a link."""
        count = 0
        for folder, folders, files in os.walk(self._root):
            folders[:] = sorted(f for f in folders if f[0] != "." and f not in _SKIPPED_FOLDERS)
            for name in sorted(files):
                if name[0] == ".":
                    continue
                file = Path(folder, name)
                if file.is_symlink() and not self._leads_inside(file):
                    continue
                count += 1
                if count > MAX_FILES:
                    return
                yield file.relative_to(self._root).as_posix()

    def _leads_inside(self, link: Path) -> bool:
        try:
            return link.resolve().is_relative_to(self._root)
        except (OSError, RuntimeError):
            return False

    def _with_text(self, names: list[str], wanted: str, words: list[str]) -> list[str]:
        """Those of `names` whose text has `wanted`; failing that, all of its words."""
        exact: list[str] = []
        loose: list[str] = []
        left = MAX_SEARCHED_BYTES
        for name in names:
            text = _searchable(self._root / name, min(left, MAX_SEARCHED_BYTES // 50))
            if text is None:
                continue
            left -= len(text)
            text = text.lower()
            if wanted.lower() in text:
                exact.append(name)
            elif words and all(word in text for word in words):
                loose.append(name)
        return exact or loose


def _matches(name: str, pattern: str) -> bool:
    """`*.py` looks at the name, `src/*.py` at the whole path; both without case."""
    pattern, name = pattern.lower().removeprefix("./"), name.lower()
    if "/" not in pattern:
        return fnmatch(name.rsplit("/", 1)[-1], pattern)
    return fnmatch(name, pattern) or fnmatch(name, pattern.replace("**/", ""))


def _words(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower().replace("_", " "))
    return [word for word in words if word not in ("the", "a", "my")] or words


def _is_named(name: str, wanted: str, words: list[str]) -> bool:
    """`invoice 2024` is found in `Invoice_march-2024.txt`; a folder's name counts for its files."""
    if wanted.lower() in name.lower():
        return True
    plain = re.sub(r"[\W_]+", " ", name.lower())
    return bool(words) and all(word in plain for word in words)


def _found(by_name: list[str], by_text: list[str], pattern: str) -> str:
    """`2 files: a.md, b.md`; files that only mention it come behind those that are named so."""
    if not by_name and not by_text:
        return f"no files match {pattern.strip()}"
    first = by_name or by_text
    more = f", and {len(first) - MAX_LISTED} more" if len(first) > MAX_LISTED else ""
    text = (
        f"{len(first)} file{'s' if len(first) > 1 else ''}: {', '.join(first[:MAX_LISTED])}{more}"
    )
    if by_name and by_text:
        text += f"; in the text of {', '.join(by_text[:5])}"
        text += f" and {len(by_text) - 5} more" if len(by_text) > 5 else ""
    return text


def _close(wanted: str, names: list[str]) -> list[str]:
    by_key = {name.lower(): name for name in names}
    by_key |= {name.rsplit("/", 1)[-1].lower(): name for name in reversed(names)}
    last = wanted.lower().rsplit("/", 1)[-1]
    near = [*get_close_matches(wanted.lower(), by_key, n=3), *get_close_matches(last, by_key, n=3)]
    return list(dict.fromkeys(by_key[key] for key in near))[:3]


def _searchable(file: Path, max_bytes: int) -> str | None:
    """The text of a file; None where it is too large, no text, or cannot be read."""
    try:
        if not file.is_file() or file.stat().st_size > max_bytes:
            return None
        content = file.read_bytes()
    except OSError:
        return None
    return None if b"\0" in content else content.decode("utf-8", errors="replace")


def _read_text(file: Path, shown: str) -> str:
    if not file.is_file():  # a device or a pipe would never end
        raise ToolFailed(f"{shown!r} is not a file that can be read")
    size = file.stat().st_size
    with file.open("rb") as opened:
        content = opened.read(MAX_READ_BYTES)
    if b"\0" in content:
        raise ToolFailed(f"{shown!r} is not a text file")
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").strip("\n")
    if not text.strip():
        return f"{shown} is empty"
    if len(text) <= MAX_CHARS and size <= MAX_READ_BYTES:
        return text
    left = len(text) - MAX_CHARS
    more = f"more than {left}" if size > MAX_READ_BYTES else f"{left}"
    return f"{text[:MAX_CHARS]}\n… ({more} more characters)"
