"""Arrays on disk that are only there to save time.

A file holds its own checksum and is moved into place whole, so processes may write the same one at
once and a broken one is simply not there. Nothing here raises: without a folder that can be written
to, everything is computed again.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_DIGEST_SIZE = 32


def cache_folder() -> Path | None:
    """Return where such files go: `AGENTDIFF_CACHE_DIR`, else the system's folder for caches.

    None when the variable is set and empty, or there is no home.
    """
    named = os.environ.get("AGENTDIFF_CACHE_DIR")
    if named is not None:
        return Path(named) if named else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    else:
        base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "agentdiff"
    except RuntimeError:  # no home
        return None


def load(name: str) -> Arrays | None:
    """Return what was saved under a name, or None when there is nothing whole."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        content = (folder / name).read_bytes()
        digest, body = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
        if blake2b(body, digest_size=_DIGEST_SIZE).digest() != digest:
            return None
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def save(name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep arrays under a name, if there is a place for them."""
    folder = cache_folder()
    if folder is None:
        return
    body = io.BytesIO()
    np.savez(body, allow_pickle=False, **dict(arrays))
    content = body.getvalue()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
        try:
            with open(handle, "wb") as file:
                file.write(blake2b(content, digest_size=_DIGEST_SIZE).digest() + content)
            os.replace(temporary, folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
