"""`agentdiff doctor`: honest servers pass, lying ones do not, and this machine is looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from agentdiff.backends import server_probes
from agentdiff.backends.filling import shortest
from agentdiff.backends.findings import Finding
from agentdiff.backends.scripted import FunctionBackend, TestBackend
from agentdiff.cli import doctor, main
from agentdiff.errors import TimedOut, Unavailable
from agentdiff.generation import Capabilities, Finish, Request
from tests.backends.fakes import DONE, Reply, chunk, frame, stream, whole
from tests.backends.server import Received, dialect, serving
from tests.backends.server.dialects import DIALECTS, KEY

Answers = Callable[[Received], Reply]
HONEST = sorted(DIALECTS.keys() - {"ollama"})  # whose double warns of every low temperature


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTDIFF_API_KEY", KEY)


@contextmanager
def listening(answer: Answers) -> Generator[str]:
    """A server in a thread of its own; the spec of its model."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(answer)) as server,
    ):
        yield f"openai:{server.url}#tiny"


def honest(name: str) -> Answers:
    """The engine called `name`, whose model writes to any schema and stops at its cap."""
    engine, usual = DIALECTS[name], dialect(name)

    def answer(request: Received) -> Reply:
        reply = usual(request)
        if reply.status != 200 or not request.path.endswith("/chat/completions"):
            return reply
        body = request.body
        told = json.dumps(body["messages"])
        if engine.decodes_by_schema and "response_format" in body:
            schema = body["response_format"]["json_schema"]["schema"]
            return said(body, json.dumps(shortest(schema)), "stop", 9)
        if "JSON Schema" in told and engine.reads_words and "The tools:" not in told:
            return said(body, '{"kq7": "vz3-mauve", "w0": true}', "stop", 9)
        cap = body.get("max_tokens") or body.get("max_completion_tokens")
        if "Count from one" in told:
            return said(body, "One two", "length", cap)
        return reply

    return answer


def said(body: dict[str, Any], text: str, reason: str, tokens: int | None) -> Reply:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    if body.get("stream"):
        end = [] if tokens is None else [frame({"choices": [], **usage})]
        return stream(chunk(content=text), chunk(finish=reason), *end, DONE)
    choice = {"index": 0, "finish_reason": reason, "message": {"content": text}}
    return whole({"model": "tiny-v1", "choices": [choice], **usage})


