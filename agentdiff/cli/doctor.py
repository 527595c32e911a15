"""`agentdiff doctor`: what is there on this machine, or what a backend really does."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from agentdiff.cli.run import STORE
from agentdiff.errors import AgentDiffError, ConfigurationError

if TYPE_CHECKING:
    from agentdiff.backends.probes import Finding
    from agentdiff.generation import Backend

State = Literal["good", "off", "bad"]
"""`off`: not there, and nothing needs it."""

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("torch", "transformers", "tokenizers", "safetensors", "numpy", "jinja2"),
    "fast": ("numba", "numpy"),
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    "mcp": ("mcp",),
}
"""Extra → the packages that it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something on this machine."""

    what: str
    state: State
    found: str
    advice: str = ""


def doctor(
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Ask this backend a few small questions and compare its answers with what its "
            "profile says. Without it, look at this machine.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For a server: the profile that is held against it."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Check this machine, or what a backend really does. Exits with 1 where something is wrong."""
    if backend is None:
        if profile is not None:
            raise ConfigurationError("`--profile` needs `--backend`: it is about a server")
        is_well = _machine(as_json=as_json)
    else:
        is_well = _server(backend, profile, as_json=as_json)
    if not is_well:
        raise typer.Exit(1)


# --- a backend ---


def _server(spec: str, profile: str | None, *, as_json: bool) -> bool:
    """Whether the backend does what is said of it."""
    from agentdiff.backends import connect
    from agentdiff.cli import doctor_picture

    opened = connect(spec) if profile is None else connect(spec, profile=profile)
    console = _console()
    with doctor_picture.waiting(console, quiet=as_json):
        findings = _examined(opened)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"backend": opened.name, "findings": rows}, indent=2))
    else:
        for line in doctor_picture.examined(opened.name, findings):
            console.print(line)
    return all(each.verdict != "differs" for each in findings)


def _examined(opened: Backend) -> list[Finding]:
    import anyio

    from agentdiff.backends.probes import examine

    async def main() -> list[Finding]:
        try:
            async with aclosing(examine(opened)) as findings:
                return [finding async for finding in findings]
        finally:
            with anyio.CancelScope(shield=True):
                await opened.aclose()

    return anyio.run(main)


# --- this machine ---


def _machine(*, as_json: bool) -> bool:
    """Whether nothing on this machine is in the way."""
    from agentdiff.cli import doctor_picture

    console = _console()
    with doctor_picture.waiting(console, quiet=as_json):
        checks = list(_checks())
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for line in doctor_picture.looked_at(checks):
            console.print(line)
    return all(check.state != "bad" for check in checks)


def _checks() -> Iterator[Check]:
    from agentdiff._version import __version__

    python = f"{__version__}, Python {platform.python_version()}, {platform.system()}"
    yield Check(what="agentdiff", state="good", found=python)
    yield from map(_extra, EXTRAS)
    has_local = all(_version(name) for name in EXTRAS["local"])
    if has_local:
        yield _guarded("device", _device)
        yield _guarded("embedded model", _embedded)
        yield _guarded("cache", _cache)
    yield _guarded("lengths", _lengths)
    yield _keys()


def _extra(extra: str) -> Check:
    found = {name: _version(name) for name in EXTRAS[extra]}
    there = [f"{name} {number}" for name, number in found.items() if number]
    missing = [name for name, number in found.items() if not number]
    what, advice = f"extra {extra}", f"pip install 'agentdiff[{extra}]'"
    if not missing:
        return Check(what=what, state="good", found=", ".join(there[:2]))
    lacking = f"not installed: {', '.join(missing)}"
    return Check(what=what, state="off", found=lacking, advice=advice)


def _guarded(what: str, check: Callable[[], Check]) -> Check:
    """The check; whatever it raises is what it found."""
    try:
        return check()
    except AgentDiffError as error:
        return Check(what=what, state="bad", found=str(error))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        return Check(what=what, state="bad", found=f"{type(error).__name__}: {error}")


def _device() -> Check:
    from agentdiff.embedded.device import device

    return Check(what="device", state="good", found=device())


def _embedded() -> Check:
    import anyio

    from agentdiff.backends import connect
    from agentdiff.generation import Request, generate
    from agentdiff.messages import ToolSpec, user

    began = time.perf_counter()
    backend = connect("embedded")
    loaded_s = time.perf_counter() - began
    note = ToolSpec(
        name="add_note",
        description="Save a note",
        parameters={
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    )
    request = Request(
        messages=(user("add a note that says buy milk"),), tools=(note,), kind="route"
    )

    async def main() -> str:
        try:
            result = await generate(backend, request)
        finally:
            await backend.aclose()
        return result.enforcement

    began = time.perf_counter()
    enforcement = anyio.run(main)
    called_s = time.perf_counter() - began
    found = f"loads in {loaded_s:.1f} s, first call {called_s:.1f} s, {enforcement}"
    is_good = enforcement == "in_block"
    return Check(what="embedded model", state="good" if is_good else "bad", found=found)


def _cache() -> Check:
    from agentdiff.constraint.store import cache_folder

    folder = cache_folder()
    if folder is None:
        return Check(what="cache", state="off", found="switched off")
    return _folder("cache", folder, "set AGENTDIFF_CACHE_DIR to a folder that can be written to")


def _folder(what: str, folder: Path, advice: str) -> Check:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        found = f"{folder} cannot be written to"
        return Check(what=what, state="bad", found=found, advice=advice)
    free = shutil.disk_usage(existing).free / 2**30
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    held = f"{size / 2**20:.1f} MiB" if folder.exists() else "empty"
    return Check(what=what, state="good", found=f"{folder}, {held}, {free:.0f} GiB free")


def _lengths() -> Check:
    if not STORE.exists():
        return Check(what="lengths", state="off", found="nothing learned here yet")
    from contextlib import closing

    from agentdiff.length import LengthPredictor, open_store

    with closing(open_store(STORE)) as store:
        predictor = LengthPredictor(store)
        known, problems = len(predictor.keys()), predictor.problems
    if problems:
        return Check(what="lengths", state="bad", found=str(problems[0]))
    return Check(
        what="lengths",
        state="good",
        found=f"{known} kind{'' if known == 1 else 's'} of step in {STORE}",
    )


def _keys() -> Check:
    from agentdiff.backends.profiles import PROFILES

    names = dict.fromkeys(profile.key_env for profile in PROFILES.values())
    there = [name for name in names if os.environ.get(name)]
    if not there:
        return Check(
            what="keys", state="off", found="none", advice="export INCEPTION_API_KEY=… for Mercury"
        )
    return Check(what="keys", state="good", found=f"{', '.join(there)} (not shown)")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)
