"""Each engine's documented wire: what it takes, refuses, ignores and breaks on, and how it streams.

A dialect refuses every field that its engine does not document, so whatever a client spells out
without need shows. Its model is a fixed one: it echoes, calls the first tool, and writes a valid
output of `SCHEMA` where it was told of a schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.backends.fakes import DONE, Reply, call, chunk, frame, stream, whole
from tests.backends.server.sockets import Received

VALID = '{"city": "Zürich", "sunny": true}'
_COMPACT = VALID.replace(": ", ":").replace(", ", ",")
ARGUMENTS = '{"text": "buy milk"}'
KEY = "key-of-the-dialects"
COMMON = {
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "seed", "tools", "tool_choice", "response_format"),
    *("logprobs", "top_logprobs"),
}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One engine."""

    fields: frozenset[str] = frozenset(COMMON)
    owner: str = "somebody"
    root: str = "tiny"
    server: str = ""
    key_header: str = ""
    """Requests without a key in it are 401; empty where none is needed."""
    error_shape: str = "nested"
    unit: int = 5
    """Characters of a chunk."""
    decodes_by_schema: bool = False
    reads_words: bool = True
    """Whether the model writes JSON where the prompt tells a schema; else it is only decoded by one."""
    before: Sequence[bytes] = ()
    """What each stream begins with."""
    check: Callable[[dict[str, Any]], str | None] = lambda body: None
    """A complaint about a request, for a 400."""
    breaks: Callable[[dict[str, Any]], bool] = lambda body: False
    """Whether the engine's loop fails on a request, for a 500."""
    continues: str = ""
    """The field that makes it write on from a last message of the assistant; `always` where it does so by itself."""
    indexed: bool = True
    """Whether fragments of tool calls bear an index."""
    extra: Mapping[str, Any] | None = None
    """Fields of its own in each answer."""


_NUMBERS = "one two three four five six seven eight nine ten"
_CONTINUE = {"continue_final_message"}
_VLLM = {*_CONTINUE, "add_generation_prompt"}


def _vllm(body: dict[str, Any]) -> str | None:
    if not body.get("continue_final_message"):
        return None
    if body.get("add_generation_prompt", True):
        return "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
    last = body["messages"][-1]
    if last["role"] != "assistant" or last["content"] != last["content"].strip():
        return (
            "continue_final_message is set but the final message does not appear in the chat after "
            "applying the chat template!"
        )
    return None


def _llama_cpp(body: dict[str, Any]) -> str | None:
    thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
    if body["messages"][-1]["role"] == "assistant" and thinks:
        return "Assistant response prefill is incompatible with enable_thinking."
    return None


def _vllm_diffusion(body: dict[str, Any]) -> str | None:
    if body.get("temperature", 1) != 1:
        return "temperature must be 1.0 for diffusion language models"
    if "response_format" in body:
        return "Structured outputs are not yet supported for diffusion language models."
    fields = body.get("vllm_xargs")
    if fields is None:
        return _vllm(body)
    width, seed = fields.get("diffusion_canvas_length", 256), fields.get("diffusion_seed_canvas")
    if not 0 < width <= 256:
        return (
            "diffusion_canvas_length must be a positive integer no larger than the served canvas."
        )
    if len(seed) != width:
        return f"diffusion_seed_canvas must hold exactly {width} ids, got {len(seed)}."
    if not all(0 <= p < width for p in fields["diffusion_pinned"]):
        return "diffusion_pinned positions must lie inside the canvas."
    return None


def _mercury(body: dict[str, Any]) -> str | None:
    roles = {message["role"] for message in body["messages"]}
    return None if roles <= {"system", "user", "assistant", "tool"} else "unknown role"