def examined(
    capsys: pytest.CaptureFixture[str], answer: Answers, *arguments: str
) -> tuple[int, dict[str, dict[str, str]]]:
    with listening(answer) as spec:
        code = main(["doctor", "--backend", spec, "--json", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    return code, {each["question"]: each for each in json.loads(out)["findings"]}


def differing(found: dict[str, dict[str, str]]) -> set[str]:
    return {name for name, each in found.items() if each["verdict"] == "differs"}


@pytest.mark.parametrize("name", HONEST)
def test_a_server_that_does_what_its_profile_says_is_well(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = examined(capsys, honest(name), "--profile", name)
    assert differing(found) == set(), found
    assert code == 0
    assert found["budget"]["verdict"] == "holds"
    expected = "decodes by it" if DIALECTS[name].decodes_by_schema else ""
    assert found["schema, there"]["found"].startswith(expected)
    continues = DIALECTS[name].continues
    assert found["cut reply"]["found"] == ("writes on" if continues else "writes something else")


def test_a_server_that_ignores_a_schema_with_status_200_is_found_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    liar = dialect("generic", only_words=True)
    code, found = examined(capsys, liar, "--profile", "vllm")
    assert code == 1
    assert {"schema, there", "schema, here"} <= differing(found)
    assert found["schema, there"]["found"] == "ignores it, with status 200"
    assert found["schema, here"]["found"] == "invalid, and raised"
    _, found = examined(capsys, liar, "--profile", "generic")
    assert found["schema, there"]["verdict"] == found["schema, here"]["verdict"] == "holds"


def test_the_wrong_profile_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = examined(capsys, honest("vllm-diffusiongemma"), "--profile", "vllm")
    assert code == 1
    assert found["engine"]["found"] == "vllm-diffusiongemma"
    assert {"engine", "schema, there", "temperature 0.3", "seed, twice"} <= differing(found)
    assert found["temperature 0.3"]["found"] == "refused (400)"


def test_a_server_that_does_more_than_it_says_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = examined(capsys, honest("vllm"), "--profile", "generic")
    assert code == 0
    assert found["schema, there"]["verdict"] == "more"


def test_a_question_that_takes_too_long_is_told_and_the_others_are_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> Finding:
        raise TimedOut("no answer in time", backend="openai:tiny")

    monkeypatch.setattr(server_probes, "decoding", late)
    code, found = examined(capsys, honest("generic"), "--profile", "generic")
    assert code == 0
    assert found["schema, there"]["verdict"] == "open"
    assert found["schema, there"]["found"] == "no answer in 60 s"
    assert found["budget"]["verdict"] == "holds"


def test_a_server_that_does_not_write_on_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    def anew(request: Received) -> Reply:
        if "continue_final_message" in request.body:
            return said(request.body, "One two three four", "stop", 4)
        return honest("sglang")(request)

    code, found = examined(capsys, anew, "--profile", "sglang")
    assert code == 1
    assert differing(found) == {"cut reply"}
    assert found["cut reply"]["found"] == "begins anew"


def test_a_cap_that_is_ignored_and_tokens_that_are_not_counted_are_found_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(request: Received) -> Reply:
        if not request.path.endswith("/chat/completions"):
            return dialect("generic")(request)
        return said(request.body, "on and on " * 40, "stop", None)

    code, found = examined(capsys, answer, "--profile", "generic")
    assert code == 1
    assert differing(found) == {"usage", "budget"}


def test_the_table_says_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(dialect("generic", only_words=True)) as spec:
        assert main(["doctor", "--backend", spec, "--profile", "openai"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "openai:tiny"
    assert any("✗" in line and "ignores it, with status 200" in line for line in lines)
    assert "differs from its profile in: schema, there" in out
    assert KEY not in out


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "openai:http://127.0.0.1:9/v1#tiny"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot reach http://127.0.0.1:9/v1" in err
    assert main(["doctor", "--backend", "magic"]) == 2
    assert main(["doctor", "--profile", "vllm"]) == 2


def test_any_backend_can_be_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def moody(request: Request) -> Any:
        nonlocal calls
        calls += 1
        return f"something else each time, {calls}"

    claimed = Capabilities(enforcement="validated", seed=True, model="a moody one")
    backend = FunctionBackend(moody, name="moody", capabilities=claimed)
    monkeypatch.setattr("agentdiff.backends.connect", lambda spec: backend)
    assert main(["doctor", "--backend", "embedded", "--json"]) == 1
    found = {each["question"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert differing(found) == {"seed, twice", "budget"}
    steady = TestBackend(capabilities=replace(claimed, drafts=True), name="steady")
    monkeypatch.setattr("agentdiff.backends.connect", lambda spec: steady)
    assert main(["doctor", "--backend", "embedded"]) == 0
    assert "does what its profile says" in capsys.readouterr().out
    empty = FunctionBackend(lambda request: [Finish(reason="stop")], capabilities=claimed)
    monkeypatch.setattr("agentdiff.backends.connect", lambda spec: empty)
    assert main(["doctor", "--backend", "embedded"]) == 1
    down = FunctionBackend(lambda request: Unavailable("down", backend="d"), name="d")
    monkeypatch.setattr("agentdiff.backends.connect", lambda spec: down)
    assert main(["doctor", "--backend", "embedded"]) == 1


# --- this machine ---


def local_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, versions: Callable[[str], str | None]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_version", versions)
    for name in ("_device", "_embedded", "_cache"):
        check = doctor.Check(what=name.strip("_"), state="good", found="there")
        monkeypatch.setattr(doctor, name, lambda check=check: check)


def test_extras_that_are_not_there_are_no_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local_checks(monkeypatch, tmp_path, lambda name: None)
    assert main(["doctor", "--json"]) == 0
    checks = {each["what"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["extra local"]["advice"] == "pip install 'agentdiff[local]'"
    assert "embedded" not in checks
    assert checks["keys"]["found"] == "AGENTDIFF_API_KEY (not shown)"
    assert list(tmp_path.iterdir()) == []


def test_what_is_broken_is_told_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local_checks(monkeypatch, tmp_path, lambda name: "1.0")

    def broken() -> doctor.Check:
        raise OSError("the weights are cut short")

    monkeypatch.setattr(doctor, "_embedded", broken)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "OSError: the weights are cut short" in out
    assert "1 of 10 need attention" in out


def test_a_cache_folder_has_to_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = doctor._folder("cache", tmp_path / "file" / "below", "name another")
    assert (check.state, check.advice) == ("bad", "name another")
    assert doctor._folder("cache", tmp_path / "not" / "yet", "").state == "good"
    assert not (tmp_path / "not").exists()


@pytest.mark.local
@pytest.mark.slow
def test_this_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "in_block" in capsys.readouterr().out
