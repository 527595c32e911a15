import sys
import types
from typing import Any

import httpx
import pytest

from agentdiff.backends import SCHEMES, connect
from agentdiff.backends.openai import OpenAIBackend
from agentdiff.errors import ConfigurationError, MissingExtra
from agentdiff.generation import Request, generate
from agentdiff.messages import user
from tests.backends.fakes import Server, completion

ASK = Request(messages=(user("hello"),))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INCEPTION_API_KEY", "OPENAI_API_KEY", "AGENTDIFF_API_KEY"):
        monkeypatch.delenv(name, raising=False)


async def sent(spec: str, *, api_key: str | None = None) -> httpx.Request:
    server = Server(completion("hi"))
    backend = connect(spec, api_key=api_key, client=server.client())
    await generate(backend, ASK)
    return server.requests[-1]


async def test_an_openai_spec_is_an_address_and_a_model() -> None:
    request = await sent("openai:http://localhost:8000/v1#org/model", api_key="k-1")
    assert request.url == "http://localhost:8000/v1/chat/completions"
    assert b'"model":"org/model"' in request.content
    assert request.headers["authorization"] == "Bearer k-1"


async def test_a_slash_at_the_end_and_a_query_are_kept_apart() -> None:
    request = await sent("openai:https://gateway.test/openai/v1/?api-version=2#m")
    assert request.url == "https://gateway.test/openai/v1/chat/completions?api-version=2"
    assert "authorization" not in request.headers


async def test_a_key_of_the_environment_goes_only_where_it_belongs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai")
    monkeypatch.setenv("INCEPTION_API_KEY", "for-inception")
    elsewhere = await sent("openai:https://elsewhere.test/v1#m")
    assert "authorization" not in elsewhere.headers
    openai = await sent("openai:https://api.openai.com/v1#m")
    assert openai.headers["authorization"] == "Bearer for-openai"
    inception = await sent("mercury:mercury-2")
    assert inception.headers["authorization"] == "Bearer for-inception"
    assert inception.url == "https://api.inceptionlabs.ai/v1/chat/completions"
    monkeypatch.setenv("AGENTDIFF_API_KEY", "for-others")
    elsewhere = await sent("openai:https://elsewhere.test/v1#m")
    assert elsewhere.headers["authorization"] == "Bearer for-others"


def test_the_name_tells_the_model() -> None:
    assert connect("openai:http://localhost/v1#m").name == "openai:m"
    assert connect("mercury:mercury-3", api_key="k").name == "mercury:mercury-3"


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (
            "mercry:mercury-2",
            "there is no backend 'mercry:mercury-2'; did you mean mercury:<model>?",
        ),
        ("mercury", "did you mean mercury:<model>?"),
        ("Embedded", "did you mean embedded?"),
        ("embedded:x", "did you mean embedded?"),
        ("local:", "did you mean local:<path or hub id>?"),
        ("https://host/v1#m", "did you mean openai:<that address>#<model>?"),
        ("./some/folder", "did you mean local:<that path or hub id>?"),
        ("scripted:x", "`Scripted` is made in code"),
        ("", "there is no backend ''. Known: embedded; local:"),
        ("zzz", "openai:<base url>#<model>, as in openai:http://localhost:8000/v1#my-model"),
    ],
)
def test_an_unknown_spec_is_met_with_the_known_forms(spec: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(spec)
    assert hint in str(caught.value)
    assert all(scheme.form in str(caught.value) for scheme in SCHEMES.values())


@pytest.mark.parametrize(
    "spec",
    [
        "https://user:hunter2secret@host/v1#m",
        "https://host/v1?key=hunter2secret#m",
        "opnai:https://user:hunter2secret@host/v1#m",
        "sk-proj-hunter2secret-hunter2secret",
        "openai:ftp://user:hunter2secret@host/v1#m",
        "openai:https://user:hunter2secret@/v1#m",
        "openai:https://user:hunter2secret@host:port/v1#m",
        "openai:https://user:hunter2secret@host/v1",
    ],
)
def test_no_secret_of_a_spec_is_repeated(spec: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(spec)
    assert "hunter2secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["with space", "line\n", "schlüssel", ""])
def test_a_key_that_no_header_can_hold_is_not_repeated(key: str) -> None:
    with pytest.raises(ConfigurationError, match="`api_key`") as caught:
        OpenAIBackend("http://localhost/v1", "m", api_key=key)
    assert key == "" or key not in str(caught.value)


def test_credentials_in_two_places_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="give one"):
        connect("openai:https://user:word@host/v1#m", api_key="k")


def test_mercury_without_a_key_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="INCEPTION_API_KEY"):
        connect("mercury:mercury-2")


def local(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """Stand in for the module that needs torch."""
    module: Any = types.ModuleType("agentdiff.backends.local")
    module.LocalBackend = types.SimpleNamespace(load=load)
    monkeypatch.setitem(sys.modules, "agentdiff.backends.local", module)


def test_models_on_this_machine_are_loaded_by_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    local(monkeypatch, lambda source: f"loaded {source}")
    assert connect("local:org/model") == "loaded org/model"
    assert connect("local:C:\\model") == "loaded C:\\model"
    assert connect("embedded") == "loaded embedded"
    with pytest.raises(ConfigurationError, match="takes no `api_key`"):
        connect("embedded", api_key="k")


@pytest.mark.parametrize("spec", ["embedded", "local:org/model"])
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    def load(source: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch.nn")

    local(monkeypatch, load)
    with pytest.raises(MissingExtra, match=r"pip install 'agentdiff\[local\]'") as caught:
        connect(spec)
    assert caught.value.extra == "local"


def test_another_import_error_is_not_disguised(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(source: str) -> None:
        raise ImportError("broken", name="agentdiff.engine.cache")

    local(monkeypatch, load)
    with pytest.raises(ImportError, match="broken"):
        connect("embedded")