def _openai(body: dict[str, Any]) -> str | None:
    if "max_tokens" in body:
        return (
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
    return None


DIALECTS: Mapping[str, Dialect] = {
    "generic": Dialect(),
    "openai": Dialect(
        key_header="authorization", check=_openai, decodes_by_schema=True, reads_words=False
    ),
    "azure": Dialect(
        key_header="api-key",
        check=_openai,
        decodes_by_schema=True,
        reads_words=False,
        before=(frame({"choices": [], "prompt_filter_results": []}),),
    ),
    "openrouter": Dialect(key_header="authorization", before=(b": OPENROUTER PROCESSING\n\n",) * 2),
    "mercury": Dialect(
        fields=frozenset(COMMON | {"reasoning_effort", "diffusing"})
        - {"top_p", "seed", "logprobs"},
        key_header="authorization",
        check=_mercury,
        decodes_by_schema=True,
        reads_words=False,
        unit=64,
    ),
    "vllm": Dialect(
        fields=frozenset(COMMON | _VLLM),
        owner="vllm",
        decodes_by_schema=True,
        reads_words=False,
        check=_vllm,
        continues="continue_final_message",
    ),
    "sglang": Dialect(
        fields=frozenset(COMMON | _CONTINUE),
        owner="sglang",
        error_shape="flat",
        decodes_by_schema=True,
        reads_words=False,
        continues="continue_final_message",
    ),
    "vllm-diffusiongemma": Dialect(
        fields=frozenset(COMMON | _VLLM | {"vllm_xargs", "chat_template_kwargs"}) - {"seed"},
        continues="continue_final_message",
        owner="vllm",
        root="google/diffusiongemma-26B-A4B-it",
        unit=256,
        check=_vllm_diffusion,
    ),
    "sglang-dllm": Dialect(
        fields=frozenset(COMMON | _CONTINUE),
        continues="continue_final_message",
        owner="sglang",
        root="inclusionAI/LLaDA2.0-mini",
        error_shape="flat",
        unit=32,
    ),
    "sglang-diffusiongemma": Dialect(
        fields=frozenset(COMMON | _CONTINUE),
        continues="continue_final_message",
        owner="sglang",
        root="google/diffusiongemma-26B-A4B-it",
        error_shape="flat",
        unit=256,
        check=lambda body: (
            "DiffusionGemma with Gemma4Renoise does not support request-level json_schema"
            if "response_format" in body
            else None
        ),
    ),
    "sglang-mosaic": Dialect(
        fields=frozenset(COMMON | _CONTINUE),
        continues="continue_final_message",
        owner="sglang",
        root="my-finetune",
        error_shape="flat",
        unit=32,
        decodes_by_schema=True,
        reads_words=False,
    ),
    "lmdeploy-sdar": Dialect(
        owner="lmdeploy",
        root="JetLM/SDAR-8B-Chat",
        error_shape="flat",
        unit=8,
        breaks=lambda body: "response_format" in body,
    ),
    "llama-cpp": Dialect(
        fields=frozenset(COMMON | {"chat_template_kwargs"}),
        check=_llama_cpp,
        continues="always",
        owner="llamacpp",
        server="llama.cpp",
        decodes_by_schema=True,
        reads_words=False,
        before=(b":\n\n",),
        extra={"timings": {"predicted_n": 3}},
    ),
    "ollama": Dialect(
        fields=frozenset(COMMON | {"reasoning_effort"}) - {"max_completion_tokens"},
        owner="library",
        indexed=False,
    ),
    "transformers-serve": Dialect(
        fields=frozenset(COMMON) - {"tools", "tool_choice"}, owner="me", error_shape="detail"
    ),
}


def dialect(name: str, *, only_words: bool = False) -> Callable[[Received], Reply]:
    """The answers of the engine whose profile is called `name`.

    Args:
        name: A profile.
        only_words: Its model writes prose, whatever it is told.
    """
    engine = DIALECTS[name]

    def answer(request: Received) -> Reply:
        if engine.key_header:
            given = request.headers.get(engine.key_header, "")
            if given.removeprefix("Bearer ") != KEY:
                return _error(engine, 401, f"the key {given!r} is wrong")
        path = request.path.partition("?")[0]
        if path.endswith("/models"):
            entry = {"id": "tiny", "object": "model", "owned_by": engine.owner, "root": engine.root}
            headers = {"server": engine.server} if engine.server else {}
            return whole({"object": "list", "data": [entry]}, headers=headers)
        if path == "/tokenize" and engine.owner == "vllm":
            return whole({"tokens": tokens_of(request.body["prompt"])})
        if path.endswith("/decisions") or path.endswith("/systemone"):
            return _decided(engine, name, request.body)
        if not path.endswith("/chat/completions"):
            return _error(engine, 404, "no such path")
        body = request.body
        if unknown := body.keys() - engine.fields:
            return _error(engine, 400, f"extra_forbidden: {sorted(unknown)}")
        if complaint := engine.check(body):
            return _error(engine, 400, complaint)
        if engine.breaks(body):
            return _error(engine, 500, "Internal Server Error")
        return _completed(engine, body, only_words=only_words)

    return answer


def _completed(engine: Dialect, body: dict[str, Any], *, only_words: bool) -> Reply:
    text, calls = _thought(engine, body, only_words=only_words)
    finish = "tool_calls" if calls else "stop"
    usage: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    extra = dict(engine.extra or {})
    if "diffusing" in body or "reasoning_effort" in body:
        usage["completion_tokens_details"] = {"reasoning_tokens": 1}
    if body.get("temperature", 1) < 0.5 and "reasoning_effort" in engine.fields:
        extra["warning"] = "temperature was replaced"
    if body.get("logprobs"):
        top = [{"token": "B", "logprob": -0.1}, {"token": " A", "logprob": -2.5}]
        extra_choice = {"logprobs": {"content": [{"token": "B", "top_logprobs": top}]}}
    else:
        extra_choice = {}
    if not body.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "finish_reason": finish, "message": message, **extra_choice}
        return whole({"id": "x", "model": "tiny-v1", "choices": [choice], "usage": usage, **extra})
    if body.get("diffusing") and text:
        half = text[: len(text) // 2]
        pieces = ["░" * len(text), half + "░" * (len(text) - len(half)), text]
    else:
        pieces = [text[i : i + engine.unit] for i in range(0, len(text), engine.unit)]
    parts = [*engine.before, chunk(role="assistant", content="")]
    parts += [chunk(content=piece) for piece in pieces]
    for made in calls:
        where = {"index": 0} if engine.indexed else {}
        parts.append(chunk(tool_calls=[{**where, **made}]))
    parts.append(chunk(finish=finish))
    if body.get("stream_options", {}).get("include_usage"):
        parts.append(frame({"choices": [], "usage": usage, **extra}))
    return stream(*parts, DONE)


def _thought(
    engine: Dialect, body: dict[str, Any], *, only_words: bool
) -> tuple[str, list[dict[str, Any]]]:
    last = body["messages"][-1]
    written = _written(engine, body)
    if written is not None:
        return _rest(engine, body, written), []
    if body.get("tools") and last["role"] != "tool":
        return "", [call(body["tools"][0]["function"]["name"], ARGUMENTS)]
    if only_words:
        return f"Well, about {last['content']}: it is sunny in Zürich.", []
    if fields := body.get("vllm_xargs"):
        return _filled(fields["diffusion_seed_canvas"], fields["diffusion_pinned"]), []
    if "The tools:" in body["messages"][0]["content"]:
        if body["messages"][-1]["content"].startswith("add_note returned"):
            return '{"answer": "It is noted."}', []
        return f'{{"tool": "add_note", "args": {ARGUMENTS}}}', []
    is_told = engine.reads_words and "JSON Schema" in json.dumps(body["messages"])
    if is_told or (engine.decodes_by_schema and "response_format" in body):
        return VALID, []
    return f"You said: {last['content']} ✓", []


def _written(engine: Dialect, body: dict[str, Any]) -> str | None:
    """The reply so far, where the engine is to write on from it."""
    last = body["messages"][-1]
    is_told = engine.continues == "always" or body.get(engine.continues)
    return last["content"] if engine.continues and is_told and last["role"] == "assistant" else None


def _rest(engine: Dialect, body: dict[str, Any], written: str) -> str:
    """What follows what is written. A grammar knows nothing of that, and begins a value of its own."""
    if engine.decodes_by_schema and "response_format" in body:
        return VALID
    asked = next(m["content"] for m in reversed(body["messages"]) if m["role"] == "user")
    is_told = "JSON Schema" in json.dumps(body["messages"])
    known = (VALID, _COMPACT) if is_told else (f"You said: {asked} ✓", _NUMBERS)
    return next(text[len(written) :] for text in known if text.startswith(written))


def tokens_of(text: str) -> list[int]:
    """The ids of a tokenizer whose tokens are two characters long."""
    pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
    return [ord(pair[0]) + (ord(pair[1:] or "\0") << 9) for pair in pairs]


def text_of(token: int) -> str:
    """The text of a token."""
    return (chr(token % 512) + chr(token >> 9)).rstrip("\0")


def _filled(seed: list[int], pinned: list[int]) -> str:
    """The canvas with the values of `VALID` in the slots between its pins, padded with spaces."""
    values = iter(["Zürich", "true"])
    text, at = "", 0
    fixed = set(pinned)
    while at < len(seed):
        if at in fixed:
            text += text_of(seed[at])
            at += 1
            continue
        end = at
        while end < len(seed) and end not in fixed:
            end += 1
        text += next(values).ljust(2 * (end - at))[: 2 * (end - at)]
        at = end
    return text


def _decided(engine: Dialect, name: str, body: dict[str, Any]) -> Reply:
    usage = {"input_tokens": 9, "output_tokens": 0}
    if isinstance(body.get("questions"), list):
        question = body["questions"][0]
        options = [one["value"] for one in question["choices"]]
        probabilities = _spread(options)
        answers: Any = [
            {
                "type": "choice",
                "name": question["name"],
                "choice": options[1],
                "probabilities": [
                    {"value": value, "probability": p} for value, p in probabilities.items()
                ],
                "confidence": 0.8,
            }
        ]
    else:
        key, question = next(iter(body["questions"].items()))
        if set(body) != {"model", "state", "questions"} or question["type"] != "choice":
            return _error(engine, 422, "extra_forbidden")
        options = list(question["criteria"])
        answers = {
            key: {
                "type": "choice",
                "choice": options[1],
                "confidence": 0.8,
                "probabilities": _spread(options),
            }
        }
    return whole({"model": body["model"], "answers": answers, "usage": usage})


def _spread(options: list[str]) -> dict[str, float]:
    rest = 0.1 / (len(options) - 1)
    return {option: 0.9 if i == 1 else rest for i, option in enumerate(options)}


def _error(engine: Dialect, status: int, message: str) -> Reply:
    bodies: dict[str, Any] = {
        "nested": {"error": {"message": message, "type": "invalid_request_error", "code": status}},
        "flat": {"object": "error", "message": message, "type": "BadRequestError", "code": status},
        "detail": {"detail": [{"loc": ["body"], "msg": message, "type": "value_error"}]},
    }
    return whole(bodies[engine.error_shape], status=status)
